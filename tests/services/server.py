"""A real server as a child process: a loopback port and a data folder that outlive every restart.

`start` returns when the server answers in its own protocol; a server that does not says why with the tail of
its log. However this process ends, its servers end with it.
"""

import errno
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, Self

START_SECONDS = 60
STOP_SECONDS = 30
POLL_SECONDS = 0.02
LOG_TAIL_LINES = 25

# Linux ends a child when the *thread* that made it ends, so every child is made by one thread that never does.
_spawner = ThreadPoolExecutor(1, thread_name_prefix="spawn-servers")

_held: list[socket.socket] = []
_any = random.SystemRandom()  # a test may have set the seed of the usual one


class ServerMissing(Exception):
    """The server is not installed here; the message says what to do."""


class ServerFailed(Exception):
    """The server is installed but did not start or stop; the message ends with the tail of its log."""


class Startable(ABC):
    """Runs while a `with` block lasts."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class Server(Startable):
    """One server; `url` and the data stay the same through `stop`, `kill`, `start` and `restart`."""

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    discard_signal: ClassVar[signal.Signals] = signal.SIGKILL
    user: ClassVar[str | None] = None
    """Who runs it when we are root; None for ourselves."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"yamchi-{self.name}-"))
        self.data = self.folder / "data"
        self.port = free_port()
        self._log = self.folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients connect."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the data folder, before the first start."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """What runs the server in the foreground."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it replies to a ping of its own protocol; an OSError means no."""

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        if self.running:
            return
        if not self.data.exists():
            self.prepare()
        self._process = self._spawn(self.command())
        self._await_answer(self._process)

    def stop(self) -> None:
        """End it the way an operator would, with time to write down what it has."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def discard(self) -> None:
        """End it as fast as possible and remove its data."""
        self._end(self.discard_signal)
        shutil.rmtree(self.folder, ignore_errors=True)

    def run_tool(self, command: Sequence[str]) -> None:
        """Run one of the server's own tools to its end."""
        process = self._spawn(command)
        try:
            code = process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if code:
            raise ServerFailed(f"{self.name}: {command[0]} ended with {code}\n{self._log_tail()}")

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        guarded = [*_guard(self.user, self.discard_signal), *command]
        return _spawner.submit(_popen, guarded, self._log).result()

    def _await_answer(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            code = _exit_code(process, POLL_SECONDS)
            if code is not None:
                raise ServerFailed(f"{self.name} ended with {code} while starting\n{self._log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(f"{self.name} did not answer in {START_SECONDS} s\n{self._log_tail()}")

    def _answers(self) -> bool:
        try:
            return self.answers()
        except OSError:
            return False

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        if _exit_code(process, STOP_SECONDS) is None:
            process.kill()
            process.wait()
            raise ServerFailed(f"{self.name} ignored {how.name} for {STOP_SECONDS} s\n{self._log_tail()}")

    def _log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return "\n".join([f"--- the end of {self._log}:", *lines[-LOG_TAIL_LINES:]])


def free_port() -> int:
    """A loopback port for a server of this process: below those the system lends to clients, and nobody else's.

    A socket stays bound to it, which keeps it free while its server is down: whoever looks for a port, in any
    process of the tests, passes over it, and a server (all of them set SO_REUSEADDR) can listen beside it.
    """
    while True:
        held, port = socket.socket(), _any.randrange(20_000, 32_000)
        try:
            held.bind(("127.0.0.1", port))
        except OSError as error:
            held.close()
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _held.append(held)
        return port


def ask(port: int, request: bytes, size: int = 4096) -> bytes:
    """What the server on a loopback port replies to one small request."""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.sendall(request)
        return connection.recv(size)


def program(name: str, *folders: Path) -> str:
    """Where a program is, looking in these folders before the path."""
    path = os.pathsep.join([*map(str, folders), os.environ.get("PATH", os.defpath), "/usr/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        raise ServerMissing(f"{name} is not installed here: run python -m tests.services install")
    return found


def _popen(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C at the terminal is for the tests, which still need the server to tidy up.
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=log.parent,
            start_new_session=True,
        )


def _guard(user: str | None, death_signal: signal.Signals) -> Sequence[str]:
    """The prefix that ends a command when this process ends, and runs it as another user where we are root."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return []
    identity = [f"--reuid={user}", f"--regid={user}", "--init-groups"] if user and os.geteuid() == 0 else []
    return [setpriv, *identity, f"--pdeathsig={death_signal.name.removeprefix('SIG')}"]


def _exit_code(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """How it ended, or None if it still runs after these seconds."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
