"""Limits that all worker processes share: who may send now, and when the others are to come back.

A limit of 30 a second has 30 turns, rows that say from when each may be used again. Whoever sends holds a turn until the
answer is there, and only then does its second begin. The message came to the provider before the answer left it, so no
two uses of one turn come closer than a second there, however late either was on its way: never more than 30 in any second.

Who finds no turn gets a place in the line: a moment to come back, as far from the others' as turns come free. Nobody
occupies a worker there. So a backlog of a million costs each message one look more, a message in a hurry waits in no
line but a short one, and what a dead process held is free again after a while.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
from sqlalchemy import Connection, and_, bindparam, delete, func, select, update

from yamchi.clock import Clock, Millis, as_datetime
from yamchi.errors import EngineError, Snooze
from yamchi.notifications.tables import send_turns as table
from yamchi.storage.database import Database

log = structlog.get_logger("yamchi.notifications")

LONGEST_SLEEP: Millis = 250
"""A turn that comes free within this time is slept for; longer, and others could not work meanwhile."""

NAPS = 2
LEASE: Millis = 60_000
"""How long a turn is held by a process that gives no sign of life: longer than a request takes."""

LINE_PACE = 1.1
"""How much slower than the limit the line moves: an answer takes its time too."""

OLD: Millis = 3_600_000
"""Turns that nobody used for so long are forgotten."""


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `count` in any `period`, under a name that all processes know."""

    key: str
    count: int
    period: Millis


@dataclass(frozen=True, slots=True)
class _Held:
    """A turn in use; `until` is what tells our use of it from another's."""

    limit: Limit
    number: int
    until: Millis


@dataclass(frozen=True, slots=True)
class _NoTurn:
    """Which limit has none, and when it may have one again."""

    limit: Limit
    free_at: Millis


