"""A locale has as much room in a table as in a message: PostgreSQL refused one of 17 to 35 characters, which SQLite kept."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        return  # it keeps no lengths
    op.alter_column("users", "locale", type_=sa.String(35))
    op.alter_column("templates", "locale", type_=sa.String(35))
