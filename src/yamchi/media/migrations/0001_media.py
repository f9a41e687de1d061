"""Pictures, their variants, watermarks."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """A table a subject."""
    _media()
    _variants()
    _retired()
    _watermarks()


def _media() -> None:
    op.create_table(
        "media",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("entity_type", sa.String(32), nullable=False),
        sa.Column("original_filename", sa.String(255), nullable=False),
        sa.Column("user_id", sa.String(64)),
        sa.Column("metadata", sa.JSON, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("temp_path", sa.Text),
        sa.Column("original_path", sa.Text),
        sa.Column("type", sa.String(64)),
        sa.Column("size", sa.BigInteger),
        sa.Column("hash", sa.String(64)),
        sa.Column("width", sa.Integer),
        sa.Column("height", sa.Integer),
        sa.Column("placeholder", sa.String(128)),
        sa.Column("watermark", sa.JSON),
        sa.Column("sync_state", sa.String(16)),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("updated_at", _MOMENT, nullable=False),
        sa.Column("deleted_at", _MOMENT),
    )
    op.create_index("media_by_time", "media", ["created_at"])
    op.create_index("media_by_type", "media", ["entity_type", "created_at"])
    op.create_index("media_by_status", "media", ["status", "updated_at"])
    op.create_index("media_of_user", "media", ["user_id"])
    op.create_index("media_by_hash", "media", ["hash"])
    op.create_index("media_unsynced", "media", ["sync_state", "updated_at"])


def _variants() -> None:
    op.create_table(
        "media_variants",
        sa.Column("media_id", sa.String(36), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("file", sa.String(255), nullable=False),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("width", sa.Integer, nullable=False),
        sa.Column("height", sa.Integer, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("is_local", sa.Boolean, nullable=False),
        sa.Column("is_synced", sa.Boolean, nullable=False),
    )


def _retired() -> None:
    op.create_table(
        "media_retired",
        sa.Column("path", sa.String(400), primary_key=True),
        sa.Column("delete_after", _MOMENT, nullable=False),
    )
    op.create_index("retired_by_time", "media_retired", ["delete_after"])


def _watermarks() -> None:
    op.create_table(
        "watermarks",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("file", sa.String(255), nullable=False),
        sa.Column("width", sa.Integer, nullable=False),
        sa.Column("height", sa.Integer, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
    )
