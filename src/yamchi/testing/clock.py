"""A clock that stands still until it is moved."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from heapq import heappop, heappush
from itertools import count

from yamchi.clock import Millis, Span, as_datetime, to_millis, to_moment

Drain = Callable[[], Awaitable[object]]
NextDue = Callable[[], Awaitable[Millis | None]]


class MovableClock:
    """Time for tests: `advance("48h")` visits every moment at which something is due, in order."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = to_moment(start)
        self._sleeping: list[tuple[Millis, int, asyncio.Future[None]]] = []
        self._order = count()
        self._drain: Drain | None = None
        self._next_due: NextDue | None = None

    def now(self) -> Millis:
        return self._now

    @property
    def time(self) -> datetime:
        return as_datetime(self._now)

    async def sleep(self, span: Millis) -> None:
        if span <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._sleeping, (self._now + span, next(self._order), future))
        await future

    @property
    def sleepers(self) -> int:
        """How many are asleep on this clock."""
        return sum(not future.done() for _, _, future in self._sleeping)

    def attach(self, drain: Drain, next_due: NextDue) -> None:
        """Whose work is run when time moves."""
        self._drain, self._next_due = drain, next_due

    async def advance(self, span: Span) -> None:
        """Let this much time pass: stop at each moment at which something is due and run it."""
        await self.advance_to(as_datetime(self._now + to_millis(span)))

    async def advance_to(self, moment: datetime) -> None:
        goal = to_moment(moment)
        await self._work()
        while (due := await self._earliest()) is not None and due <= goal:
            self._now = max(due, self._now)
            self._wake_due()
            await self._work()
        self._now = max(goal, self._now)
        await self._work()

    async def _earliest(self) -> Millis | None:
        while self._sleeping and self._sleeping[0][2].done():
            heappop(self._sleeping)
        moments = [self._sleeping[0][0]] if self._sleeping else []
        if self._next_due and (due := await self._next_due()) is not None:
            moments.append(due)
        return min(moments, default=None)

    def _wake_due(self) -> None:
        while self._sleeping and self._sleeping[0][0] <= self._now:
            future = heappop(self._sleeping)[2]
            if not future.done():
                future.set_result(None)

    async def _work(self) -> None:
        if self._drain:
            await self._drain()
