"""Leads by the time of their lesson: who is left at a time that somebody leaves has it."""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """An index."""
    op.create_index("lead_by_lesson", "leads", ["lesson_datetime"])
