"""`yamchi` commands as real processes: what they say, and the means to stop them."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.launcher import launch

DEADLINE = 100.0
"""Seconds any step may take on a busy machine."""


class Process:
    """A `yamchi` command, its output, and the means to stop it."""

    def __init__(self, home: Path, *arguments: str, **environment: str) -> None:
        self.output = home / f"output-{time.monotonic_ns()}.txt"
        self.output.touch()
        whole = {**os.environ, "YAMCHI_HOME": str(home), **environment}
        self.process = launch("yamchi", arguments, cwd=home, env=whole, output=self.output)

    @property
    def said(self) -> str:
        return self.output.read_text()

    def wait_for(self, condition: Callable[[], object], what: str) -> object:
        end = time.monotonic() + DEADLINE
        while not (value := condition()):
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.said}"
            assert time.monotonic() < end, f"{what} did not happen: {self.said}"
            time.sleep(0.02)
        return value

    def wait_to_say(self, pattern: str) -> re.Match[str]:
        found = self.wait_for(lambda: re.search(pattern, self.said), f"{pattern!r}")
        assert isinstance(found, re.Match)
        return found

    @property
    def url(self) -> str:
        return self.wait_to_say(r"Listening on (http://localhost:\d+)")[1]

    def end(self, *signals: signal.Signals) -> None:
        """Send the signals and wait."""
        for number in signals:
            self.process.send_signal(number)
        self.process.wait(DEADLINE)
