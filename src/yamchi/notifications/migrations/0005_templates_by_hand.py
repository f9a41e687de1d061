"""A template may be written by hand, with the columns that say what it is: what only Yamchi needs has a default."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_NOW = {"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')", "postgresql": "now()"}
"""On SQLite as moments are kept there: text that sorts by time, with microseconds."""


def upgrade() -> None:
    now = sa.text(_NOW[op.get_bind().dialect.name].replace(":", r"\:"))
    with op.batch_alter_table("templates") as table:
        table.alter_column("meta", existing_type=sa.JSON(), existing_nullable=False, server_default="{}")
        table.alter_column(
            "created_at",
            existing_type=sa.DateTime(timezone=True),
            existing_nullable=False,
            server_default=now,
        )
