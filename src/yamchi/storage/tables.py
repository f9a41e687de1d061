"""The tables of the core, and how a moment is kept in any table. Times are UTC in the database and milliseconds in the code."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
)
from sqlalchemy.types import TypeEngine

from yamchi.clock import Millis, as_datetime

metadata = MetaData()


class Moment(TypeDecorator[Millis]):
    """Milliseconds since 1970 in the code, a UTC timestamp in the table: in SQLite as text that sorts by time."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(String(26) if dialect.name == "sqlite" else self.impl_instance)

    def process_bind_param(self, value: Millis | None, dialect: Dialect) -> datetime | str | None:
        if value is None:
            return None
        return _as_text(value) if dialect.name == "sqlite" else as_datetime(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Millis | None:
        if value is None:
            return None
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return int(aware.timestamp() * 1000 + 0.5)


@lru_cache(maxsize=1_000)  # the rows of a batch share their moments
def _as_text(moment: Millis) -> str:
    return as_datetime(moment).replace(tzinfo=None).isoformat(" ", "microseconds")


# Keys that every process must have the same.
secrets = Table(
    "secrets",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

# Keys with a lifetime, where Redis does not keep them.
keys = Table(
    "kept_keys",
    metadata,
    Column("name", String(512), primary_key=True),
    Column("value", Text, nullable=False),
    Column("expires_at", Moment),
    Index("key_by_end", "expires_at"),
)

# ── Who may do what, and who did ──────────────────────────────────────────────────────────────────────────────────

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", String(32), primary_key=True),  # the part of the key that is no secret
    Column("name", String(128), nullable=False),
    Column("digest", String(64), nullable=False),  # of the secret, which is kept nowhere
    Column("old_digest", String(64)),  # of the secret before, which is good until then
    Column("old_until", Moment),
    Column("scopes", JSON, nullable=False),
    Column("is_test", Boolean, nullable=False),
    Column("created_by", String(160), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment),
    Column("last_used_at", Moment),
    Column("revoked_at", Moment),
)
Index(
    "api_key_in_use",
    api_keys.c.name,
    unique=True,
    sqlite_where=api_keys.c.revoked_at.is_(None),
    postgresql_where=api_keys.c.revoked_at.is_(None),
)

sessions = Table(
    "sessions",
    metadata,
    Column("session_id", String(64), primary_key=True),  # a digest of what the cookie says
    Column("key_id", String(32)),  # whose it is; none for the admin's
    Column("address", String(64)),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Index("session_by_end", "expires_at"),
)

audit = Table(
    "audit",
    metadata,
    Column("entry_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("moment", Moment, nullable=False),
    Column("who", String(160), nullable=False),
    Column("address", String(255)),
    Column("action", String(255), nullable=False),
    Column("target", String(512)),
    Column("before", Text),
    Column("after", Text),
    Column("outcome", String(255)),  # none: the process ended before it was known
    Index("audit_by_time", "moment", "entry_id"),
    Index("audit_by_who", "who", "entry_id"),
    sqlite_autoincrement=True,
)
