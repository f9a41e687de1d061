"""A lock that belongs to no event loop, so that what has it outlives the one it was first used on.

An `asyncio.Lock` is bound for ever to the first event loop on which somebody waited for it: in the next one, waiting raises.
"""

import asyncio
from weakref import WeakKeyDictionary


class LoopLock:
    """Among the coroutines of one event loop; those of another have a lock of their own."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    def here(self) -> asyncio.Lock:
        """The lock of the loop that runs here."""
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
