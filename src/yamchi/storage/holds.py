"""Holds: of many processes one at a time works on a row. The row says which (`holder`) and until when (`held_until`).

A hold that is not renewed runs out, so that what a dead process held is taken up by another. Who writes as the holder says so in
the statement (`is_mine`), and changes nothing if the hold is gone.
"""

import secrets
from typing import Any

import structlog
from sqlalchemy import Column, ColumnElement, Connection, Row, or_, select, update

from yamchi.clock import Clock, Millis
from yamchi.errors import EngineError
from yamchi.storage.database import Database
from yamchi.storage.upsert import insert_new

HOLD: Millis = 30_000

log = structlog.get_logger("yamchi.holds")


class Holds:
    """This process's holds on the rows of a table that has the columns `holder` and `held_until`."""

    def __init__(self, database: Database, key: Column[str], clock: Clock, length: Millis = HOLD) -> None:
        self._database = database
        self._key = key
        self._table = key.table
        self._clock = clock
        self._length = length
        self.name = secrets.token_hex(8)
        self._mine: set[str] = set()

    @property
    def is_mine(self) -> ColumnElement[bool]:
        """The condition of a statement that only the holder may run."""
        return self._table.c.holder == self.name

    def has(self, key: str) -> bool:
        """Whether this process held the row at its last look."""
        return key in self._mine

    def renewal(self) -> dict[str, Any]:
        """The values that renew a hold, for an update that `is_mine` guards."""
        return {"holder": self.name, "held_until": self._clock.now() + self._length}

    async def take(
        self, key: str, *conditions: ColumnElement[bool], holder: str | None, held_until: Millis | None
    ) -> bool:
        """Take the hold of a row, given its holder when it was read. Costs nothing while the hold lasts long enough."""
        now = self._clock.now()
        if self.has(key) and holder == self.name and (held_until or 0) > now + self._length // 2:
            return True
        table = self._table
        is_free = or_(table.c.holder.is_(None), self.is_mine, table.c.held_until <= now)
        claim = update(table).where(self._key == key, is_free, *conditions).values(self.renewal())
        if not await self._database.execute(claim):
            self._mine.discard(key)
            return False
        self._mine.add(key)
        return True

    async def take_named(self, key: str) -> bool:
        """Take the hold of the row with this name, and make it if there is none: for work that one process does at a time."""
        table = self._table
        query = select(table).where(self._key == key)

        def look(connection: Connection) -> Row[Any]:
            insert_new(connection, table, [{self._key.name: key}])
            return connection.execute(query).one()

        row = await self._database.write(look)
        return await self.take(key, holder=row.holder, held_until=row.held_until)

    def forget(self, key: str) -> None:
        """Note that a statement of the caller has released the row."""
        self._mine.discard(key)

    async def release(self) -> None:
        """Release all holds, so that other processes need not wait until they expire."""
        gone = update(self._table).where(self.is_mine).values(holder=None, held_until=None)
        self._mine.clear()
        try:
            await self._database.execute(gone)
        except EngineError as error:
            log.debug("the holds could not be released; they expire by themselves", error=str(error))
