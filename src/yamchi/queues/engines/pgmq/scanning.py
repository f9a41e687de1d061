"""Scanning for what is due: the SQL of scans from the bounds on and below them, and who runs the ones below."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from math import inf
from typing import Any, Protocol, TypeVar

from yamchi.clock import Clock
from yamchi.errors import EngineError
from yamchi.queues.engines.pgmq.bounds import BANDS, Bounds, Micros, Place, Position, Scan, ScanResult
from yamchi.queues.engines.pgmq.connections import Connection
from yamchi.queues.engines.pgmq.rows import NOW, given_instant, instant, instants, micros
from yamchi.queues.engines.pgmq.schema import UNPREPARED
from yamchi.queues.engines.pgmq.tables import Tables

T = TypeVar("T")

LONGEST_WAIT_SECONDS = 10
"""Nobody waits for longer without asking again: the ends of leases lie beyond."""

_BANDS = f"""
(
    SELECT n, {given_instant("low", "-infinity")} AS low, {given_instant("high", "infinity")} AS high
    FROM unnest(%(lows)s::bigint[], %(highs)s::bigint[]) WITH ORDINALITY AS given(low, high, n)
) AS bands
"""

# The first due message of each band. Messages are picked from there on, so that what is dead before it is walked over once.
SEEING = f"""
seen AS MATERIALIZED (
    SELECT n, high, (
        SELECT vt FROM {{q}} WHERE vt >= low AND vt < high AND vt <= statement_timestamp() AND last_read_at IS NULL
        ORDER BY vt LIMIT 1) AS first
    FROM {_BANDS}
)"""


def seen(settled: str = "NULL", trimmed: str = "NULL::bigint") -> str:
    """A row without a number of reads: what was trimmed, seen and settled, when, and the first message that waits to be prepared."""
    return f"""
SELECT {trimmed}, NULL::integer, (SELECT string_agg(n || ' ' || {micros("first")}, ',') FROM seen), {settled},
    {micros(NOW)}, (
        SELECT {micros("vt")} FROM {{q}} WHERE vt >= %(prepared)s::timestamptz
        AND vt < %(below)s::timestamptz AND vt <= statement_timestamp() AND {UNPREPARED}
        ORDER BY vt LIMIT 1)
"""


_SCAN = f"WITH {SEEING} {seen()}"

# Due since when makes no difference: another program's message may be due since -infinity, from which nothing is subtracted.
_NEXT_DUE = f"""
SELECT extract(epoch FROM min(greatest(vt, statement_timestamp())) - statement_timestamp()) * 1000 FROM {_BANDS}, LATERAL (
    SELECT vt FROM {{q}} WHERE vt >= low AND vt < high AND last_read_at IS NULL
    AND vt <= statement_timestamp() + %(within)s * interval '1 second' AND NOT (SELECT paused FROM yamchi.queues WHERE name = %(queue)s)
    ORDER BY vt LIMIT 1) AS first
"""


@lru_cache(maxsize=64)
def _highs(highs: tuple[Micros | None, ...]) -> str:
    """They are the same for every scan from the bounds on."""
    return instants(highs)


def span(scan: Scan) -> dict[str, Any]:
    """A scan's range, as the SQL names it."""
    return {
        "lows": instants(scan.lows),
        "highs": _highs(scan.highs),
        "prepared": instant(scan.prepared),
        "below": "infinity",
    }


def read_scan(row: Sequence[Any]) -> ScanResult:
    firsts: list[Micros | None] = [None] * BANDS
    for band in row[2].split(",") if row[2] else ():
        number, first = band.split()
        firsts[int(number) - 1] = int(first)
    return ScanResult(row[4], firsts, row[5])


async def scan_below(db: Connection, tables: Tables, scan: Scan) -> ScanResult:
    """The first of what is due below the bounds."""
    below = span(scan) | {"prepared": "-infinity", "below": instant(scan.prepared)}
    rows = await (await db.execute(tables.sql(_SCAN), below)).fetchall()
    return read_scan(rows[0])


