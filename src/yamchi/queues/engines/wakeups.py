"""A signal that belongs to no event loop, so that an engine outlives the one it was first used on.

An `asyncio.Event` is bound for ever to the first event loop that waits for it: in the next one, waiting raises.
"""

import asyncio
from contextlib import suppress


class Wakeup:
    """Set by one, waited for by others, each on an event loop of its own."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        self._is_set = True
        for waiter in tuple(self._waiting):
            with suppress(RuntimeError):  # its event loop has ended, and nobody waits there
                waiter.get_loop().call_soon_threadsafe(_tell, waiter)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> None:
        """Return when it is set, at once if it is already."""
        if self._is_set:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)


def _tell(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
