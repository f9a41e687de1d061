"""An SMS gateway in this process, as Apprise's `json://` speaks to one: keeps what it took, and answers as it is told."""

import json
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote

from tests.services.server import free_port
from tests.services.webserver import WebServer

SECRET = "gateway-password"


@dataclass
class Gateway:
    """Messages by number. `answers` are statuses for the next messages, 0 to hang up after taking one."""

    port: int = field(default_factory=free_port)
    answers: deque[int] = field(default_factory=deque)
    taken: list[tuple[str, str]] = field(default_factory=list)
    _server: "_Server | None" = None

    @property
    def url(self) -> str:
        return f"json://sender:{SECRET}@127.0.0.1:{self.port}/{{to}}"

    def start(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), _Handler)
        self._server.gateway = self
        self._server.start()

    def stop(self) -> None:
        if self._server:
            self._server.stop()
            self._server = None


class _Server(WebServer):
    gateway: Gateway


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        gateway = self.server.gateway
        status = gateway.answers.popleft() if gateway.answers else 200
        if status in (0, 200):
            gateway.taken.append((unquote(self.path).strip("/"), body["message"]))
        if status == 0:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Tests read `taken`."""
