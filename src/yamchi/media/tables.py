"""`media` and its variants; watermarks; files whose picture has changed, until caches have forgotten them."""

from sqlalchemy import JSON, BigInteger, Boolean, Column, Index, Integer, MetaData, String, Table, Text

from yamchi.storage.tables import Moment

metadata = MetaData()

media = Table(
    "media",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("entity_type", String(32), nullable=False),
    Column("original_filename", String(255), nullable=False),
    Column("user_id", String(64)),
    Column("metadata", JSON, nullable=False),
    Column("status", String(16), nullable=False),  # processing, ready, failed, soft_deleted
    Column("error", Text),
    Column("temp_path", Text),  # until the first processing is over
    Column("original_path", Text),  # the file as it came, which nobody is shown
    Column("type", String(64)),
    Column("size", BigInteger),
    Column("hash", String(64)),
    Column("width", Integer),
    Column("height", Integer),
    Column("placeholder", String(128)),
    Column("watermark", JSON),  # what is over it now
    Column(
        "sync_state", String(16)
    ),  # accepted until its sync is queued, then enqueued; NULL without S3; removing
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("deleted_at", Moment),
    Index("media_by_time", "created_at"),
    Index("media_by_type", "entity_type", "created_at"),
    Index("media_by_status", "status", "updated_at"),
    Index("media_of_user", "user_id"),
    Index("media_by_hash", "hash"),
    Index("media_unsynced", "sync_state", "updated_at"),
)

media_variants = Table(
    "media_variants",
    metadata,
    Column("media_id", String(36), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("file", String(255), nullable=False),
    Column("type", String(64), nullable=False),
    Column("width", Integer, nullable=False),
    Column("height", Integer, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("hash", String(64), nullable=False),
    Column("is_local", Boolean, nullable=False),
    Column("is_synced", Boolean, nullable=False),
)

media_retired = Table(
    "media_retired",
    metadata,
    Column("path", String(400), primary_key=True),  # below the uploads folder, and the key in the bucket
    Column("delete_after", Moment, nullable=False),
    Index("retired_by_time", "delete_after"),
)

watermarks = Table(
    "watermarks",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("name", String(255), nullable=False),
    Column("file", String(255), nullable=False),
    Column("width", Integer, nullable=False),
    Column("height", Integer, nullable=False),
    Column("created_at", Moment, nullable=False),
)
