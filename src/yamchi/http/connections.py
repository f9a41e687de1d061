"""Connections before they have asked for anything, and those that don't read what they asked for: how many there may be, how
long they may take, how much they may say.

A connection *waits* from its beginning, or from the end of the last answer, until the headers of its next request are
complete. Waiting ones are cheap to make, so when there are too many the one that has waited longest is closed: whoever
really has something to ask, such as the board or a health check, still gets through. A request is not limited here.

A connection is *unread* while nothing more is written to it before the other side has taken what was: asking for more than
one ever reads would keep it, its request and its answer for ever. Pages that are open are among these.
"""

import asyncio
import struct
from collections import Counter
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from yamchi.http.inparts import InParts

try:
    import fcntl
    import termios
except ImportError:  # Windows has neither
    fcntl = termios = None  # type: ignore[assignment]

log = structlog.get_logger("yamchi.web")

HEADERS_WITHIN = 10.0
"""Seconds that a connection may wait."""

LARGEST_HEADERS = 64 * 1024
"""Bytes of a request's address and headers."""

MOST_HEADERS = 200

LARGEST_PART = 64 * 1024
"""Bytes that are parsed at once: the headers of a request may come behind so much of the one before."""

LARGEST_PART_OF_FRAMES = 2 * 1024
"""The same of a WebSocket, where each six bytes may be a frame and take longer than a kilobyte of a body."""

FRAMES_A_SECOND = 200
"""Frames of one WebSocket; who sends more is read more slowly."""

MOST_WAITING = 2_000
MOST_WAITING_OF_ADDRESS = 500
"""Connections that may wait, of all clients and of one address; behind a proxy everybody has the same one."""

MOST_CONNECTIONS = 20_000
"""Open connections, open pages among them."""

LOOK_EVERY = 1.0

READ_WITHIN = 60.0
"""Seconds in which the other side must have taken some of what is written to it, and how much."""

LEAST_READ = 16 * 1024

LOOK_FOR_UNREAD_EVERY = 10.0

NO_WEBSOCKET = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Connections:
    """The connections of one server that wait, and those that are unread, longest first."""

    def __init__(self) -> None:
        self.closed = 0
        """How many were closed because they waited or were unread too long, or there were too many."""
        self._waiting: dict[LimitedProtocol, float] = {}
        self._of_address: Counter[str] = Counter()
        self._looking: asyncio.TimerHandle | None = None
        self._unread: dict[TracksUnread, tuple[float, int]] = {}
        """Since when, and how many bytes were left then."""
        self._looked_for_unread_at = 0.0

    def begin(self, connection: "LimitedProtocol", now: float, opened: int) -> None:
        """It waits from now on; others make room for it if they must."""
        self._waiting[connection] = now
        self._of_address[connection.address] += 1
        if self._of_address[connection.address] > MOST_WAITING_OF_ADDRESS:
            self._close(next(one for one in self._waiting if one.address == connection.address))
        elif opened > MOST_CONNECTIONS and self._unread:
            self._cut_off(next(iter(self._unread)))
        elif len(self._waiting) > MOST_WAITING or opened > MOST_CONNECTIONS:
            self._close(next(iter(self._waiting)))
        if self._looking is None:
            self._look_later(connection)

    def end(self, connection: "LimitedProtocol") -> None:
        """It has asked for something, or is gone."""
        if self._waiting.pop(connection, None) is not None:
            self._of_address[connection.address] -= 1
            if not self._of_address[connection.address]:
                del self._of_address[connection.address]

    def read(self, connection: "TracksUnread") -> None:
        """The other side has taken what was written, or is gone."""
        self._unread.pop(connection, None)

    def _look_later(self, connection: "LimitedProtocol") -> None:
        loop = connection.loop
        self._looking = loop.call_later(LOOK_EVERY, self._look, loop, connection.connections)

    def _look(self, loop: asyncio.AbstractEventLoop, opened: set[Any]) -> None:
        now = loop.time()
        try:
            self._look_for_late(now)
            if now - self._looked_for_unread_at >= LOOK_FOR_UNREAD_EVERY:
                self._looked_for_unread_at = now
                self._look_for_unread(now, [one for one in opened if isinstance(one, TracksUnread)])
        finally:
            self._looking = loop.call_later(LOOK_EVERY, self._look, loop, opened) if opened else None

    def _look_for_late(self, now: float) -> None:
        """Close those that have waited too long; they are in the order in which they began."""
        while self._waiting and next(iter(self._waiting.values())) <= now - HEADERS_WITHIN:
            first = next(iter(self._waiting))
            if first.left:  # it has not got all of its answer
                del self._waiting[first]
                self._waiting[first] = now
            else:
                self._close(first)

    def _look_for_unread(self, now: float, opened: "Iterable[TracksUnread]") -> None:
        """Close those that have taken too little for too long."""
        for one in opened:
            left = one.left if one.is_stopped else 0
            since, before = self._unread.get(one, (now, left))
            if not left:
                self.read(one)
            elif now - since < READ_WITHIN:
                self._unread.setdefault(one, (now, left))
            elif before - left < LEAST_READ:
                self._cut_off(one)
            else:
                self.read(one)
                self._unread[one] = now, left

    def _cut_off(self, connection: "TracksUnread") -> None:
        self.read(connection)
        self._count_closed("closed connections that did not read their answers")
        connection.transport.abort()

    def _close(self, connection: "LimitedProtocol") -> None:
        self._count_closed("closed connections that waited without a request")
        self.end(connection)
        connection.transport.abort()

    def _count_closed(self, what: str) -> None:
        if self.closed % 1_000 == 0:
            log.warning(what, closed=self.closed + 1)
        self.closed += 1


