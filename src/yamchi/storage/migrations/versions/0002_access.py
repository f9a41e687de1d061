"""Who may do what, and who did: named keys, sessions of the board, and the audit."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """A table a section."""
    _keys()
    _sessions()
    _audit()


def _keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("key_id", sa.String(32), primary_key=True),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("old_digest", sa.String(64)),
        sa.Column("old_until", _MOMENT),
        sa.Column("scopes", sa.JSON, nullable=False),
        sa.Column("is_test", sa.Boolean, nullable=False),
        sa.Column("created_by", sa.String(160), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT),
        sa.Column("last_used_at", _MOMENT),
        sa.Column("revoked_at", _MOMENT),
    )
    in_use = sa.text("revoked_at IS NULL")
    op.create_index(
        "api_key_in_use", "api_keys", ["name"], unique=True, sqlite_where=in_use, postgresql_where=in_use
    )


def _sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("session_id", sa.String(64), primary_key=True),
        sa.Column("key_id", sa.String(32)),
        sa.Column("address", sa.String(64)),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=False),
    )
    op.create_index("session_by_end", "sessions", ["expires_at"])


def _audit() -> None:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "audit",
        sa.Column("entry_id", number, primary_key=True, autoincrement=True),
        sa.Column("moment", _MOMENT, nullable=False),
        sa.Column("who", sa.String(160), nullable=False),
        sa.Column("address", sa.String(255)),
        sa.Column("action", sa.String(255), nullable=False),
        sa.Column("target", sa.String(512)),
        sa.Column("before", sa.Text),
        sa.Column("after", sa.Text),
        sa.Column("outcome", sa.String(255)),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_by_time", "audit", ["moment", "entry_id"])
    op.create_index("audit_by_who", "audit", ["who", "entry_id"])
