"""Files that only their owner may read: databases hold what people wrote, and keys."""

import os
from contextlib import suppress
from pathlib import Path

FOLDER, FILE = 0o700, 0o600
BESIDE = ("", "-wal", "-shm", "-journal")
"""What SQLite keeps beside a database. It makes them with the rights of the database itself."""


def make_private(database: Path) -> None:
    """Make the file of a database, if there is none, so that only its owner may read it; close those of before to others.

    A folder that is made for it is private as well; one that was there is left as it is.
    """
    if not database.parent.exists():
        database.parent.mkdir(parents=True, exist_ok=True, mode=FOLDER)
    with suppress(FileExistsError):
        # One that is there is not opened: to close it again would end the locks that SQLite has on it in this process.
        os.close(os.open(database, os.O_CREAT | os.O_EXCL | os.O_RDWR, FILE))
    for suffix in BESIDE:
        _narrow(database.with_name(database.name + suffix), FILE)


def close_folder(folder: Path) -> None:
    """Let only its owner read this folder, if it exists."""
    _narrow(folder, FOLDER)


def _narrow(path: Path, mode: int) -> None:
    with suppress(OSError):  # it is not there, or another's: then its owner decides
        if path.stat().st_mode & 0o777 & ~mode:
            path.chmod(mode)
