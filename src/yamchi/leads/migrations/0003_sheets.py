"""What a Google spreadsheet of leads has, and what is still to be written there."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_MOMENT = sa.DateTime(timezone=True)
_PENDING = sa.text("changes > written")


def upgrade() -> None:
    """A row for each lead in the sheet, the log lines to append, and who of many processes writes."""
    op.create_table(
        "sheet_rows",
        sa.Column("lead_id", sa.String(64), primary_key=True),
        sa.Column("cells", sa.JSON),
        sa.Column("changes", sa.Integer, nullable=False),
        sa.Column("written", sa.Integer, nullable=False),
        sa.Column("asked_at", _MOMENT),
        sa.Column("is_away", sa.Boolean, nullable=False),
        sa.Column("is_erased", sa.Boolean, nullable=False),
    )
    op.create_index(
        "sheet_row_pending", "sheet_rows", ["lead_id"], sqlite_where=_PENDING, postgresql_where=_PENDING
    )
    op.create_table(
        "sheet_lines",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("lead_id", sa.String(64), nullable=False),
        sa.Column("cells", sa.JSON, nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("asked_at", _MOMENT),
    )
    op.create_index("sheet_line_by_time", "sheet_lines", ["at", "id"])
    op.create_index("sheet_line_of_lead", "sheet_lines", ["lead_id"])
    op.create_table(
        "sheet_writers",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("holder", sa.String(64)),
        sa.Column("held_until", _MOMENT),
    )
