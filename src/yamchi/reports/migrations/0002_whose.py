"""Whose a report is, so that it goes when the person is erased."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """A column; of older reports nobody knows, and they go with their time."""
    op.add_column("reports", sa.Column("user_id", sa.String(64)))
    op.create_index("report_of_user", "reports", ["user_id"])
