"""How long a call may take, at next to no cost: one timer looks after all of them.

`asyncio.timeout` sets and clears a timer for every call, which is a good part of what a short call costs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


class CallTimeout:
    """Gives up calls after a number of seconds. For one event loop at a time; after it has ended, for the next.

    With `unless`, that is asked first, and again after so many seconds: a call goes on for as long as it says yes.
    """

    def __init__(self, seconds: float, unless: Callable[[], Awaitable[bool]] | None = None) -> None:
        self._seconds = seconds
        self._unless = unless
        self._deadlines: dict[asyncio.Task[object], float] = {}
        self._given_up: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asking: asyncio.Task[None] | None = None

    async def wait_for(self, work: Awaitable[T]) -> T:
        """The result of the work, or TimeoutError. A task may wait for one call at a time."""
        task = asyncio.current_task()
        assert task is not None
        loop, cancelled = task.get_loop(), task.cancelling()
        self._deadlines[task] = loop.time() + self._seconds
        if self._timer is None or self._loop is not loop:
            if self._loop is not loop:
                self._asking = None
            self._loop = loop
            self._timer = loop.call_later(self._seconds, self._look, loop)
        try:
            return await work
        except asyncio.CancelledError:
            if task in self._given_up and task.uncancel() <= cancelled:
                raise TimeoutError from None
            raise
        finally:
            del self._deadlines[task]
            self._given_up.discard(task)

    def close(self) -> None:
        """Stop looking."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._asking:
            self._asking.cancel()
            self._asking = None

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        late = {task: deadline for task, deadline in self._deadlines.items() if deadline <= now}
        if self._unless is None:
            self._give_up(late)
        elif late:
            self._timer = loop.call_later(self._seconds, self._look, loop)
            if self._asking is None or self._asking.done():
                self._asking = loop.create_task(self._ask(self._unless, late, loop))
            return
        waiting = [deadline for deadline in self._deadlines.values() if deadline > now]
        self._timer = loop.call_at(min(waiting), self._look, loop) if waiting else None

    async def _ask(
        self,
        unless: Callable[[], Awaitable[bool]],
        late: dict[asyncio.Task[object], float],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        goes_on = await unless()
        same = [task for task, deadline in late.items() if self._deadlines.get(task) == deadline]
        if not goes_on:
            self._give_up(same)
        for task in same:
            self._deadlines[task] = loop.time() + self._seconds

    def _give_up(self, tasks: Iterable[asyncio.Task[object]]) -> None:
        for task in tasks:
            if task not in self._given_up:
                self._given_up.add(task)
                task.cancel()
