"""A cache for what is read often and changes seldom: valid for a moment, and read again after a change."""

import asyncio
from collections.abc import Awaitable, Callable

from yamchi.clock import Clock, Millis
from yamchi.perloop import PerLoop


class CachedRead:
    """Calls `read` if the last read is older than `max_age`. Concurrent callers share one read."""

    def __init__(self, read: Callable[[], Awaitable[None]], clock: Clock, max_age: Millis) -> None:
        self._read = read
        self._clock = clock
        self._max_age = max_age
        self._read_at: Millis = 0
        self._changes = 0
        self._reading = PerLoop(asyncio.Lock)

    async def refresh(self) -> None:
        if self._is_old():
            async with self._reading.get():
                if self._is_old():
                    began, changes = self._clock.now(), self._changes
                    await self._read()
                    if changes == self._changes:
                        self._read_at = began

    def invalidate(self) -> None:
        """Something has changed: the next caller reads again, even if a read is under way."""
        self._changes += 1
        self._read_at = 0

    def _is_old(self) -> bool:
        return not 0 <= self._clock.now() - self._read_at < self._max_age  # a clock may be set back
