"""Services that speak HTTP, in a thread of this process. One can vanish as a real one does: nobody listens any more, and
whoever was talking is cut off.
"""

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from tests.services.server import Startable, free_port


class Response(NamedTuple):
    status: int
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed


@dataclass
class WebService(Startable):
    """What a service of a test says is `respond` to a POST, or `answer` to anything; the rest is here."""

    port: int = field(default_factory=free_port)
    _server: "_Server | None" = None

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """How many there have been since it was started."""
        return self._server.connections if self._server else 0

    def start(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), _Handler)
        self._server.service = self
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._server:
            self._server.vanish()
            self._server = None

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Response | None:
        """What to say to any request; most services are only posted to."""
        return self.respond(path, headers, body) if method == "POST" else Response(405)

    def respond(self, path: str, headers: dict[str, str], body: bytes) -> Response | None:
        """What to say; None to hang up without a word. Names of headers are in small letters."""
        raise NotImplementedError


class _Server(ThreadingHTTPServer):
    """Knows its open connections."""

    daemon_threads = True
    request_queue_size = 100
    service: WebService

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._open: set[socket.socket] = set()
        self.connections = 0

    def vanish(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in list(self._open):
            with suppress(OSError):  # it has just gone by itself
                connection.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        self.connections += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that breaks off is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        response = self.server.service.answer(self.command, self.path, headers, body)
        if response is None:
            self.close_connection = True
            return
        self.send_response(response.status)
        for name, value in {**response.headers, "Content-Length": str(len(response.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(response.body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _do  # noqa: N815 - the names that http.server calls

    def log_message(self, format: str, *arguments: Any) -> None:
        """Tests read what the service kept."""
