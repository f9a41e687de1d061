"""Meetings at Zoom, one a lead."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """A row for each lesson that has, or is to have, a meeting."""
    op.create_table(
        "zoom_meetings",
        sa.Column("lead_id", sa.String(64), primary_key=True),
        sa.Column("meeting_id", sa.String(64)),
        sa.Column("link", sa.Text),
        sa.Column("starts_at", _MOMENT),
        sa.Column("asked_at", _MOMENT),
        sa.Column("due_at", _MOMENT),
        sa.Column("due_id", sa.String(64)),
    )
    op.create_index("meeting_due", "zoom_meetings", ["due_at"])
