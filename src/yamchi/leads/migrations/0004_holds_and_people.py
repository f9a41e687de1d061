"""One table says what one process at a time does; a lead says whether it brought its person, and a meeting whether it was told."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Until now every lead wrote to its person, and `asked_at` stayed after the link was told."""
    op.rename_table("sheet_writers", "lead_holds")
    op.add_column("leads", sa.Column("made_person", sa.Boolean, nullable=False, server_default=sa.true()))
    op.execute("UPDATE zoom_meetings SET asked_at = NULL WHERE meeting_id IS NOT NULL")
