"""One connection to Redis: commands go out packed, many at a time, and answers come back in order.

What is asked for in one iteration of the event loop leaves in one write. A connection that is lost fails everything
that waits on it, once; whoever needs one next makes a new one.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import hiredis

from yamchi.errors import EngineError, EngineUnavailable, StorageFull

ANSWER_SECONDS = 15.0
"""Redis is taken for gone when it owes an answer for this many seconds."""

Arg = bytes | str | int | float


class ReplyError(Exception):
    """An error that Redis answered."""


class ConnectionLost(EngineUnavailable):
    """Redis, or what is between, has closed a connection."""


def pack(*args: Arg) -> bytes:
    """One command as it goes over the wire."""
    return cast("bytes", hiredis.pack_command(args))  # type: ignore[arg-type]


class Receiver(Protocol):
    """Whoever waits for answers: a future, or somebody who acts the moment they are here."""

    def done(self) -> bool: ...
    def set_result(self, replies: list[Any], /) -> None: ...
    def set_exception(self, error: BaseException, /) -> None: ...
    def exception(self) -> BaseException | None: ...


@dataclass(slots=True)
class _Waiter:
    count: int
    deadline: float
    receiver: Receiver
    replies: list[Any] = field(default_factory=list)


class Connection(asyncio.Protocol):
    """A live connection. `where` names the server in errors."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.is_open = False
        self._reader = hiredis.Reader(replyError=ReplyError, notEnoughData=...)
        self._waiters: deque[_Waiter] = deque()
        self._out: list[bytes] = []
        self._watchdog: asyncio.TimerHandle | None = None

    @property
    def pending(self) -> int:
        """How many batches wait for their answers."""
        return len(self._waiters)

    def send(self, commands: Sequence[bytes], timeout: float = ANSWER_SECONDS) -> "asyncio.Future[list[Any]]":
        """Send commands; their answers, errors among them as values."""
        if not self.is_open:
            raise EngineUnavailable(f"The connection to Redis at {self.where} was lost: check that it runs.")
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        if not commands:
            future.set_result([])
            return future
        if not self._out:
            self._loop.call_soon(self._flush)
        self._enqueue(commands, future, timeout)
        return future

    def post(self, commands: Sequence[bytes], receiver: Receiver, timeout: float = ANSWER_SECONDS) -> None:
        """Send commands on an open connection at once, without waiting for what else this iteration brings."""
        self._enqueue(commands, receiver, timeout)
        self._flush()

    def _enqueue(self, commands: Sequence[bytes], receiver: Receiver, timeout: float) -> None:
        self._out.extend(commands)
        deadline = self._loop.time() + timeout
        self._waiters.append(_Waiter(len(commands), deadline, receiver))
        if self._watchdog is None:
            self._watchdog = self._loop.call_at(deadline, self._watch)

    async def call(self, *args: Arg, timeout: float = ANSWER_SECONDS) -> Any:
        """One command, its answer or its error raised."""
        (reply,) = await self.send([pack(*args)], timeout)
        return checked(reply, self.where)

    def abort(self, error: Exception | None = None) -> None:
        """Drop the connection at once; what waits on it fails with the error."""
        self._fail(error)
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        if self._out and self.is_open and self._transport is not None:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def _watch(self) -> None:
        self._watchdog = None
        if not self._waiters:
            return
        deadline = self._waiters[0].deadline
        if deadline > self._loop.time():
            self._watchdog = self._loop.call_at(deadline, self._watch)
        else:
            self.abort(
                EngineUnavailable(
                    f"Redis at {self.where} has not answered for {ANSWER_SECONDS:g} s: check the server and the network."
                )
            )

    def _fail(self, error: Exception | None) -> None:
        self.is_open = False
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.receiver.done():
                waiter.receiver.set_exception(
                    error
                    or ConnectionLost(
                        f"The connection to Redis at {self.where} was lost: check that it runs."
                    )
                )
                waiter.receiver.exception()  # whoever asked may be gone; that is not worth a warning
        if self._watchdog:
            self._watchdog.cancel()
            self._watchdog = None

    # ── asyncio's side ────────────────────────────────────────────────────────────────────────────────────────────

    _transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast("asyncio.WriteTransport", transport)
        # What is written leaves at once, not at the end of the event loop's iteration: Redis begins while we are still busy.
        self._transport.set_write_buffer_limits(high=0)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(None)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        reader.feed(data)
        while (reply := self._next(reader)) is not ...:
            if not self._waiters:
                return  # failed meanwhile; nobody waits for this
            waiter = self._waiters[0]
            waiter.replies.append(reply)
            if len(waiter.replies) == waiter.count:
                self._waiters.popleft()
                if not waiter.receiver.done():
                    waiter.receiver.set_result(waiter.replies)

    def _next(self, reader: hiredis.Reader) -> Any:
        try:
            return reader.gets()
        except hiredis.ProtocolError:
            self.abort(EngineUnavailable(f"What answers at {self.where} is not Redis: check host and port."))
            return ...


_AWAY = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "MOVED", "ASK", "NOREPLICAS")
_FULL = ("OOM", "MISCONF")


def checked(reply: Any, where: str) -> Any:
    """The reply, unless it is an error: then that is raised as what it means to a caller."""
    if isinstance(reply, ReplyError):
        raise explain(reply, where)
    return reply


def explain(error: ReplyError, where: str) -> EngineError:
    """What Redis said, by kind."""
    said = str(error)
    kind = said.partition(" ")[0]
    if kind in _FULL:
        return StorageFull(f"Redis at {where} can't take more: {said}")
    if kind in _AWAY:
        return EngineUnavailable(f"Redis at {where} can't serve now: {said}")
    if kind == "NOPERM":
        return EngineError(
            f"Redis at {where} does not let our user do this ({said}): grant it, or use another user."
        )
    return EngineError(f"Redis at {where} answered: {said}")
