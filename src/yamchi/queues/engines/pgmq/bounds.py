"""Where a scan of a queue begins, so that it does not walk over the dead rows below.

PostgreSQL can't remove a dead row while any transaction is open that might still see it: a `pg_dump`, an analyst, a
forgotten session. A claim that began at the lowest `vt` would walk over every job done since then, and each claim again.
So a process remembers how far it has come, in each band of priority for itself, and begins there.

A bound only says where nothing was left *when it was set*. What turns up below it later (a transaction that wrote early
and committed late, a job that was put back, another program's message with an old `vt`) is told by a trigger when it is
committed, with its place (`schema`), and the bound goes back to there. What no trigger tells (a claim that was rolled back, a
table that is somebody else's) is found by a scan of all that lies below the bounds: every `SCAN_SECONDS` while there is
work or a wake-up, or less often where the dead rows are so many that scans would take more than their share of time.
"""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from yamchi.clock import Millis
from yamchi.queues.engines.pgmq.rows import STEP
from yamchi.storage.sweeping import FULL_SWEEP_FACTOR, Sweep

Micros = int
"""Microseconds since 1970 of the database's clock, as exact as `vt` itself."""

BANDS = 11
"""Priorities 10 to 0, in the order they are claimed."""

SCAN_SECONDS = 0.2
"""What lies below the bounds is scanned this often."""

LATE: Micros = 100_000
"""An empty band's bound stays so far behind, because an insert shows only when it is committed."""

MANY_PUT = 4_096
"""So many places are remembered where something was put; a scan that missed more of them moves no bound."""

LOCKED_RETRY_SECONDS = 0.05
"""Between two tries to claim what somebody else has locked."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was put, perhaps below the bounds; unprepared if it needs an id or its place before it can be claimed."""

    vt: Micros
    is_unprepared: bool = False


