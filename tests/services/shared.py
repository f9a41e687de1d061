"""One set of servers for many askers: each starts when its URL is first asked for, all are discarded together.

In a run with several test processes, the controlling one owns the servers and the others ask it over a Unix
socket. So a server starts once per run, and ends with the run however that ends.
"""

import json
import shutil
import socket
import socketserver
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from tests.services.kafka import Kafka
from tests.services.postgres import Postgres
from tests.services.redis import Redis
from tests.services.server import Server, ServerFailed, ServerMissing

KINDS: Mapping[str, type[Server]] = {kind.name: kind for kind in (Redis, Postgres, Kafka)}
VARIABLES = {"redis": "TEST_REDIS_URL", "postgres": "TEST_POSTGRES_URL", "kafka": "TEST_KAFKA_BOOTSTRAP"}
ERRORS = {error.__name__: error for error in (ServerMissing, ServerFailed)}


class UrlSource(Protocol):
    """Where a test gets the URL of a shared server from."""

    def url(self, name: str) -> str: ...


class OwnedServers:
    """The servers of this process. A server that failed to start fails the same way for everyone who asks."""

    def __init__(self) -> None:
        self._servers: list[Server] = []
        self._starts: dict[str, Future[str]] = {}
        self._lock = threading.Lock()
        self._starters = ThreadPoolExecutor(len(KINDS))

    def url(self, name: str) -> str:
        with self._lock:
            if name not in self._starts:
                self._starts[name] = self._starters.submit(self._start, name)
        return self._starts[name].result()

    def discard(self) -> None:
        self._starters.shutdown()
        for server in self._servers:
            server.discard()

    def _start(self, name: str) -> str:
        server = KINDS[name]()
        self._servers.append(server)
        server.start()
        return server.url


class AskedServers:
    """The servers of another process, which answers at a socket."""

    def __init__(self, door: Path) -> None:
        self._door = door

    def url(self, name: str) -> str:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._door))
            connection.sendall(f"{name}\n".encode())
            answer = json.loads(connection.makefile().readline())
        if "url" in answer:
            return str(answer["url"])
        raise ERRORS[answer["error"]](answer["message"])


class Door(socketserver.ThreadingUnixStreamServer):
    """Answers other processes that ask for the servers of this one."""

    daemon_threads = True

    def __init__(self, servers: OwnedServers) -> None:
        self.servers = servers
        self.path = Path(tempfile.mkdtemp(prefix="yamchi-tests-")) / "door"
        super().__init__(str(self.path), _Answer)
        threading.Thread(target=self.serve_forever, name="door-of-test-servers", daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        shutil.rmtree(self.path.parent)


class _Answer(socketserver.StreamRequestHandler):
    server: Door

    def handle(self) -> None:
        name = self.rfile.readline().decode().strip()
        self.wfile.write(json.dumps(self._answer(name)).encode() + b"\n")

    def _answer(self, name: str) -> dict[str, str]:
        try:
            return {"url": self.server.servers.url(name)}
        except (ServerMissing, ServerFailed) as error:
            return {"error": type(error).__name__, "message": str(error)}
