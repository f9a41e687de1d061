"""Bulkheads: slots by what a job waits for: a slow provider keeps its own jobs waiting, and nobody else's.

Of a queue's jobs, those that depend on one provider may be as many at once as the queue has slots. A job that waits for its
provider for longer than a moment lends its slot to others: it runs on, and somebody else's job is claimed in its place. One
that finds its provider's bulkhead taken goes back and waits in the queue, without a slot and without paying an attempt.

So while all providers are quick, nothing is different: nobody lends, and nobody is sent back. A slow one that has the queue to
itself has all slots as well, but its other jobs are looked at and sent back: nobody knows whose they are before.
Time is the clock's: where that stands still, in a test, no job has waited however slow the machine is.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType

from yamchi.clock import Clock
from yamchi.errors import Snooze

LENDS_AFTER_SECONDS = 1.0
"""Seconds for which a job keeps its slot while it waits for its provider."""

QUICK_PER_SECOND = 20.0
"""A provider that ends so many jobs a second is not slow: with a hundred slots each of its jobs takes five seconds then, since it
waits for the ninety-nine others, and not for the provider. To send others back for that would only cost time."""

TOLERANCE_SECONDS = 0.05
"""Seconds by which the event loop's timers and the clock may differ."""

SHORTEST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.25, 60.0
"""Seconds until a job that was sent back is looked at again."""

RETURN_PACE = 0.8
"""Those who were sent back come again a little faster than the provider has worked so far: it may have recovered."""

RETURNS_PER_SECOND = 200.0
"""So many of those who were sent back are looked at again in a second, however many there are."""

SMOOTHING = 0.2

MOST_KNOWN = 1_000
"""So many providers are remembered; when there are more, those are forgotten that nobody waits for at the moment."""


@dataclass(slots=True)
class _Bulkhead:
    """What one provider has in hand, how many seconds a job of it takes, and when those that were sent back come again."""

    held: int = 0
    typical: float = 0.0
    last_run: float = 0.0
    """When the last of them may run, at the pace of the provider."""
    last_look: float = 0.0
    """When the last of them may be looked at, at the pace that costs the others little."""


class Bulkheads:
    """The bulkheads of one queue in one worker. `lent` is how many of the running jobs occupy no slot at present, and
    `lends_after` the seconds after which a job is one of them."""

    def __init__(self, slots: int, clock: Clock, on_lent: Callable[[], None]) -> None:
        self.lent = 0
        self.lends_after = max(LENDS_AFTER_SECONDS, slots / QUICK_PER_SECOND)
        self._slots = slots
        self._clock = clock
        self._on_lent = on_lent
        self._bulkheads: dict[str, _Bulkhead] = {}

    def hold(self, name: str) -> "Holding":
        return Holding(self, name)

    def now(self) -> float:
        """Seconds by the clock."""
        return self._clock.now() / 1000

    def _take(self, name: str) -> None:
        bulkhead = self._bulkheads.get(name)
        if bulkhead is None:
            self._forget_idle()
            bulkhead = self._bulkheads[name] = _Bulkhead()
        if bulkhead.held >= self._slots:
            wait = timedelta(seconds=self._seconds_to_return(bulkhead))
            raise Snooze(wait, f"all that may wait for {name} at once are waiting")
        bulkhead.held += 1

    def _forget_idle(self) -> None:
        """A name may be anything, such as each customer's host."""
        if len(self._bulkheads) >= MOST_KNOWN:
            self._bulkheads = {name: known for name, known in self._bulkheads.items() if known.held}

    def _seconds_to_return(self, bulkhead: _Bulkhead) -> float:
        """In how many seconds to come back: in the order of those who were sent back, as fast as the provider works."""
        now = self.now()
        pace = max(bulkhead.typical, LENDS_AFTER_SECONDS) / self._slots * RETURN_PACE
        bulkhead.last_run = min(max(bulkhead.last_run, now) + pace, now + LONGEST_WAIT_SECONDS)
        bulkhead.last_look = max(bulkhead.last_look, now) + 1 / RETURNS_PER_SECOND
        return max(bulkhead.last_run, bulkhead.last_look, now + SHORTEST_WAIT_SECONDS) - now

    def _lend(self) -> None:
        self.lent += 1
        self._on_lent()

    def _give_back(self, name: str, seconds: float, has_lent: bool) -> None:
        bulkhead = self._bulkheads[name]
        bulkhead.held -= 1
        bulkhead.typical += (seconds - bulkhead.typical) * SMOOTHING
        if has_lent:
            self.lent -= 1
        else:
            bulkhead.last_run = 0.0  # it is quick again


class Holding:
    """A job's part of its provider's bulkhead, for as long as it is held."""

    __slots__ = ("_began", "_bulkheads", "_has_lent", "_name", "_timer")

    def __init__(self, bulkheads: Bulkheads, name: str) -> None:
        self._bulkheads = bulkheads
        self._name = name
        self._has_lent = False

    def __enter__(self) -> None:
        self._bulkheads._take(self._name)
        self._began = self._bulkheads.now()
        self._set_timer()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._bulkheads._give_back(self._name, self._bulkheads.now() - self._began, self._has_lent)

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._bulkheads.lends_after, self._lend)

    def _lend(self) -> None:
        if self._bulkheads.now() - self._began < self._bulkheads.lends_after - TOLERANCE_SECONDS:
            self._set_timer()
            return
        self._has_lent = True
        self._bulkheads._lend()
