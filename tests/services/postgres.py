"""PostgreSQL with its default durability, where a connection needs a password."""

import os
import select
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.services.server import STOP_SECONDS, Server, program

SUPERUSER = "postgres"
PASSWORD = "postgres"

# Debian keeps the server's programs off the path, in a folder for each version: the newest first.
POSTGRES_BIN = sorted(
    Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name), reverse=True
)


class Postgres(Server):
    """`settings` are further lines of postgresql.conf, such as `max_connections=20`."""

    name = "postgres"
    stop_signal = signal.SIGINT
    discard_signal = signal.SIGQUIT
    user = "postgres"

    def __init__(self, *settings: str) -> None:
        self._initdb, self._postgres, self._pg_isready = (
            program(name, *POSTGRES_BIN) for name in ("initdb", "postgres", "pg_isready")
        )
        self._settings = settings
        super().__init__()

    @property
    def url(self) -> str:
        return f"postgresql://{SUPERUSER}:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def prepare(self) -> None:
        if os.geteuid() == 0:
            shutil.chown(self.folder, self.user, self.user)
        password = self.folder / "password"
        password.write_text(PASSWORD)
        options = ["--no-sync", "--encoding=UTF8", "--locale=C.UTF-8", "--auth=scram-sha-256"]
        where = [f"--username={SUPERUSER}", f"--pwfile={password}", f"--pgdata={self.data}"]
        self.run_tool([self._initdb, *options, *where])

    def command(self) -> Sequence[str]:
        settings = [
            f"port={self.port}",
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "dynamic_shared_memory_type=mmap",  # in the data folder, so that a kill leaves nothing elsewhere
            "max_connections=200",
            *self._settings,
        ]
        return [self._postgres, "-D", str(self.data), *(f"--{line}" for line in settings)]

    def answers(self) -> bool:
        ping = [self._pg_isready, "--quiet", "--host=127.0.0.1", f"--port={self.port}"]
        return subprocess.run(ping, check=False).returncode == 0

    def kill(self) -> None:
        """Its backends too: each is a process, and the next start waits until the last one is gone."""
        backends = _children(self.pid) if self.running else []
        super().kill()
        for backend in backends:
            _kill_and_wait(backend)

    def discard(self) -> None:
        killed_before = not self.running and (self.data / "postmaster.pid").exists()
        if killed_before:
            self.start()  # only PostgreSQL itself removes the shared memory that a killed one leaves
        super().discard()


def _children(pid: int) -> Sequence[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _kill_and_wait(pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [], STOP_SECONDS)
    except ProcessLookupError:
        return
    finally:
        os.close(process)
