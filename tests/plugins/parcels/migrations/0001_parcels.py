"""The table of parcels."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "parcels",
        sa.Column("parcel_id", sa.String(64), primary_key=True),
        sa.Column("user_id", sa.String(64), nullable=False),
        sa.Column("grams", sa.Integer),
        sa.Column("weighed_at", sa.DateTime(timezone=True)),
    )
