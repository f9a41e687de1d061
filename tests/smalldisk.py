"""A small file system that a test may fill."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class Disk:
    """A small file system of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, leave: int = 0) -> None:
        """Leave only so much room."""
        room = os.statvfs(self.folder)
        with self._ballast.open("ab", buffering=0) as ballast:
            if leave:
                ballast.write(b"x" * (room.f_bavail * room.f_frsize - leave))
                return
            for size in (65_536, 4_096, 1):
                try:
                    while ballast.write(b"x" * size) == size:
                        """Go on until it is refused."""
                except OSError:
                    continue

    def make_room(self) -> None:
        self._ballast.unlink()

    def remount(self, mode: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{mode}", self.folder], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """32 MB; skipped where that can't be had."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("only root can mount a small tmpfs to fill")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs can't be mounted here: {mounted.stderr.strip()}")
    yield Disk(folder)
    subprocess.run(["umount", "--lazy", folder], check=True)
