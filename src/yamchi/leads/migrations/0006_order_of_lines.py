"""Lines of a lead's log are numbered: those of one millisecond stay in the order in which they were written."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Lines of before have no number, and stand before all others, by their moments as until now."""
    for table in ("lead_log", "sheet_lines"):
        op.add_column(table, sa.Column("number", sa.Integer, nullable=False, server_default="0"))
    op.drop_index("log_of_lead", "lead_log")
    op.create_index("log_of_lead", "lead_log", ["lead_id", "number", "at", "id"])
    op.drop_index("sheet_line_by_time", "sheet_lines")
    op.create_index("sheet_line_by_time", "sheet_lines", ["at", "number", "id"])
