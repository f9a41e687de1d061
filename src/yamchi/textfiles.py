"""Texts that people keep in files: .env, YAML, templates, keys. Whatever lies there instead is a sentence, never a wait.

A named pipe has no end until somebody writes to it, and a device has none at all: only a regular file is opened, and so much of it
is read as such a text may have.
"""

import os
import stat
from pathlib import Path

from yamchi.errors import ConfigurationError

LONGEST = 1024 * 1024  # characters

_OTHERS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class UnreadableFile(ConfigurationError):
    """A file or folder that can't be read, and why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} can't be read: {reason}.")
        self.reason = reason


def read_text(path: Path, *, errors: str = "strict") -> str:
    """The text of this file; `UnreadableFile` if it has none."""
    try:
        _refuse_what_is_no_file(path)
        with path.open(encoding="utf-8", errors=errors) as file:
            text = file.read(LONGEST + 1)
    except OSError as error:
        raise UnreadableFile(path, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise UnreadableFile(path, "it is not UTF-8 text") from error
    if len(text) > LONGEST:
        raise UnreadableFile(path, f"it has more than {LONGEST:,} characters")
    return text


def paths_in(folder: Path) -> list[Path]:
    """What lies in this folder, by name; nothing if there is no such folder."""
    try:
        return sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise UnreadableFile(folder, error.strerror or str(error)) from error


def _refuse_what_is_no_file(path: Path) -> None:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) and not _is_null(found):
        kind = _OTHERS.get(stat.S_IFMT(found.st_mode), "something else")
        raise UnreadableFile(path, f"it is {kind} and not a file")


def _is_null(found: os.stat_result) -> bool:
    """Whether it is /dev/null, with which containers cover a file so that it is empty."""
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == os.stat(os.devnull).st_rdev
