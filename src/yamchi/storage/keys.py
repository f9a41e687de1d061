"""Keys with a lifetime: small values by name that are gone when their time is over.

They lie in Redis where that is the engine, under the very names given, so that other programs see them; else in a table.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from sqlalchemy import BigInteger, Connection, Text, case, delete, or_, select

from yamchi.clock import Clock, Millis, Span, to_millis
from yamchi.errors import InvalidJob
from yamchi.storage.database import Database
from yamchi.storage.tables import keys as table

LONGEST_NAME = 512
PRUNE_EVERY: Millis = 60_000
AT_ONCE = 500
"""Names in one statement, which the smallest database takes."""


class Keys(Protocol):
    """Where keys are kept. A lifetime is a span ("48h", a timedelta, seconds), or None for ever."""

    async def get(self, name: str) -> str | None:
        """The value; None if there is none, or its time is over."""

    async def set(self, name: str, value: str, ttl: Span | None = None) -> None:
        """Keep a value, in place of any before."""

    async def delete(self, name: str, value: str | None = None) -> bool:
        """Forget a value, or only this one; whether there was one."""

    async def incr(self, name: str, ttl: Span | None = None, by: int = 1) -> int:
        """Count up; the new number. The lifetime begins with the first count, and is not prolonged by others."""

    async def close(self) -> None:
        """Let go of connections."""


class TableKeys:
    """Keys in a table. What has run out is deleted beside later writes, at most once a minute."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._pruned_at: Millis = 0

    async def get(self, name: str) -> str | None:
        query = select(table.c.value).where(table.c.name == name, self._lasts())
        value: str | None = await self._database.value(query)
        return value

    async def get_some(self, names: Iterable[str]) -> dict[str, str]:
        """The values of those that are there."""
        wanted, found = tuple(names), dict[str, str]()
        for start in range(0, len(wanted), AT_ONCE):
            some = table.c.name.in_(wanted[start : start + AT_ONCE])
            rows = await self._database.rows(select(table.c.name, table.c.value).where(some, self._lasts()))
            found |= {row.name: row.value for row in rows}
        return found

    async def set(self, name: str, value: str, ttl: Span | None = None) -> None:
        row = {"name": check_name(name), "value": value, "expires_at": self._end(ttl)}
        await self._write(self._database.upsert(table, ["name"], ["value", "expires_at"]).values(row))

    async def delete(self, name: str, value: str | None = None) -> bool:
        gone = delete(table).where(table.c.name == name, self._lasts())
        if value is not None:
            gone = gone.where(table.c.value == value)
        return await self._database.execute(gone) > 0

    async def incr(self, name: str, ttl: Span | None = None, by: int = 1) -> int:
        row = {"name": check_name(name), "value": str(by), "expires_at": self._end(ttl)}
        new = self._database.insert(table).values(row)
        is_there = self._lasts()
        more = (table.c.value.cast(BigInteger) + by).cast(Text)
        counted = new.on_conflict_do_update(
            index_elements=["name"],
            set_={
                "value": case((is_there, more), else_=new.excluded.value),
                "expires_at": case((is_there, table.c.expires_at), else_=new.excluded.expires_at),
            },
        ).returning(table.c.value)
        return int(await self._write(counted))

    async def close(self) -> None:
        """The database is the application's."""

    async def _write(self, statement: Any) -> Any:
        now = self._clock.now()
        is_time_to_prune = now - self._pruned_at >= PRUNE_EVERY
        if is_time_to_prune:
            self._pruned_at = now

        def write(connection: Connection) -> Any:
            if is_time_to_prune:
                connection.execute(delete(table).where(table.c.expires_at <= now))
            answer = connection.execute(statement)
            return answer.scalar() if answer.returns_rows else None

        return await self._database.write(write)

    def _lasts(self) -> Any:
        return or_(table.c.expires_at.is_(None), table.c.expires_at > self._clock.now())

    def _end(self, ttl: Span | None) -> Millis | None:
        return None if ttl is None else self._clock.now() + lifetime(ttl)


def check_name(name: str) -> str:
    if not 0 < len(name) <= LONGEST_NAME or "\x00" in name:
        raise InvalidJob(f"A key's name has 1 to {LONGEST_NAME} characters, and this one has {len(name)}.")
    return name


def lifetime(ttl: Span) -> Millis:
    span = to_millis(ttl)
    if span <= 0:
        raise InvalidJob(f"A lifetime must be more than nothing, not {ttl!r}.")
    return span