async def next_due(db: Connection, tables: Tables, scan: Scan) -> float | None:
    """In how many seconds the next job is due, if soon; 0 or less if one is."""
    given = {"queue": tables.queue, "within": LONGEST_WAIT_SECONDS, **span(scan)}
    row = await (await db.execute(tables.sql(_NEXT_DUE), given)).fetchone()
    return None if row is None or row[0] is None else float(row[0]) / 1000


class Do(Protocol):
    """Runs a piece of work on a queue's tables."""

    def __call__(self, queue: str, work: Callable[[Connection, Tables], Awaitable[T]]) -> Awaitable[T]: ...


class Scanner:
    """Remembers how far this process has come in each queue, and scans below that in time."""

    def __init__(self, do: Do, clock: Clock) -> None:
        self._do = do
        self._clock = clock
        self._positions: dict[str, Position] = {}
        self._scans: dict[str, asyncio.Task[None]] = {}

    def of(self, queue: str) -> Position:
        position = self._positions.get(queue)
        if position is None:
            position = self._positions[queue] = Position(Bounds(self._clock.now()))
        return position

    def forget(self, queue: str) -> None:
        """The queue was dropped, and begins anew."""
        self._positions.pop(queue, None)

    def go_back(self, queue: str, places: Sequence[Place]) -> None:
        """Something was put there, and is committed now."""
        if position := self._positions.get(queue):
            for place in places:
                position.bounds.lower(place.vt, is_unprepared=place.is_unprepared)

    def scan_soon(self) -> None:
        """For a while nobody heard what was put where."""
        for position in self._positions.values():
            position.bounds.scan_soon()

    async def close(self) -> None:
        scans, self._scans = self._scans, {}
        self._positions.clear()
        here = asyncio.get_running_loop()
        for scan in (mine := [scan for scan in scans.values() if scan.get_loop() is here]):
            scan.cancel()
        await asyncio.gather(*mine, return_exceptions=True)

    def scan(self, queue: str) -> None:
        """Scan below the bounds if it is time, beside the exchange that asks for it."""
        if self.of(queue).bounds.is_time(asyncio.get_running_loop().time()):
            self._scans[queue] = asyncio.create_task(self._scan_unless_away(queue), name=f"pgmq-scan-{queue}")

    async def _scan_unless_away(self, queue: str) -> None:
        with suppress(
            EngineError
        ):  # the exchanges say what is wrong with the server, and begin the next scan
            await self.scan_below(queue)

    async def scan_below(self, queue: str) -> bool:
        """Find what came to lie below the bounds, if it is time; whether there was anything."""
        bounds = self.of(queue).bounds
        scan = bounds.begin_below(asyncio.get_running_loop().time())
        if scan is None:
            return False
        seen = None
        try:
            seen = await self._do(queue, lambda db, tables: scan_below(db, tables, scan))
        finally:
            has_found = bounds.finish_below(seen, asyncio.get_running_loop().time())
        return has_found

    async def wait(self, queue: str, wakeup: asyncio.Event) -> None:
        """Return when something is due, or on a wake-up; there was none for what came before anybody listened."""
        while not await self._is_due(queue, wakeup):
            if await self.scan_below(queue):
                return

    async def _is_due(self, queue: str, wakeup: asyncio.Event) -> bool:
        """Wait for a wake-up or a moment; False if it is time for a scan below the bounds instead."""
        bounds = self.of(queue).bounds
        due_in = await self._do(queue, lambda db, tables: next_due(db, tables, bounds.begin()))
        due_in = inf if due_in is None else max(due_in, bounds.pause)
        scan_in = bounds.scan_in(asyncio.get_running_loop().time())
        soonest = min(due_in, scan_in)
        if due_in <= 0:
            return True
        try:
            async with asyncio.timeout(soonest if soonest < inf else None):
                await wakeup.wait()
        except TimeoutError:
            return due_in <= scan_in
        return True