class LimitedConfig(uvicorn.Config):
    """uvicorn's configuration, with what its connections share."""

    def __init__(self, app: ASGIApp, **options: Any) -> None:
        super().__init__(app, http=LimitedProtocol, ws=OpenWebSocket, **options)
        self.connections = Connections()


class TracksUnread(asyncio.Protocol):
    """Knows of a connection whether what is written to it is read."""

    config: Any  # a LimitedConfig
    transport: Any
    is_paused = False
    """Nothing more is written until most of what was has been taken."""

    @property
    def left(self) -> int:
        """Bytes that the other side has not taken yet."""
        here: int = self.transport.get_write_buffer_size()
        return here + _left_in_system(self.transport.get_extra_info("socket"))

    @property
    def is_stopped(self) -> bool:
        """Whether nothing more is written now, so that what is left only becomes less."""
        return self.is_paused or bool(self.transport.is_closing())

    def pause_writing(self) -> None:
        self.is_paused = True
        super().pause_writing()

    def resume_writing(self) -> None:
        self.is_paused = False
        self.config.connections.read(self)
        super().resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self.config.connections.read(self)
        super().connection_lost(error)


def _left_in_system(connection: Any) -> int:
    """Megabytes may be; of what a slow reader takes of them, our own buffer knows nothing for a minute."""
    if connection is None or fcntl is None:
        return 0
    try:
        (count,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))
    except (OSError, ValueError):  # it was closed a moment ago
        return 0
    return int(count)


class OpenWebSocket(InParts, TracksUnread, WebSocketsSansIOProtocol):
    """uvicorn's WebSocket; its pings find pages that are gone, and it can't close one that does not read."""

    LARGEST_PART = LARGEST_PART_OF_FRAMES
    _frames, _counted_since, _is_slowed = 0, 0.0, False

    @property
    def must_wait(self) -> bool:
        return self.read_paused or self._is_slowed

    def hold(self) -> None:
        self.transport.pause_reading()

    def release(self) -> None:
        self.transport.resume_reading()

    def handle_events(self) -> None:
        now = self.loop.time()
        if now - self._counted_since >= 1:
            self._frames, self._counted_since = 0, now
        self._frames += len(self.conn.events)
        if self._frames > FRAMES_A_SECOND and not self._is_slowed:
            self._is_slowed = True
            self.loop.call_at(self._counted_since + 1, self._hurry)
        super().handle_events()
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self._refuse()

    async def receive(self) -> Any:
        """As uvicorn's, which would read on though something is left."""
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self.go_on_soon()
        return message

    def _refuse(self) -> None:
        """The parser of WebSockets takes less than that of HTTP, and uvicorn would leave what it refused open for ever."""
        self.transport.write(b"".join(self.conn.data_to_send()) or NO_WEBSOCKET)
        self.transport.close()

    def _hurry(self) -> None:
        self._is_slowed = False
        self.go_on_soon()


