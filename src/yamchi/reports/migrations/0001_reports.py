"""What was asked for, and where the file is."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """One table."""
    op.create_table(
        "reports",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("job_id", sa.String(255), nullable=False, unique=True),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("params", sa.JSON, nullable=False),
        sa.Column("format", sa.String(8), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("title", sa.Text),
        sa.Column("period", sa.Text),
        sa.Column("size", sa.BigInteger),
        sa.Column("error", sa.Text),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("ready_at", _MOMENT),
    )
    op.create_index("report_by_time", "reports", ["created_at"])
