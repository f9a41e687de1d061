"""The table of parcels."""

from sqlalchemy import Column, Integer, MetaData, String, Table

from yamchi.storage.tables import Moment

parcels = Table(
    "parcels",
    MetaData(),
    Column("parcel_id", String(64), primary_key=True),
    Column("user_id", String(64), nullable=False),
    Column("grams", Integer),
    Column("weighed_at", Moment),
)