class HeldFlow(FlowControl):
    """uvicorn's, which reads on whenever an answer is complete, however many requests came behind it."""

    is_held = False

    def resume_reading(self) -> None:
        if self.is_held:
            self.read_paused = False
        else:
            super().resume_reading()

    def hold(self) -> None:
        self.is_held = True
        self._transport.pause_reading()

    def release(self) -> None:
        self.is_held = False
        if not self.read_paused:
            self._transport.resume_reading()


class LimitedProtocol(InParts, TracksUnread, HttpToolsProtocol):
    """uvicorn's connection, which says when it waits and refuses headers that are too large."""

    config: LimitedConfig
    flow: HeldFlow
    LARGEST_PART = LARGEST_PART

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.address = ""
        self._received = self._part = 0
        """Bytes that have come of headers, or of what follows a body, and of the part that is being read."""
        self._is_waiting = self._in_headers = self._has_progressed = self._is_too_large = False
        self._answered: RequestResponseCycle | None = None
        """What is being answered: uvicorn keeps only the last request, which may stand behind others."""

    @property
    def is_stopped(self) -> bool:
        return self._is_waiting or super().is_stopped

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = HeldFlow(transport)
        self.address = self.client[0] if self.client else ""
        self._wait()

    def connection_lost(self, error: Exception | None) -> None:
        """Nobody hears the answers any more: to write one would be an error with a traceback, for each of the requests."""
        self._stop_waiting()
        for cycle in (self._answered, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(error)

    @property
    def must_wait(self) -> bool:
        """Requests that came behind another wait for its answer, and what comes behind them for theirs."""
        return bool(self.pipeline)

    def hold(self) -> None:
        self.flow.hold()

    def release(self) -> None:
        self.flow.release()

    def parse(self, part: bytes) -> None:
        self._part, self._has_progressed = len(part), False
        super().parse(part)
        if self._has_progressed:
            self._received = len(part) if self._in_headers else 0
            return
        self._received += len(part)
        if self._received > LARGEST_HEADERS + LARGEST_PART and not self.transport.is_closing():
            self._is_too_large = True
            self.send_400_response("")

    def on_message_begin(self) -> None:
        self._in_headers = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Headers are as large as what has come at most, so that those of nearly every request need not be counted."""
        self._in_headers, self._has_progressed = False, True
        if self._received + self._part > LARGEST_HEADERS or len(self.headers) > MOST_HEADERS:
            self._check_size()
        self._stop_waiting()
        # The parser adds trailers to its own list, and no proxy has looked at those.
        self.scope["headers"] = self.headers.copy()
        super().on_headers_complete()
        if not self.pipeline:
            self._answered = self.cycle

    def on_body(self, body: bytes) -> None:
        self._has_progressed = True
        super().on_body(body)

    def on_response_complete(self) -> None:
        following = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if self.flow.is_held:
            self.go_on_soon()
        if following is not None:
            self._answered = following
        elif not self.transport.is_closing():
            self._wait()

    def handle_websocket_upgrade(self) -> None:
        self._stop_waiting()
        self.forget_the_rest()  # a page says nothing before it was answered
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        if not self._is_too_large:
            super().send_400_response(msg)
            return
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        text = f"The headers of a request may have {LARGEST_HEADERS:,} bytes in {MOST_HEADERS} lines."
        self.transport.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
            f"content-length: {len(text)}\r\nconnection: close\r\n\r\n{text}".encode()
        )
        self.transport.close()

    def _wait(self) -> None:
        self._is_waiting = True
        self.config.connections.begin(self, self.loop.time(), len(self.connections))

    def _stop_waiting(self) -> None:
        self.config.connections.read(self)
        if self._is_waiting:
            self._is_waiting = False
            self.config.connections.end(self)

    def _check_size(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        self._is_too_large = size > LARGEST_HEADERS or len(self.headers) > MOST_HEADERS
        if self._is_too_large:
            raise ValueError("too large headers")  # to the parser, which answers by `send_400_response`
