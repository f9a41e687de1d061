"""Postfix's `smtp-sink`: takes letters as fast as they come, throws them away and keeps count."""

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.services.server import ServerMissing, free_port, program

from bench.measure import CannotRun

BACKLOG = "1000"
TIMEOUT_SECONDS = 90.0
START_SECONDS = 10.0
POLL = 0.005


class Sink:
    """A running sink. `rate` is of the letters after the first tenth."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._counts = folder / f"sink-{self.port}"
        with self._counts.open("wb") as counts:
            self._process = subprocess.Popen(
                [_tool("smtp-sink"), *_identity(), "-c", f"inet:127.0.0.1:{self.port}", BACKLOG],
                stdout=counts,
                stderr=subprocess.DEVNULL,
            )
        self._await_answer()

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(POLL)
        raise CannotRun("smtp-sink did not start")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def count(self) -> int:
        """Letters so far: the sink writes its counters one after the other."""
        with self._counts.open("rb") as counts:
            counts.seek(max(counts.seek(0, 2) - 200, 0))
            found = re.findall(rb"mesg=(\d+)", counts.read())
        return int(found[-1]) if found else 0

    def rate(self, letters: int, is_alive: Callable[[], bool]) -> float:
        """Letters a second, watched from outside."""
        first = self._reached(letters // 10, is_alive)
        seen = self.count()
        last = self._reached(letters, is_alive)
        return (letters - seen) / (last - first)

    def _reached(self, letters: int, is_alive: Callable[[], bool]) -> float:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (seen := self.count()) < letters:
            if time.monotonic() > deadline or not is_alive():
                raise CannotRun(f"{seen:,} of {letters:,} letters arrived")
            time.sleep(POLL)
        return time.monotonic()


@contextmanager
def running_sink(folder: Path) -> Iterator[Sink]:
    sink = Sink(folder)
    try:
        yield sink
    finally:
        sink.stop()


def source(port: int, letters: int, connections: int = 10) -> "subprocess.Popen[bytes]":
    """`smtp-source`: how fast a program can send that does nothing else."""
    options = ["-s", str(connections), "-m", str(letters), "-l", "1500", "-d"]
    return subprocess.Popen([_tool("smtp-source"), *options, f"inet:127.0.0.1:{port}"])


def _identity() -> list[str]:
    return ["-u", "nobody"] if os.geteuid() == 0 else []  # it refuses to run as root


def _tool(name: str) -> str:
    with suppress(ServerMissing):
        return program(name)
    raise CannotRun(f"{name} is not installed here: as root on Debian, apt-get install postfix")
