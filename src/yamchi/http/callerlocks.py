"""A lock for each caller: who asks for a hundred things at once waits for themselves alone, and others go on beside it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

from starlette.exceptions import HTTPException

MOST_WAITING = 50
"""Changes of one caller that wait or are under way."""


@dataclass(slots=True)
class _Waiters:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    count: int = 0


class CallerLocks:
    """The locks of callers that change something now."""

    def __init__(self) -> None:
        self._waiters: dict[str, _Waiters] = {}

    @asynccontextmanager
    async def hold(self, caller: str) -> AsyncIterator[None]:
        """Hold this caller's lock; 429 if too many of theirs wait for it."""
        waiters = self._waiters.setdefault(caller, _Waiters())
        if waiters.count >= MOST_WAITING:
            raise HTTPException(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{MOST_WAITING} changes of this caller are waiting already: wait for their answers.",
                {"retry-after": "1"},
            )
        waiters.count += 1
        try:
            async with waiters.lock:
                yield
        finally:
            waiters.count -= 1
            if not waiters.count:
                del self._waiters[caller]
