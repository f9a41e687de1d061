"""Runs tests on a mutant, in a copy of the tree: killed by which test, survived, or not ended in time."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.mutants.mapping import find_tests, needs_servers
from tests.mutants.planting import Mutant

Outcome = Literal["killed", "survived", "timeout", "slow"]
"""A mutant that makes the tests hang is found out too (timeout). Where they do not end without it either, nothing is known (slow)."""

COPIED = ("src", "tests", "docs", "examples", "bench", "pyproject.toml", "README.md", "CHANGELOG.md",
          "CONTRIBUTING.md", "Makefile", "constraints.txt", ".env.example")  # fmt: skip
USAGE, NO_TESTS = 4, 5
"""How pytest says that it was asked wrongly, and that it had nothing to run."""

PYTEST = ("-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", "--timeout=60")


@dataclass(frozen=True, slots=True)
class Result:
    outcome: Outcome
    by: str = ""
    """The test that noticed, or how long was waited."""


@dataclass(slots=True)
class MutantTester:
    """A copy of the tree in which one mutant at a time is tested."""

    root: Path
    place: Path
    seconds: float
    whole: bool = False
    _sound: dict[str, bool] = field(default_factory=dict)

    def prepare(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        for name in COPIED:
            source = self.root / name
            if source.is_dir():
                shutil.copytree(source, self.place / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy(source, self.place / name)

    def test(self, mutant: Mutant) -> Result:
        """By the tests that matter for its file, and if they notice nothing and it is wanted, by all of them."""
        near = find_tests(self.root, mutant.path)
        while True:
            sound = [test for test in near if self._sound.get(test, True)]
            if not sound:
                result = Result("survived")
                break
            arguments = [*sound, *_servers(mutant.path)]
            result = self._with(mutant, arguments, self.seconds)
            if result.outcome == "timeout" and self._run(arguments, self.seconds).outcome == "timeout":
                result = Result("slow", result.by)
            if result.outcome != "killed" or self._is_sound(result.by.partition("::")[0]):
                break
        if result.outcome == "survived" and self.whole:
            result = self._with(mutant, ["tests", "-n", "auto", "--dist", "loadfile"], 10 * self.seconds)
        return result

    def _with(self, mutant: Mutant, arguments: Sequence[str], seconds: float) -> Result:
        file = self.place / mutant.path
        before = file.read_bytes()
        file.write_bytes(mutant.apply(before))
        try:
            return self._run(arguments, seconds)
        finally:
            file.write_bytes(before)

    def _is_sound(self, test: str) -> bool:
        """Whether these tests pass without any fault: those that fail anyway would kill every mutant."""
        if test not in self._sound and (self.place / test).is_file():
            self._sound[test] = self._run([test, *_servers(test)], self.seconds).outcome == "survived"
        return self._sound.get(test, True)

    def _run(self, arguments: Sequence[str], seconds: float) -> Result:
        command = [sys.executable, "-m", "pytest", *PYTEST, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(self.place / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            command,
            cwd=self.place,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return Result("timeout", f"{seconds:g} s")
        if process.returncode in (0, NO_TESTS):
            return Result("survived")
        if process.returncode == USAGE:
            raise RuntimeError(f"pytest could not be run: {said.strip()}")
        found = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
        return Result("killed", found[1] if found else said.strip().splitlines()[-1][:80])


def _servers(path: str) -> list[str]:
    """Without servers where that is enough: starting them takes longer than the tests."""
    return [] if needs_servers(path) else ["-m", "not services"]
