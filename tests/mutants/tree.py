"""A copy of the tree in which tests can be run on changed source."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from compileall import compile_dir
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from py_compile import PycInvalidationMode

from tests.mutants import forking

PYTEST = ("-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", "--disable-warnings")
LEFT_OUT = (".git", ".venv*", ".mutants", ".*_cache", ".hypothesis", "__pycache__", "node_modules", "var")


@dataclass(frozen=True)
class Tree:
    """A copy; `environment` is added to what its tests see."""

    root: Path
    place: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def prepare(self) -> None:
        self.copy()
        self.compile()

    def copy(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.root, self.place, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
        for installed in self.root.glob("tests/*/node_modules"):
            (self.place / installed.relative_to(self.root)).symlink_to(installed)

    def compile(self) -> None:
        """So that no run has to; what has changed since is told by its hash, for a fault may keep a file's size and second."""
        compile_dir(
            self.place / "src", quiet=2, force=True, invalidation_mode=PycInvalidationMode.CHECKED_HASH
        )

    @contextmanager
    def changed(self, path: str, content: bytes) -> Iterator[None]:
        """With another content of this file; afterwards it is as it was."""
        file = self.place / path
        before = file.read_bytes()
        file.write_bytes(content)
        try:
            yield
        finally:
            file.write_bytes(before)

    def pytest(self, arguments: Sequence[str], seconds: float | None = None) -> tuple[int, str]:
        """How pytest ended and what it said; a TimeoutError if it did not end in time."""
        output = self.place / "said.txt"
        run = {
            "cwd": str(self.place),
            "env": self._environment,
            "arguments": [*PYTEST, *arguments],
            "output": str(output),
            "seconds": seconds,
        }
        self._forks.stdin.write(json.dumps(run) + "\n")
        self._forks.stdin.flush()
        code = json.loads(self._forks.stdout.readline())
        if code is None:
            raise TimeoutError(f"{seconds:g} s")
        return code, output.read_text(errors="replace")

    def close(self) -> None:
        if "_forks" in self.__dict__:
            self._forks.communicate()

    @cached_property
    def _forks(self) -> subprocess.Popen[str]:
        """It ends when nobody is left to ask it."""
        return subprocess.Popen(
            [sys.executable, str(Path(forking.__file__)), str(self.place / "src")],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def _environment(self) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        own = {"PYTHONPATH": f"{self.place / 'src'}{os.pathsep}{self.place}", "PYTHONDONTWRITEBYTECODE": "1"}
        return ours | own | dict(self.environment)
