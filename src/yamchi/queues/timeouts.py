"""How long a call may take, at next to no cost: one timer looks after all of them.

`asyncio.timeout` sets and clears a timer for every call, which is a good part of what a short call costs.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class CallTimeout:
    """Gives up calls after a number of seconds. For one event loop at a time; after it has ended, for the next."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadlines: dict[asyncio.Task[object], float] = {}
        self._given_up: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def wait_for(self, work: Awaitable[T]) -> T:
        """The result of the work, or TimeoutError. A task may wait for one call at a time."""
        task = asyncio.current_task()
        assert task is not None
        loop, cancelled = task.get_loop(), task.cancelling()
        self._deadlines[task] = loop.time() + self._seconds
        if self._timer is None or self._loop is not loop:
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

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for task, deadline in self._deadlines.items():
            if deadline <= now and task not in self._given_up:
                self._given_up.add(task)
                task.cancel()
        waiting = [deadline for deadline in self._deadlines.values() if deadline > now]
        self._timer = loop.call_at(min(waiting), self._look, loop) if waiting else None
