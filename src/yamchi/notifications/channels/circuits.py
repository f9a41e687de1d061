"""Circuits: when a provider is down, its jobs wait, one probe at a time looks whether it is back, and nobody pays an attempt.

The state is a row in the database, so all worker processes share it: whoever meets an outage opens the circuit, and of
all who come when the wait is over one wins the right to try. A process asks the database at most twice a second.

Where one of many may be the cause of the trouble itself (a subscription whose address is nonsense), it has to wait alone:
the circuit opens only when several different ones have failed, with nobody's success in between.
"""

import random
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import timedelta

from sqlalchemy import Connection, func, select, update

from yamchi.clock import Clock, Millis, describe_span, to_millis
from yamchi.errors import Outage
from yamchi.notifications.tables import circuits
from yamchi.observe.logging import mask
from yamchi.storage.database import Database

SHORTEST: Millis = 1_000
LONGEST: Millis = 15_000
PROBE: Millis = 5_000
"""How long a probe may take before another may try."""

FRESH: Millis = 500

SEVERAL = 3
"""So many different sources have to fail before the trouble is the provider's."""

LONGEST_ALONE: Millis = 300_000
"""How long a source that fails alone waits at most."""

MOST_SUSPECTS = 10_000
"""Sources that failed alone are remembered in this process, those of late."""


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

    def describe(self, now: Millis) -> str:
        """One sentence for people."""
        if not self.is_open:
            return "works"
        since = describe_span(now - (self.opened_at or now))
        return f"down for {since} ({self.failures} failures): {self.reason}"


@dataclass(slots=True)
class Suspect:
    """A source that failed while others may do well."""

    failures: int = 0
    retry_at: Millis = 0


@dataclass(slots=True)
class Suspects:
    """The sources of a circuit that failed since the last success of anybody, and how long each of them is to wait."""

    waits: OrderedDict[tuple[str, str], Suspect] = field(default_factory=OrderedDict)
    failed: dict[str, set[str]] = field(default_factory=dict)

    def note(self, name: str, source: str, now: Millis, wish: Millis) -> tuple[int, Millis]:
        """One more failure: how many different sources have failed by now, and when this one may try again."""
        suspect = self.waits.pop((name, source), None) or Suspect()
        if suspect.retry_at <= now:  # others that began with the one before tell nothing new
            wait = min(SHORTEST * 2 ** min(suspect.failures, 10), LONGEST_ALONE)
            suspect = Suspect(suspect.failures + 1, now + max(wait, wish))
        self.waits[name, source] = suspect
        while len(self.waits) > MOST_SUSPECTS:
            self.waits.popitem(last=False)
        if len(self.failed) > MOST_SUSPECTS:
            self.failed.clear()
        known = self.failed.setdefault(name, set())
        if len(known) < SEVERAL:
            known.add(source)
        return len(known), suspect.retry_at

    def waits_until(self, name: str, source: str | None) -> Millis:
        suspect = self.waits.get((name, source)) if source and self.waits else None
        return suspect.retry_at if suspect else 0

    def clear(self, name: str, source: str | None) -> None:
        """Somebody got through: the provider works, whatever else there is."""
        if self.failed:
            self.failed.pop(name, None)
        if source and self.waits:
            self.waits.pop((name, source), None)


class Circuits:
    """One circuit for each channel and provider."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._known: dict[str, Circuit] = {}
        self._read_at: Millis = 0
        self._suspects = Suspects()
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
        alone = self._suspects.waits_until(name, source)
        if alone > (now := self._clock.now()):
            raise _alone(name, source, alone, now)
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
        due = (circuits.c.name == name) & (circuits.c.retry_at <= now)
        return connection.execute(update(circuits).where(due).values(retry_at=now + PROBE)).rowcount == 1

    def _wait(self, circuit: Circuit, now: Millis) -> Outage:
        # Spread, so that those who wait do not come back all at once.
        left = max((circuit.retry_at or now) - now, 0)
        spread = random.uniform(0, min(max(left, SHORTEST), LONGEST))
        span = timedelta(milliseconds=left + spread)
        return Outage(
            f"{circuit.name} is down ({circuit.reason}); waiting for it to come back", retry_after=span
        )

    async def failed(self, name: str, error: Outage, began: Millis) -> Outage:
        """Open the circuit, or keep it open for longer; the outage as the job is to see it.

        A send that began before the circuit opened tells nothing new: a hundred that break at once are one failure.
        """
        now = self._clock.now()
        before = await self._state(name, at_once=True)
        if before.is_open and began <= (before.opened_at or 0):
            return self._wait(before, now)
        wish = 0 if error.retry_after is None else to_millis(error.retry_after)
        if error.source is not None:
            failed, retry_at = self._suspects.note(name, error.source, now, wish)
            if failed < SEVERAL and not before.is_open:
                return _alone(name, error.source, retry_at, now, str(error))
        wait = max(min(SHORTEST * 2 ** min(before.failures, 10), LONGEST), wish)
        row = {
            "name": name,
            "failures": 1,
            "opened_at": before.opened_at or now,
            "retry_at": now + wait,
            "reason": mask(str(error)),
        }
        await self._database.put(self._open, row)
        self._known[name] = Circuit(
            name, before.failures + 1, before.opened_at or now, now + wait, str(error)
        )
        return self._wait(self._known[name], now)

    async def succeeded(self, name: str, source: str | None = None) -> None:
        """Close the circuit. Costs nothing while it is closed, which is nearly always."""
        self._suspects.clear(name, source)
        if (known := self._known.get(name)) and known.is_open:
            closing = update(circuits).where(circuits.c.name == name)
            values = closing.values(failures=0, opened_at=None, retry_at=None, reason=None)
            await self._database.write(lambda connection: connection.execute(values).rowcount)
            self._known[name] = Circuit(name)

    async def all(self) -> list[Circuit]:
        """For people: which providers are down, since when, and why."""
        await self._refresh()
        return list(self._known.values())

    async def _state(self, name: str, *, at_once: bool = False) -> Circuit:
        if at_once or self._clock.now() - self._read_at >= FRESH:
            await self._refresh()
        return self._known.get(name, Circuit(name))

    async def _refresh(self) -> None:
        self._read_at = self._clock.now()
        rows = await self._database.read(lambda connection: connection.execute(select(circuits)).all())
        self._known = {
            row.name: Circuit(row.name, row.failures, row.opened_at, row.retry_at, row.reason) for row in rows
        }


def _alone(
    name: str, source: str | None, until: Millis, now: Millis, why: str = "it failed before"
) -> Outage:
    wait = timedelta(milliseconds=max(until - now, 1))
    return Outage(f"{name} fails for one of many, which waits alone: {why}", retry_after=wait, source=source)
