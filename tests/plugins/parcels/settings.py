"""The settings of parcels."""

from pydantic import Field

from yamchi.settings import FeatureSettings


class ParcelSettings(FeatureSettings):
    parcels_grams: int = Field(default=500, ge=1, description="What a parcel weighs unless it says so.")
