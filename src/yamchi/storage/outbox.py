"""The outbox: jobs are planned in a table before they are queued, so that a crash anywhere loses and doubles nothing.

`store` writes the rows in the caller's own transaction; then the caller queues what they lead to; then `mark` says that this is
done. Every step may be repeated, because ids are derived. A row that stayed `PENDING` was interrupted: `watch` finishes it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import structlog
from sqlalchemy import Column, Connection, Select, bindparam, select, update

from yamchi.clock import Clock, Millis
from yamchi.errors import EngineError, EngineUnavailable
from yamchi.storage.bulkinsert import write_rows
from yamchi.storage.database import Database
from yamchi.storage.sweeping import Sweep

PENDING, DONE = "accepted", "enqueued"
"""The states of a row: not queued yet, and queued."""

SWEEP_AFTER: Millis = 10_000
"""A row that has been pending for this long was interrupted."""

SWEPT_AT_ONCE = 200

LATE: Millis = 60_000
"""A sweep that does not begin at the beginning goes back this far: a row may be committed long after it was written."""

MOST_TRIES = 5
"""After so many tries a row that fails for an unforeseen reason is given up."""

Finish = Callable[[str], Awaitable[object]]
"""Queues the jobs of a pending row, from what is stored, and marks the row."""
GiveUp = Callable[[str, str], Awaitable[None]]
"""Ends a row that can't be finished, given its key and why."""

log = structlog.get_logger("yamchi.outbox")


class Outbox:
    """The rows of a table with a key, a state and the moment they came in. `what` names them in logs."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        key: Column[str],
        state: Column[str],
        since: Column[Millis],
        finish: Finish,
        give_up: GiveUp,
        what: str,
    ) -> None:
        self._database = database
        self._clock = clock
        self._key, self._state, self._since = key, state, since
        self._finish, self._give_up = finish, give_up
        self._what = what
        self._table = key.table
        self._new = database.insert(self._table).on_conflict_do_nothing()
        those = key.in_(bindparam("keys", expanding=True))
        self._mark = update(self._table).where(those).values({state: DONE})
        self._sweep = Sweep()
        self._tries: Counter[str] = Counter()

    def store(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> list[bool]:
        """Write these rows, all with the same columns, as pending. Which of them are new.

        All of them nearly always, and then it is one statement; else those known are left out.
        """
        pending = [{**row, self._state.name: PENDING} for row in rows]
        with connection.begin_nested() as attempt:
            if write_rows(connection, self._new, pending) == len(rows):
                return [True] * len(rows)
            attempt.rollback()
        keys = [row[self._key.name] for row in rows]
        taken = set(connection.execute(select(self._key).where(self._key.in_(keys))).scalars())
        fresh = []
        for key in keys:
            fresh.append(key not in taken)
            taken.add(key)
        new = [row for row, is_new in zip(pending, fresh, strict=True) if is_new]
        if new and write_rows(connection, self._new, new) != len(new):
            raise EngineError(
                f"The same {self._what} were accepted elsewhere at this moment: send them again."
            )
        return fresh

    async def mark(self, keys: Sequence[str]) -> None:
        """Note that all jobs of these rows are queued."""
        if keys:
            await self._database.write(
                lambda connection: connection.execute(self._mark, {"keys": keys}).rowcount
            )

    async def sweep(self) -> int:
        """Finish rows that a crash interrupted; how many there were."""
        before, time = self._clock.now() - SWEEP_AFTER, asyncio.get_running_loop().time
        began, since = time(), self._sweep.begin(time())
        query = self.interrupted(before, since)
        found = await self._database.column(query)
        self._sweep.finish(since, None if found else before - LATE, began, time())
        for key in found:
            await self._finish_or_give_up(key)
        return len(found)

    def interrupted(self, before: Millis, since: Millis | None) -> Select[str]:
        """The keys of those that have been pending since before a moment, oldest first; of all, or since another."""
        query = select(self._key).where((self._state == PENDING) & (self._since <= before))
        if since is not None:
            query = query.where(self._since >= since)
        return query.order_by(self._since).limit(SWEPT_AT_ONCE)

    async def watch(self) -> None:
        """Sweep for ever; any number of processes may."""
        while True:
            try:
                if swept := await self.sweep():
                    log.warning(f"finished {swept} {self._what} that had been interrupted")
            except EngineError as error:
                log.warning(f"could not look for interrupted {self._what}; trying again", error=str(error))
            await self._clock.sleep(SWEEP_AFTER // 2)

    async def _finish_or_give_up(self, key: str) -> None:
        """Finish a row. One that fails is tried a few times, and does not hold up the others."""
        try:
            await self._finish(key)
        except EngineUnavailable:
            raise
        except Exception as error:
            self._tries[key] += 1
            log.exception(f"{key} of the interrupted {self._what} could not be finished; trying again")
            if self._tries[key] < MOST_TRIES:
                return
            await self._give_up(key, f"It could not be queued: {error}")
        self._tries.pop(key, None)