class Turns:
    """Turns to send. Two short transactions a message, which messages at the same time share."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._swept_at: Millis = 0
        self._greatest = func.max if database.is_embedded else func.greatest
        ours = (
            update(table)
            .where(table.c.key == bindparam("of"), table.c.number == bindparam("nth"))
            .where(table.c.held_until == bindparam("ours"))
        )
        self._unused = ours.values(next=bindparam("free_at"), held_until=0)
        # A pause that was asked for meanwhile holds.
        free_at = bindparam("free_at", type_=table.c.next.type)
        self._used = ours.values(next=self._greatest(table.c.next, free_at), held_until=0)

    @asynccontextmanager
    async def hold(self, limits: Sequence[Limit], *, is_urgent: bool = False) -> AsyncIterator[None]:
        """Hold a turn of each limit while sending; a `Snooze` says when to come back for it."""
        held = await self._take(limits, is_urgent)
        try:
            yield
        finally:
            await self._release(held)

    async def _release(self, held: Sequence[_Held]) -> None:
        """What was sent is sent, even if the database is away by now: then the turn comes back by itself."""
        now = self._clock.now()
        rows = [
            {"of": turn.limit.key, "nth": turn.number, "ours": turn.until, "free_at": now + turn.limit.period}
            for turn in held
        ]
        try:
            await self._database.write(lambda connection: connection.execute(self._used, rows).rowcount)
        except EngineError as error:
            log.warning(
                "a turn could not be given back now",
                limits=[turn.limit.key for turn in held],
                error=str(error),
            )

    async def pause(self, limit: Limit, until: Millis) -> None:
        """Nobody gets a turn before this moment."""
        new = self._database.insert(table)
        latest = self._greatest(table.c.next, new.excluded.next)
        pausing = new.on_conflict_do_update(index_elements=["key", "number"], set_={"next": latest})
        turns = [
            {"key": limit.key, "number": number, "next": until, "held_until": 0}
            for number in range(limit.count)
        ]
        await self._database.write(lambda connection: connection.execute(pausing, turns).rowcount)

    async def _take(self, limits: Sequence[Limit], is_urgent: bool) -> list[_Held]:
        answer = await self._try(limits)
        for _ in range(NAPS):
            if isinstance(answer, _NoTurn) and (wait := answer.free_at - self._clock.now()) <= LONGEST_SLEEP:
                await self._clock.sleep(max(wait, 1))
                answer = await self._try(limits)
        if isinstance(answer, _NoTurn):
            missed = answer
            place = await self._database.write(lambda c: self._stand_in_line(c, missed, is_urgent))
            raise Snooze(as_datetime(place), "waiting for its turn under the provider's limits")
        return answer

    async def _try(self, limits: Sequence[Limit]) -> list[_Held] | _NoTurn:
        now = self._clock.now()
        return await self._database.write(lambda connection: self._ask(connection, limits, now))

    # ── In a transaction ──────────────────────────────────────────────────────────────────────────────────────────

    def _ask(self, connection: Connection, limits: Sequence[Limit], now: Millis) -> list[_Held] | _NoTurn:
        """A turn of each limit, or none of any."""
        self._sweep(connection, now)
        held: list[_Held] = []
        for limit in limits:
            number = self._use(connection, limit, now)
            if number is None:
                self._give_back(connection, held, now)
                return _NoTurn(limit, self._free_at(connection, limit, now))
            held.append(_Held(limit, number, now + LEASE))
        return held

    def _use(self, connection: Connection, limit: Limit, now: Millis) -> int | None:
        """Take a turn that is free, or make one while there are fewer than the limit has."""
        is_free = and_(table.c.key == limit.key, table.c.next <= now, table.c.held_until <= now)
        free = select(table.c.number).where(is_free).limit(1).with_for_update(skip_locked=True)
        taken = (
            update(table)
            .where(table.c.key == limit.key, table.c.number == free.scalar_subquery())
            .values(next=now + limit.period, held_until=now + LEASE)
            .returning(table.c.number)
        )
        number: int | None = connection.execute(taken).scalar()
        return self._make(connection, limit, now) if number is None else number

    def _make(self, connection: Connection, limit: Limit, now: Millis) -> int | None:
        there = connection.execute(select(func.count()).where(table.c.key == limit.key)).scalar_one()
        for number in range(there, limit.count):
            row = {"key": limit.key, "number": number}
            row |= {"next": now + limit.period, "held_until": now + LEASE}
            making = self._database.insert(table).values(row).on_conflict_do_nothing()
            if connection.execute(making.returning(table.c.number)).first():
                return number
        return None

    def _give_back(self, connection: Connection, held: Sequence[_Held], now: Millis) -> None:
        for turn in held:
            row = {"of": turn.limit.key, "nth": turn.number, "ours": turn.until, "free_at": now}
            connection.execute(self._unused, row)

    def _free_at(self, connection: Connection, limit: Limit, now: Millis) -> Millis:
        soonest = select(func.min(table.c.next)).where(table.c.key == limit.key)
        return max(round(connection.execute(soonest).scalar() or 0), now + 1)

    def _stand_in_line(self, connection: Connection, missed: _NoTurn, is_urgent: bool) -> Millis:
        """When to come back: after all who stand there already. Those in a hurry have a line of their own."""
        limit, earliest = missed.limit, missed.free_at
        spacing = limit.period / limit.count * LINE_PACE
        row = {"key": f"{'rush' if is_urgent else 'line'}:{limit.key}", "number": 0, "held_until": 0}
        standing = (
            self._database.insert(table)
            .values(**row, next=earliest + spacing)
            .on_conflict_do_update(
                index_elements=["key", "number"],
                set_={"next": self._greatest(table.c.next, earliest) + spacing},
            )
            .returning(table.c.next)
        )
        return round(float(connection.execute(standing).scalar_one()) - spacing)

    def _sweep(self, connection: Connection, now: Millis) -> None:
        if now - self._swept_at >= OLD:
            self._swept_at = now
            connection.execute(delete(table).where(table.c.next < now - OLD, table.c.held_until <= now))
