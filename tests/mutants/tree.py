"""A copy of the tree in which tests can be run on changed source."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from compileall import compile_dir
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from py_compile import PycInvalidationMode

LEFT_OUT = (".git", ".venv*", ".mutants", ".*_cache", ".hypothesis", "__pycache__", "node_modules", "var")


@dataclass(frozen=True, slots=True)
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
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "--no-header",
                "--tb=no",
                *arguments,
            ],
            cwd=self.place,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
                "PYTHONPATH": str(self.place / "src"),
                "PYTHONDONTWRITEBYTECODE": "1",
                **self.environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{seconds:g} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        return process.returncode, said
