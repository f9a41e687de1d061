"""Circuits: when a provider is down, its jobs wait and pay no attempt, and one probe at a time looks whether it is back.

The state is a row in the database, so all worker processes share it: a worker that meets an outage opens the circuit, and
when the wait is over one message is the probe. A process reads the table at most twice a second.

Where the trouble may be that of one source (one browser's push endpoint, one chat), only that source waits: the circuit
opens when several different sources have failed with no success in between.
"""

import random
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from typing import Any

import structlog
from sqlalchemy import Connection, Row, case, func, literal, select, update

from yamchi.clock import Clock, Millis, describe_span, to_millis
from yamchi.errors import Outage
from yamchi.notifications.tables import circuits
from yamchi.observe.logging import mask
from yamchi.queues.records import storable
from yamchi.queues.verdicts import LONGEST_SENTENCE
from yamchi.storage.caching import CachedRead
from yamchi.storage.database import Database
from yamchi.storage.tables import Moment

LONGEST_NAME = 64

log = structlog.get_logger("yamchi.notifications")

SHORTEST_WAIT: Millis = 1_000
LONGEST_WAIT: Millis = 15_000
PROBE_TIMEOUT: Millis = 5_000
"""How long a probe may take before another may try."""

MAX_AGE: Millis = 500
"""How old the known state of the circuits may be."""

SOURCES_TO_OPEN = 3
"""So many different sources have to fail before the circuit opens."""

LONGEST_SOURCE_WAIT: Millis = 300_000
"""How long one failing source waits at most, unless its provider asks for more."""

MOST_SOURCES = 10_000
"""Failing sources that a process remembers, the latest ones."""


@dataclass(frozen=True, slots=True)
class Circuit:
    """The state of one provider: open while `retry_at` is set."""

    name: str
    failures: int = 0
    opened_at: Millis | None = None
    retry_at: Millis | None = None
    reason: str | None = None

    @property
    def is_open(self) -> bool:
        return self.retry_at is not None

    @property
    def waits(self) -> str:
        """One sentence for those who wait."""
        return f"{self.name} is down ({self.reason}); waiting for it to come back"

    def describe(self, now: Millis) -> str:
        """One sentence for people."""
        if not self.is_open:
            return "works"
        since = describe_span(now - (self.opened_at or now))
        return f"down for {since} ({self.failures} failures): {self.reason}"


@dataclass(slots=True)
class FailingSource:
    """A source that failed while others may succeed."""

    failures: int = 0
    retry_at: Millis = 0
    failed_at: Millis = 0

    def waits_until(self, now: Millis) -> Millis:
        """When it may try again. After a clock was set back it may at once: what it says of the time means nothing then."""
        return self.retry_at if self.failed_at <= now else 0


@dataclass(slots=True)
class FailingSources:
    """The sources of a circuit that failed since the last success of anybody, and how long each of them is to wait."""

    waits: OrderedDict[tuple[str, str], FailingSource] = field(default_factory=OrderedDict)
    failed: dict[str, set[str]] = field(default_factory=dict)

    def note(self, name: str, source: str, now: Millis, asked: Millis) -> tuple[int, Millis]:
        """One more failure: how many different sources have failed by now, and when this one may try again."""
        failing = self.waits.pop((name, source), None) or FailingSource()
        if failing.waits_until(now) <= now:  # others that began with the one before tell nothing new
            wait = min(SHORTEST_WAIT * 2 ** min(failing.failures, 10), LONGEST_SOURCE_WAIT)
            failing = FailingSource(failing.failures + 1, now + max(wait, asked), now)
        self.waits[name, source] = failing
        while len(self.waits) > MOST_SOURCES:
            self.waits.popitem(last=False)
        if len(self.failed) > MOST_SOURCES:
            self.failed.clear()
        known = self.failed.setdefault(name, set())
        if len(known) < SOURCES_TO_OPEN:
            known.add(source)
        return len(known), failing.retry_at

    def waits_until(self, name: str, source: str | None, now: Millis) -> Millis:
        failing = self.waits.get((name, source)) if source and self.waits else None
        return failing.waits_until(now) if failing else 0

    def clear(self, name: str, source: str | None) -> None:
        """A message was accepted: the provider works."""
        if self.failed:
            self.failed.pop(name, None)
        if source and self.waits:
            self.waits.pop((name, source), None)


def circuit_name(channel: str, provider: str) -> str:
    """Such that the table can keep it: of a long one the beginning, and a digest of the whole."""
    name = f"{channel}:{provider}"
    if len(name) <= LONGEST_NAME:
        return name
    digest = sha256(name.encode()).hexdigest()[:16]
    return f"{name[: LONGEST_NAME - len(digest) - 1]}…{digest}"


