"""Connections before they have asked for anything: how many there may be, how long they may take, how much they may say.

A connection *waits* from its beginning, or from the end of the last answer, until the headers of its next request are
complete. Waiting ones are cheap to make, so when there are too many the one that has waited longest is closed: whoever
really has something to ask, such as the board or a health check, still gets through. A request is not limited here.
"""

import asyncio
from collections import Counter
from http import HTTPStatus
from typing import Any

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = structlog.get_logger("yamchi.web")

HEADERS_WITHIN = 10.0
"""Seconds that a connection may wait."""

LARGEST_HEADERS = 64 * 1024
"""Bytes of a request's address and headers."""

MOST_HEADERS = 200

LARGEST_PART = 256 * 1024
"""Bytes that are read at once: the headers of a request may come behind so much of the one before."""

MOST_WAITING = 2_000
MOST_WAITING_OF_ADDRESS = 500
"""Connections that may wait, of all clients and of one address; behind a proxy everybody has the same one."""

MOST_CONNECTIONS = 20_000
"""Open connections, open pages among them."""

LOOK_EVERY = 1.0


class Connections:
    """The connections of one server that wait, longest first."""

    def __init__(self) -> None:
        self.closed = 0
        """How many were closed because they waited too long, or there were too many."""
        self._waiting: dict[LimitedProtocol, float] = {}
        self._of_address: Counter[str] = Counter()
        self._looking: asyncio.TimerHandle | None = None

    def begin(self, connection: "LimitedProtocol", now: float, opened: int) -> None:
        """It waits from now on; others make room for it if they must."""
        self._waiting[connection] = now
        self._of_address[connection.address] += 1
        if self._of_address[connection.address] > MOST_WAITING_OF_ADDRESS:
            self._close(next(one for one in self._waiting if one.address == connection.address))
        elif len(self._waiting) > MOST_WAITING or opened > MOST_CONNECTIONS:
            self._close(next(iter(self._waiting)))
        if self._looking is None:
            self._looking = connection.loop.call_later(LOOK_EVERY, self._look, connection.loop)

    def end(self, connection: "LimitedProtocol") -> None:
        """It has asked for something, or is gone."""
        if self._waiting.pop(connection, None) is not None:
            self._of_address[connection.address] -= 1
            if not self._of_address[connection.address]:
                del self._of_address[connection.address]

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close those that have waited too long; they are in the order in which they began."""
        late = loop.time() - HEADERS_WITHIN
        while self._waiting and next(iter(self._waiting.values())) <= late:
            self._close(next(iter(self._waiting)))
        self._looking = loop.call_later(LOOK_EVERY, self._look, loop) if self._waiting else None

    def _close(self, connection: "LimitedProtocol") -> None:
        if self.closed == 0 or self.closed % 1_000 == 0:
            log.warning("closed connections that waited without a request", closed=self.closed + 1)
        self.closed += 1
        self.end(connection)
        connection.transport.abort()


class LimitedConfig(uvicorn.Config):
    """uvicorn's configuration, with what its connections share."""

    def __init__(self, app: ASGIApp, **options: Any) -> None:
        super().__init__(app, http=LimitedProtocol, **options)
        self.connections = Connections()


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's connection, which says when it waits and refuses headers that are too large."""

    config: LimitedConfig

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.address = ""
        self._received = self._part = 0
        """Bytes that have come of headers, or of what follows a body, and of the part that is being read."""
        self._is_waiting = self._in_headers = self._has_progressed = self._is_too_large = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._wait()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        self._part, self._has_progressed = len(data), False
        super().data_received(data)
        if self._has_progressed:
            self._received = len(data) if self._in_headers else 0
            return
        self._received += len(data)
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
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._has_progressed = True
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline and not self.transport.is_closing():
            self._wait()

    def handle_websocket_upgrade(self) -> None:
        self._stop_waiting()
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
        if self._is_waiting:
            self._is_waiting = False
            self.config.connections.end(self)

    def _check_size(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        self._is_too_large = size > LARGEST_HEADERS or len(self.headers) > MOST_HEADERS
        if self._is_too_large:
            raise ValueError("too large headers")  # to the parser, which answers by `send_400_response`
