"""Looking for what is due: the SQL of looks from the bounds on and below them, and who makes the ones below."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from math import inf
from typing import Any, Protocol, TypeVar

import orjson

from yamchi.clock import Clock
from yamchi.errors import EngineError
from yamchi.queues.engines.pgmq.bounds import Bounds, Look, Micros, Place, Reach, Seen
from yamchi.queues.engines.pgmq.connections import Connection
from yamchi.queues.engines.pgmq.rows import instant, instants, micros
from yamchi.queues.engines.pgmq.schema import UNTENDED
from yamchi.queues.engines.pgmq.tables import Tables

T = TypeVar("T")

SOON = 10
"""Nobody waits for longer without asking again, in seconds: the ends of leases lie beyond."""

_BANDS = "unnest(%(lows)s::timestamptz[], %(highs)s::timestamptz[]) WITH ORDINALITY AS bands(low, high, n)"

# The first due message of each band. Messages are picked from there on, so that what is dead before it is walked over once.
SEEING = f"""
seen AS MATERIALIZED (
    SELECT n, high, (
        SELECT vt FROM {{q}} WHERE vt >= low AND vt < high AND vt <= statement_timestamp() AND last_read_at IS NULL
        ORDER BY vt LIMIT 1) AS first
    FROM {_BANDS}
)"""

# A row without a number: what was seen, when, and the first message that waits to be tended.
SEEN = f"""
SELECT NULL::bigint, NULL, NULL::integer, (SELECT json_agg({micros("first")} ORDER BY n)::text FROM seen), NULL,
    {micros("statement_timestamp()")}, (
        SELECT {micros("vt")} FROM {{q}} WHERE vt >= %(tended)s::timestamptz
        AND vt < %(below)s::timestamptz AND vt <= statement_timestamp() AND {UNTENDED}
        ORDER BY vt LIMIT 1)
"""
_LOOK = f"WITH {SEEING} {SEEN}"

_NEXT_DUE = f"""
SELECT extract(epoch FROM min(vt) - statement_timestamp()) * 1000 FROM {_BANDS}, LATERAL (
    SELECT vt FROM {{q}} WHERE vt >= low AND vt < high AND last_read_at IS NULL
    AND vt <= statement_timestamp() + %(within)s * interval '1 second' AND NOT (SELECT paused FROM yamchi.queues WHERE name = %(queue)s)
    ORDER BY vt LIMIT 1) AS first
"""


@lru_cache(maxsize=64)
def _highs(highs: tuple[Micros | None, ...]) -> str:
    """They are the same for every look from the bounds on."""
    return instants(highs, "infinity")


def span(look: Look) -> dict[str, Any]:
    """A look's range, as the SQL names it."""
    return {
        "lows": instants(look.lows, "-infinity"),
        "highs": _highs(look.highs),
        "tended": instant(look.tended),
        "below": "infinity",
    }


def read_seen(row: Sequence[Any]) -> Seen:
    return Seen(row[5], orjson.loads(row[3]), row[6])


async def look_below(db: Connection, tables: Tables, look: Look) -> Seen:
    """The first of what is due below the bounds."""
    below = span(look) | {"tended": "-infinity", "below": instant(look.tended)}
    rows = await (await db.execute(tables.sql(_LOOK), below)).fetchall()
    return read_seen(rows[0])


async def next_due(db: Connection, tables: Tables, look: Look) -> float | None:
    """In how many seconds the next job is due, if soon; 0 or less if one is."""
    given = {"queue": tables.queue, "within": SOON, **span(look)}
    row = await (await db.execute(tables.sql(_NEXT_DUE), given)).fetchone()
    return None if row is None or row[0] is None else float(row[0]) / 1000


class Do(Protocol):
    """Runs a piece of work on a queue's tables."""

    def __call__(self, queue: str, work: Callable[[Connection, Tables], Awaitable[T]]) -> Awaitable[T]: ...


class Lookout:
    """Remembers how far this process has come in each queue, and looks below that in time."""

    def __init__(self, do: Do, clock: Clock) -> None:
        self._do = do
        self._clock = clock
        self._reach: dict[str, Reach] = {}
        self._looks: dict[str, asyncio.Task[None]] = {}

    def of(self, queue: str) -> Reach:
        reach = self._reach.get(queue)
        if reach is None:
            reach = self._reach[queue] = Reach(Bounds(self._clock.now()))
        return reach

    def forget(self, queue: str) -> None:
        """The queue was dropped, and begins anew."""
        self._reach.pop(queue, None)

    def go_back(self, queue: str, places: Sequence[Place]) -> None:
        """Something was put there, and is committed now."""
        if reach := self._reach.get(queue):
            for place in places:
                reach.bounds.lower(place.vt, is_untended=place.is_untended)

    def look_soon(self) -> None:
        """For a while nobody heard what was put where."""
        for reach in self._reach.values():
            reach.bounds.look_soon()

    async def close(self) -> None:
        looks, self._looks = self._looks, {}
        self._reach.clear()
        here = asyncio.get_running_loop()
        for look in (mine := [look for look in looks.values() if look.get_loop() is here]):
            look.cancel()
        await asyncio.gather(*mine, return_exceptions=True)

    def look(self, queue: str) -> None:
        """Look below the bounds if it is time, beside the exchange that asks for it."""
        if self.of(queue).bounds.is_time(asyncio.get_running_loop().time()):
            self._looks[queue] = asyncio.create_task(self._look_unless_away(queue), name=f"pgmq-look-{queue}")

    async def _look_unless_away(self, queue: str) -> None:
        with suppress(
            EngineError
        ):  # the exchanges say what is wrong with the server, and begin the next look
            await self.look_below(queue)

    async def look_below(self, queue: str) -> bool:
        """Find what came to lie below the bounds, if it is time; whether there was anything."""
        bounds = self.of(queue).bounds
        look = bounds.begin_below(asyncio.get_running_loop().time())
        if look is None:
            return False
        seen = None
        try:
            seen = await self._do(queue, lambda db, tables: look_below(db, tables, look))
        finally:
            has_found = bounds.finish_below(seen, asyncio.get_running_loop().time())
        return has_found

    async def wait(self, queue: str, wakeup: asyncio.Event) -> None:
        """Return when something is due, or on a wake-up; there was none for what came before anybody listened."""
        while not await self._is_due(queue, wakeup):
            if await self.look_below(queue):
                return

    async def _is_due(self, queue: str, wakeup: asyncio.Event) -> bool:
        """Wait for a wake-up or a moment; False if it is time for a look below the bounds instead."""
        bounds = self.of(queue).bounds
        due_in = await self._do(queue, lambda db, tables: next_due(db, tables, bounds.begin()))
        due_in = inf if due_in is None else max(due_in, bounds.pause)
        look_in = bounds.look_in(asyncio.get_running_loop().time())
        soonest = min(due_in, look_in)
        if due_in <= 0:
            return True
        try:
            async with asyncio.timeout(soonest if soonest < inf else None):
                await wakeup.wait()
        except TimeoutError:
            return due_in <= look_in
        return True
