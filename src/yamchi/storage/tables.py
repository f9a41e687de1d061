"""The tables of the core, and how a moment is kept in any table. Times are UTC in the database and milliseconds in the code."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Column, DateTime, Dialect, LargeBinary, MetaData, String, Table, TypeDecorator
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
