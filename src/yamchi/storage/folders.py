"""Names on the disk: a file that was flushed can still lose its name in a power cut, until its folder is flushed as well."""

import os
from pathlib import Path


def flush_folder(folder: Path) -> None:
    """Make the names in a folder safe from a power cut."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def replace_safely(unfinished: Path, target: Path) -> None:
    """Give a flushed file its last name, and make that safe too."""
    os.replace(unfinished, target)
    flush_folder(target.parent)
