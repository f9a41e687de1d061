"""The settings of scenarios."""

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from yamchi.settings import FeatureSettings
from yamchi.settingtypes import check_positive, read_span

PositiveSpan = Annotated[timedelta, BeforeValidator(read_span), AfterValidator(check_positive)]


class ScenarioSettings(FeatureSettings):
    """How long links live and runs are remembered."""

    scenario_link_lifetime: PositiveSpan = Field(
        default=timedelta(days=14),
        description="How long a button in a letter (confirm, reschedule, stop) works.",
    )
    scenario_keep: PositiveSpan = Field(
        default=timedelta(days=90),
        description="How long runs that are over are kept, with their timelines; those of a scenario with again: never for good.",
    )
