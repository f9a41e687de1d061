"""An HTTP server in a thread, which can vanish as a real one does: nobody listens, and whoever was talking is cut off."""

import socket
import threading
from contextlib import suppress
from http.server import ThreadingHTTPServer
from typing import Any


class WebServer(ThreadingHTTPServer):
    """Knows its open connections."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._open: set[socket.socket] = set()
        self.connections = 0

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
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
