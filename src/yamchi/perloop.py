"""One value for each event loop, such as its connections: the worker's loop and the lease keeper's must not share one.

Locks and events of asyncio are bound for ever to the first event loop on which somebody waited for them: in the next one,
waiting raises. What outlives a loop has one of them for each.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
Loop = asyncio.AbstractEventLoop


class PerLoop(Generic[T]):
    """A value is made when its loop first asks. `discard` is called with the values of loops that were closed since."""

    def __init__(self, make: Callable[[], T], discard: Callable[[T], object] = lambda value: None) -> None:
        self._make = make
        self._discard = discard
        self._values: dict[Loop, T] = {}
        self._last: tuple[Loop, T] | None = None
        self._lock = threading.Lock()

    def get(self) -> T:
        """The value of the running loop."""
        loop, last = asyncio.get_running_loop(), self._last
        if last is not None and last[0] is loop:
            return last[1]
        with self._lock:
            if loop not in self._values:
                for closed in [one for one in self._values if one.is_closed()]:
                    self._discard(self._values.pop(closed))
                self._values[loop] = self._make()
            self._last = loop, self._values[loop]
            return self._values[loop]

    def take_all(self) -> tuple[T | None, list[T]]:
        """Forget all values: that of the running loop, if it has one, and those of the others."""
        with self._lock:
            values, self._values, self._last = self._values, {}, None
        here = values.pop(asyncio.get_running_loop(), None)
        return here, list(values.values())
