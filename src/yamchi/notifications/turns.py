"""Limits that all worker processes share: who may send now, and when the others are to come back.

A limit has a row that says when its next turn is, and a turn is taken by one statement that moves it on, so any number
of processes on one database keep to it together. Turns are handed out a moment ahead at most; that moment is slept. Who
would have to wait longer gets no turn but a place in the line: a moment to come back, as far apart from the others' as
the limit wants, in which nobody occupies a worker. So a backlog of a million costs each message one extra look, a message
in a hurry waits for no line, and no turn is lost to a process that dies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from yamchi.clock import Clock, Millis, as_datetime
from yamchi.errors import Snooze
from yamchi.queues.engines.base import RateLimit
from yamchi.storage.database import Database
from yamchi.storage.tables import send_turns

AHEAD: Millis = 250
"""How long before its turn a message may be given it, and sleeps: longer would keep other messages from working."""

LATE: Millis = 100
"""A message that wakes up later than this after its turn has missed it."""

OLD: Millis = 3_600_000
"""Rows that have said nothing for so long are forgotten."""

NEVER: Millis = 1 << 52


@dataclass(frozen=True, slots=True)
class Limit:
    """A rate, and the name by which all processes know it."""

    key: str
    rate: RateLimit


@dataclass(frozen=True, slots=True)
class _Answer:
    """A moment: of the turn itself, or to come back."""

    at: Millis
    is_turn: bool


class Turns:
    """Turns to send. One transaction a message, which messages that ask at the same time share."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._swept_at: Millis = 0
        self._dialect = sqlite if database.is_embedded else postgresql
        self._greatest = func.max if database.is_embedded else func.greatest

    async def take(self, limits: Sequence[Limit], *, is_urgent: bool = False) -> None:
        """Return when it is this message's turn under all of the limits; a `Snooze` says when to come back for it.

        The first limit is the one that most share: what holds for it may be waited for here; a turn of the others must
        be free at that same moment.
        """
        while self._clock.now() - await self._turn(limits, is_urgent) > LATE:
            continue  # it overslept: others may be sending at this moment

    async def _turn(self, limits: Sequence[Limit], is_urgent: bool) -> Millis:
        now = self._clock.now()
        answer = await self._database.write(lambda c: self._ask(c, limits, now, is_urgent))
        if not answer.is_turn:
            raise Snooze(as_datetime(answer.at), "waiting for its turn under the provider's limits")
        if answer.at > now:
            await self._clock.sleep(answer.at - now)
        return answer.at

    async def pause(self, limit: Limit, until: Millis) -> None:
        """Nobody gets a turn before this moment."""
        new = self._dialect.insert(send_turns).values(key=limit.key, next=until)
        latest = self._greatest(send_turns.c.next, new.excluded.next)
        pausing = new.on_conflict_do_update(index_elements=["key"], set_={"next": latest})
        await self._database.write(lambda connection: connection.execute(pausing).rowcount)

    # ── In a transaction ──────────────────────────────────────────────────────────────────────────────────────────

    def _ask(self, connection: Connection, limits: Sequence[Limit], now: Millis, is_urgent: bool) -> _Answer:
        self._sweep(connection, now)
        moment, latest = now, now + AHEAD
        for place, limit in enumerate(limits):
            turn = self._next_turn(connection, limit, moment, latest)
            if turn is None:
                self._give_back(connection, limits[:place])
                return _Answer(self._stand_in_line(connection, limit, now, is_urgent), is_turn=False)
            moment = latest = turn
        return _Answer(moment, is_turn=True)

    def _next_turn(
        self, connection: Connection, limit: Limit, earliest: Millis, latest: Millis
    ) -> Millis | None:
        """Move the limit's row on, unless its turn comes too late."""
        spacing = limit.rate.spacing
        first = earliest - spacing * (limit.rate.burst - 1)
        moving = (
            self._dialect.insert(send_turns)
            .values(key=limit.key, next=first + spacing)
            .on_conflict_do_update(
                index_elements=["key"],
                set_={"next": self._greatest(send_turns.c.next, first) + spacing},
                where=send_turns.c.next <= latest,
            )
            .returning(send_turns.c.next)
        )
        after = connection.execute(moving).scalar()
        return None if after is None else max(round(after - spacing), earliest)

    def _give_back(self, connection: Connection, limits: Sequence[Limit]) -> None:
        """The rows are ours until the transaction ends, so nobody has built on them."""
        for limit in limits:
            back = update(send_turns).where(send_turns.c.key == limit.key)
            connection.execute(back.values(next=send_turns.c.next - limit.rate.spacing))

    def _stand_in_line(self, connection: Connection, limit: Limit, now: Millis, is_urgent: bool) -> Millis:
        """When to come back: after all who stand there already. Those in a hurry have a line of their own."""
        rate = limit.rate
        line = Limit(
            f"{'rush' if is_urgent else 'line'}:{limit.key}",
            RateLimit(rate.count - rate.burst + 1, rate.period),
        )
        free = select(send_turns.c.next).where(send_turns.c.key == limit.key)
        earliest = max(round(connection.execute(free).scalar() or 0), now + 1)
        return self._next_turn(connection, line, earliest, NEVER) or earliest

    def _sweep(self, connection: Connection, now: Millis) -> None:
        if now - self._swept_at >= OLD:
            self._swept_at = now
            connection.execute(delete(send_turns).where(send_turns.c.next < now - OLD))
