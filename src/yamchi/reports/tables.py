"""`reports`: what was asked for, and where the file is."""

from sqlalchemy import JSON, BigInteger, Column, Index, MetaData, String, Table, Text

from yamchi.storage.tables import Moment

metadata = MetaData()

reports = Table(
    "reports",
    metadata,
    Column("id", String(64), primary_key=True),  # random: who knows it may have it attached to a message
    Column("job_id", String(255), nullable=False, unique=True),
    Column("kind", String(64), nullable=False),
    Column("params", JSON, nullable=False),
    Column("format", String(8), nullable=False),
    Column("status", String(16), nullable=False),  # queued, ready, failed
    Column("title", Text),
    Column("period", Text),
    Column("size", BigInteger),
    Column("error", Text),
    Column("created_at", Moment, nullable=False),
    Column("ready_at", Moment),
    Column("user_id", String(64)),  # who alone is told of it
    Index("report_by_time", "created_at"),
    Index("report_of_user", "user_id"),
)
