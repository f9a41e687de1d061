"""Rate limits of providers that all worker processes share: a message takes a permit, or learns when to come back.

A limit of 30 a second has 30 permits: rows that say from when each may be used again. Who sends holds a permit until the
answer is there, and only then does the permit's second begin. The provider got the message before it answered, so two uses
of one permit are never closer than a second there: it sees at most 30 messages in any second.

A message that finds no permit gets a moment to come back, spaced from the others' as permits come free. No worker waits for
it. Urgent messages are spaced apart from the others, in a shorter line. What a dead process held is free after `LEASE`.
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
"""The worker sleeps until a permit that comes free within this time; for a later one the message goes back to the queue."""

SLEEPS = 2
LEASE: Millis = 60_000
"""How long a process holds a permit without a sign of life: longer than a request takes."""

LINE_FACTOR = 1.1
"""Messages in line are spaced this much wider than the limit, since requests take time too."""

PERMIT_RETENTION: Millis = 3_600_000
"""Permits that were not used for this time are deleted."""


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `count` in any `period`, under a name that all processes know."""

    key: str
    count: int
    period: Millis


@dataclass(frozen=True, slots=True)
class _Held:
    """A permit in use; `until` tells our use of it from another's."""

    limit: Limit
    number: int
    until: Millis


@dataclass(frozen=True, slots=True)
class _NoPermit:
    """Which limit has no permit, and when it may have one."""

    limit: Limit
    free_at: Millis


class SendLimits:
    """The table `send_turns`. Two short transactions a message, shared by messages at the same time."""

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
        """Hold a permit of each limit while sending; raise `Snooze` with the moment to come back."""
        held = await self._take(limits, is_urgent)
        try:
            yield
        finally:
            await self._release(held)

    async def _release(self, held: Sequence[_Held]) -> None:
        """Give the permits back. If the database is away, they come back by themselves when the lease ends."""
        now = self._clock.now()
        rows = [
            {
                "of": permit.limit.key,
                "nth": permit.number,
                "ours": permit.until,
                "free_at": now + permit.limit.period,
            }
            for permit in held
        ]
        try:
            await self._database.write(lambda connection: connection.execute(self._used, rows).rowcount)
        except EngineError as error:
            log.warning(
                "permits could not be given back; they come free when their lease ends",
                limits=[permit.limit.key for permit in held],
                error=str(error),
            )

    async def pause(self, limit: Limit, until: Millis) -> None:
        """Give no permit of this limit before this moment."""
        new = self._database.insert(table)
        latest = self._greatest(table.c.next, new.excluded.next)
        pausing = new.on_conflict_do_update(index_elements=["key", "number"], set_={"next": latest})
        permits = [
            {"key": limit.key, "number": number, "next": until, "held_until": 0}
            for number in range(limit.count)
        ]
        await self._database.write(lambda connection: connection.execute(pausing, permits).rowcount)

    async def _take(self, limits: Sequence[Limit], is_urgent: bool) -> list[_Held]:
        answer = await self._try(limits)
        for _ in range(SLEEPS):
            if (
                isinstance(answer, _NoPermit)
                and (wait := answer.free_at - self._clock.now()) <= LONGEST_SLEEP
            ):
                await self._clock.sleep(max(wait, 1))
                answer = await self._try(limits)
        if isinstance(answer, _NoPermit):
            missed = answer
            place = await self._database.write(lambda c: self._line_up(c, missed, is_urgent))
            raise Snooze(as_datetime(place), "waiting for the provider's rate limit")
        return answer

    async def _try(self, limits: Sequence[Limit]) -> list[_Held] | _NoPermit:
        now = self._clock.now()
        return await self._database.write(lambda connection: self._ask(connection, limits, now))

    # ── In a transaction ──────────────────────────────────────────────────────────────────────────────────────────

    def _ask(self, connection: Connection, limits: Sequence[Limit], now: Millis) -> list[_Held] | _NoPermit:
        """A permit of each limit, or none of any."""
        self._sweep(connection, now)
        held: list[_Held] = []
        for limit in limits:
            number = self._use(connection, limit, now)
            if number is None:
                self._give_back(connection, held, now)
                return _NoPermit(limit, self._free_at(connection, limit, now))
            held.append(_Held(limit, number, now + LEASE))
        return held

    def _use(self, connection: Connection, limit: Limit, now: Millis) -> int | None:
        """Take a free permit, or create one while the limit has fewer rows than it allows."""
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
        for permit in held:
            row = {"of": permit.limit.key, "nth": permit.number, "ours": permit.until, "free_at": now}
            connection.execute(self._unused, row)

    def _free_at(self, connection: Connection, limit: Limit, now: Millis) -> Millis:
        soonest = select(func.min(table.c.next)).where(table.c.key == limit.key)
        return max(round(connection.execute(soonest).scalar() or 0), now + 1)

    def _line_up(self, connection: Connection, missed: _NoPermit, is_urgent: bool) -> Millis:
        """When to come back: after all that wait already. Urgent messages have a line of their own."""
        limit, earliest = missed.limit, missed.free_at
        spacing = limit.period / limit.count * LINE_FACTOR
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
        if now - self._swept_at >= PERMIT_RETENTION:
            self._swept_at = now
            connection.execute(
                delete(table).where(table.c.next < now - PERMIT_RETENTION, table.c.held_until <= now)
            )