@dataclass(frozen=True, slots=True)
class Scan:
    """A scan under way: its number, how often something had been put below before it, and where it begins."""

    number: int
    put: int
    lows: tuple[Micros | None, ...]
    highs: tuple[Micros | None, ...]
    prepared: Micros | None


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What a scan saw in one snapshot: the first due message of each band, and the first unprepared one."""

    at: Micros
    firsts: Sequence[Micros | None]
    unprepared: Micros | None


class Bounds:
    """How far one process has come in one queue. Seconds are those of a clock that never goes back."""

    def __init__(self, now: Millis) -> None:
        # A band is what is due within five years of now, moved back by its priority. The ends are only for us:
        # the order of claims is that of `vt`, whichever band it is in.
        ends = [(now - priority * STEP + STEP // 2) * 1_000 for priority in range(BANDS - 1, 0, -1)]
        self._inner = ends
        self._begins: tuple[Micros | None, ...] = (None, *ends)
        self._ends: tuple[Micros | None, ...] = (*ends, None)
        self._lows = list(self._begins)
        self._prepared: Micros | None = None
        self._scans = self._newest = self._put = 0
        self._puts: deque[Place] = deque(maxlen=MANY_PUT)
        self._next_full = self._began = 0.0
        self._is_scanning = self._may_be_below = False
        self.pause = 0.0
        """Before the next try in seconds: all that is due may be locked by somebody who takes their time."""

    # ── The scan of every exchange ────────────────────────────────────────────────────────────────────────────────

    def begin(self, *, was_woken: bool = False) -> Scan:
        """From the bounds on. `was_woken` says that something was written since the last scan, who knows where."""
        self._may_be_below |= was_woken
        self._scans += 1
        return Scan(self._scans, self._put, tuple(self._lows), self._ends, self._prepared)

    def finish(self, scan: Scan, seen: ScanResult, taken: Sequence[Micros]) -> None:
        """Move on to what a scan saw; `taken` are the times of the messages it claimed."""
        missed = self._put - scan.put
        if missed > len(self._puts) or scan.number < self._newest:
            return
        self._newest = scan.number
        firsts_taken = self._firsts(taken)
        for band, (first, mine) in enumerate(zip(seen.firsts, firsts_taken, strict=True)):
            self._move(band, seen.at, first, mine)
        self._prepared = seen.at - LATE if seen.unprepared is None else seen.unprepared
        for place in islice(reversed(self._puts), missed):
            self._go_back(place)  # it may have come after the scan's snapshot
        self.pause = (
            LOCKED_RETRY_SECONDS
            if any(first is not None for first in seen.firsts) and not any(firsts_taken)
            else 0.0
        )

    def _firsts(self, taken: Sequence[Micros]) -> list[Micros | None]:
        """The first in each band."""
        firsts: list[Micros | None] = [None] * BANDS
        if taken:
            first, last = min(taken), max(taken)
            is_one_band = self._band(first) == self._band(last)  # nearly always
            for vt in [first] if is_one_band else sorted(taken, reverse=True):
                firsts[self._band(vt)] = vt
        return firsts

    def _move(self, band: int, at: Micros, first: Micros | None, mine: Micros | None) -> None:
        if first is not None and (mine is None or first < mine):
            self._may_be_below = True  # somebody has it locked, and may let go of it
        reached = mine if mine is not None else first
        if reached is None:
            reached = at - LATE - (BANDS - 1 - band) * STEP * 1_000
        begin, end = self._begins[band], self._ends[band]
        reached = reached if begin is None else max(begin, reached)
        self._lows[band] = reached if end is None else min(end, reached)

    def lower(self, vt: Micros, *, is_unprepared: bool = False) -> None:
        """A message was put at this time by ourselves or somebody else, or found there."""
        place = Place(vt, is_unprepared)
        self._put += 1
        self._puts.append(place)
        self._go_back(place)

    def _go_back(self, place: Place) -> None:
        band = self._band(place.vt)
        low = self._lows[band]
        if low is not None and place.vt < low:
            self._lows[band] = place.vt
        if place.is_unprepared and self._prepared is not None and place.vt < self._prepared:
            self._prepared = place.vt

    # ── The full scan ─────────────────────────────────────────────────────────────────────────────────────────────

    def is_time(self, now: float) -> bool:
        return bool(self._newest) and not self._is_scanning and now >= self._next_full

    def begin_below(self, now: float) -> Scan | None:
        """At everything below the bounds, if it is time and no such scan is under way."""
        if not self.is_time(now):
            return None
        self._is_scanning, self._may_be_below = True, False
        self._began, self._next_full = now, now + SCAN_SECONDS
        return Scan(0, 0, self._begins, tuple(self._lows), self._prepared)

    def finish_below(self, seen: ScanResult | None, now: float) -> bool:
        """Go back to what a full scan saw, None if it failed; whether it saw anything."""
        self._is_scanning = False
        self._next_full = max(self._next_full, now + FULL_SWEEP_FACTOR * (now - self._began))
        found = [] if seen is None else [first for first in seen.firsts if first is not None]
        for first in found:
            self.lower(first)
        if seen is not None and seen.unprepared is not None:
            self.lower(seen.unprepared, is_unprepared=True)
        has_found = bool(found) or (seen is not None and seen.unprepared is not None)
        self._may_be_below |= seen is None or has_found
        return has_found

    def scan_soon(self) -> None:
        """Something may have been put below without a word."""
        self._next_full, self._may_be_below = 0.0, True

    def scan_in(self, now: float) -> float:
        """In how many seconds a full scan is due even if nobody claims; never if there was no news since the last."""
        return max(self._next_full - now, 0.0) if self._may_be_below else inf

    @property
    def prepared(self) -> Micros | None:
        return self._prepared

    def _band(self, vt: Micros) -> int:
        return bisect_right(self._inner, vt)


@dataclass(slots=True)
class Position:
    """Everything one process remembers of how far it has come in a queue."""

    bounds: Bounds
    stalled: Sweep = field(default_factory=Sweep)
    adopted: Sweep = field(default_factory=Sweep)
    trimmed: defaultdict[str, Sweep] = field(default_factory=lambda: defaultdict(Sweep))
    """By state, in the order of `ended`."""
