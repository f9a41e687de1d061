"""Keys with a lifetime, where Redis does not keep them."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "kept_keys",
        sa.Column("name", sa.String(512), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
    )
    op.create_index("key_by_end", "kept_keys", ["expires_at"])