class Circuits:
    """One circuit for each channel and provider."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._known: dict[str, Circuit] = {}
        self._view = CachedRead(self._read, clock, MAX_AGE)
        self._failing_sources = FailingSources()
        self._said_at: dict[str, Millis] = {}
        """When the log was last told that it opens: what began before tells nothing new there either."""
        opened = database.insert(circuits)
        self._open = opened.on_conflict_do_update(
            index_elements=["name"],
            set_={
                "failures": circuits.c.failures + 1,
                "opened_at": func.coalesce(circuits.c.opened_at, opened.excluded.opened_at),
                "retry_at": opened.excluded.retry_at,
                "reason": opened.excluded.reason,
            },
        )

    async def enter(self, name: str, source: str | None = None) -> None:
        """Pass if the circuit is closed, or as the probe when its wait is over; else an `Outage` says when to come back."""
        now = self._clock.now()
        if (source_waits_until := self._failing_sources.waits_until(name, source, now)) > now:
            raise _wait_of_source(name, source, source_waits_until, now)
        circuit = await self._state(name)
        if not circuit.is_open:
            return
        now = self._clock.now()
        if (circuit.retry_at or 0) <= now and await self._database.write(lambda c: self._win(c, name, now)):
            return
        circuit = await self._state(name, at_once=True)
        if circuit.is_open:
            raise self._wait(circuit, now)

    def _win(self, connection: Connection, name: str, now: Millis) -> bool:
        is_due = (circuits.c.retry_at <= now) | (circuits.c.opened_at > now)
        opened_at = case((circuits.c.opened_at > now, literal(now, Moment)), else_=circuits.c.opened_at)
        probing = update(circuits).where((circuits.c.name == name) & is_due)
        probing = probing.values(retry_at=now + PROBE_TIMEOUT, opened_at=opened_at)
        return connection.execute(probing).rowcount == 1

    def _wait(self, circuit: Circuit, now: Millis) -> Outage:
        # Spread, so that those who wait do not come back all at once.
        left = max((circuit.retry_at or now) - now, 0)
        spread = random.uniform(0, min(max(left, SHORTEST_WAIT), LONGEST_WAIT))
        span = timedelta(milliseconds=left + spread)
        return Outage(circuit.waits, retry_after=span, is_said=True)

    async def failed(self, name: str, error: Outage, began: Millis) -> Outage:
        """Open the circuit, or keep it open for longer; the outage as the job is to see it.

        A send that began before the circuit opened tells nothing new: a hundred that break at once are one failure.
        """
        now = self._clock.now()
        before = await self._state(name, at_once=True)
        if before.is_open and began <= (before.opened_at or 0):
            return self._wait(before, now)
        asked = 0 if error.retry_after is None else to_millis(error.retry_after)
        if error.source is not None:
            failed, retry_at = self._failing_sources.note(name, error.source, now, asked)
            if failed < SOURCES_TO_OPEN and not before.is_open:
                return _wait_of_source(name, error.source, retry_at, now, str(error))
        wait = max(min(SHORTEST_WAIT * 2 ** min(before.failures, 10), LONGEST_WAIT), asked)
        row = {
            "name": name,
            "failures": 1,
            "opened_at": before.opened_at or now,
            "retry_at": now + wait,
            "reason": storable(str(error), LONGEST_SENTENCE),
        }
        await self._database.put(self._open, row)
        if not before.is_open and began > self._said_at.get(name, -1):
            self._said_at[name] = now
            log.warning(f"{name} is down, and its messages wait until it is back: {mask(str(error))}")
        self._known[name] = Circuit(
            name, before.failures + 1, before.opened_at or now, now + wait, str(error)
        )
        return self._wait(self._known[name], now)

    async def succeeded(self, name: str, source: str | None = None) -> None:
        """Close the circuit. Costs nothing while it is closed, which is nearly always."""
        self._failing_sources.clear(name, source)
        if (known := self._known.get(name)) and known.is_open:
            closing = update(circuits).where(circuits.c.name == name)
            values = closing.values(failures=0, opened_at=None, retry_at=None, reason=None)
            await self._database.execute(values)
            self._known[name] = Circuit(name)
            down = describe_span(self._clock.now() - (known.opened_at or self._clock.now()))
            log.warning(f"{name} is back after {down}")

    async def all(self) -> list[Circuit]:
        """For people: which providers are down, since when, and why."""
        await self._read()
        return list(self._known.values())

    async def _state(self, name: str, *, at_once: bool = False) -> Circuit:
        if at_once:
            self._view.invalidate()
        await self._view.refresh()
        return self._known.get(name, Circuit(name))

    async def _read(self) -> None:
        rows = await self._database.rows(select(circuits))
        now = self._clock.now()
        self._known = {row.name: _as_of(now, row) for row in rows}


def _as_of(now: Millis, row: Row[Any]) -> Circuit:
    """One that was opened in the future is due: the clock was set back since, and nobody knows for how long it is to wait."""
    if row.opened_at is not None and row.opened_at > now:
        return Circuit(row.name, row.failures, now, now, row.reason)
    return Circuit(row.name, row.failures, row.opened_at, row.retry_at, row.reason)


def _wait_of_source(
    name: str, source: str | None, until: Millis, now: Millis, why: str = "it failed before"
) -> Outage:
    wait = timedelta(milliseconds=max(until - now, 1))
    return Outage(f"{name} failed for one source only, which waits: {why}", retry_after=wait, source=source)
