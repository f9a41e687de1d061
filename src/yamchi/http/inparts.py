"""What comes in at once is parsed in parts, and everybody else has a turn after each.

A read brings up to a quarter of a megabyte. That may be eight thousand requests, or forty thousand frames of a WebSocket:
seconds of Python in one callback. Nothing is read while something is left, so that the other side is held up and not our memory.
"""

import asyncio
from abc import abstractmethod
from typing import Any


class InParts(asyncio.Protocol):
    """A protocol of uvicorn's that parses no more than `LARGEST_PART` bytes in one callback."""

    LARGEST_PART: int
    loop: asyncio.AbstractEventLoop
    transport: Any
    _left = b""
    """What has come and is not parsed yet."""
    _next: asyncio.Handle | None = None

    @property
    @abstractmethod
    def must_wait(self) -> bool:
        """Whether what is left has to wait for what was parsed."""

    @abstractmethod
    def hold(self) -> None:
        """Read nothing more."""

    @abstractmethod
    def release(self) -> None:
        """Read on."""

    def parse(self, part: bytes) -> None:
        super().data_received(part)

    def data_received(self, data: bytes) -> None:
        if self._left or len(data) > self.LARGEST_PART or self.must_wait:
            self._left += data
            self._go_on()
            return
        self.parse(data)
        if self.must_wait:
            self.hold()

    def connection_lost(self, error: Exception | None) -> None:
        self.forget_the_rest()
        super().connection_lost(error)

    def go_on_soon(self) -> None:
        if self._next is None:
            self._next = self.loop.call_soon(self._go_on)

    def forget_the_rest(self) -> None:
        self._left = b""

    def _go_on(self) -> None:
        self._next = None
        if self._left and not self.must_wait and not self.transport.is_closing():
            part, self._left = self._left[: self.LARGEST_PART], self._left[self.LARGEST_PART :]
            self.parse(part)
        if self.transport.is_closing():
            self.forget_the_rest()
        elif self.must_wait:
            self.hold()
        elif self._left:
            self.hold()
            self.go_on_soon()
        else:
            self.release()
