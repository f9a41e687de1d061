"""Where files are: what has just come in, originals, finished pictures, watermarks. Nothing leaves these folders.

Names on the disk are made of our own ids; what a stranger called a file is only ever a text in the database.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shutil import disk_usage
from uuid import uuid4

import structlog

from yamchi.errors import EngineUnavailable, Outage, StorageFull
from yamchi.media.formats import BadFile
from yamchi.media.processing import UNFINISHED, unfinished_beside
from yamchi.storage.folders import flush_folder, replace_safely

log = structlog.get_logger("yamchi.media")


class Files:
    """The folders of media."""

    def __init__(self, uploads: Path, private: Path, least_free: int = 0, shared: Path | None = None) -> None:
        self.uploads = uploads
        self._shared = shared
        self._least_free = least_free
        self.temp = private / "temp"
        self.originals = private / "originals"
        self.watermarks = private / "watermarks"

    def prepare(self) -> None:
        for folder in (self.temp, self.originals, self.watermarks):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.uploads.mkdir(parents=True, exist_ok=True)

    def check_room(self) -> None:
        """Refuses when a disk has so little room left that whatever else is on it, such as the queue, needs it."""
        if any(disk_usage(folder).free < self._least_free for folder in (self.temp, self.uploads)):
            raise StorageFull("The disk is nearly full: no picture is taken until there is room.")

    def new_temp(self) -> Path:
        self.prepare()
        return self.temp / f"upload-{uuid4()}"

    def temp_file(self, path: str) -> Path:
        """A file that came in; refuses what is anywhere else, in a folder of its own too: a row keeps no more than a name."""
        self.prepare()
        found = Path(os.path.realpath(self.temp / path))
        if found.parent != Path(os.path.realpath(self.temp)):
            raise BadFile("That file is not among the uploads: put it into var/media/temp.")
        return found

    def brought(self, path: str, name: str) -> Path:
        """The file of another program's job. One in MEDIA_TEMP_DIR is moved among ours, to where a repetition finds it."""
        source = Path(os.path.realpath(self.temp / path))
        if self._shared is None or source.parent != Path(os.path.realpath(self._shared)):
            return self.temp_file(path)
        ours = self.new_temp().with_name(f"upload-{name}")
        if source.is_file():
            self.check_room()
            self._move_among_ours(source, ours)
        return ours

    def _move_among_ours(self, source: Path, ours: Path) -> None:
        try:
            move(source, ours)
        except PermissionError as error:
            if not ours.exists():
                raise
            log.warning(f"{source} was taken in, and can't be removed: {error}")

    def temp_named(self, kept: str) -> Path:
        """The file of a row. Only its name counts: the folder may have been moved since, or be mounted elsewhere here."""
        return self.temp_file(Path(kept).name)

    def public_file(self, entity_type: str, name: str) -> Path:
        return _inside(self.uploads, self.uploads / entity_type / name)

    def by_key(self, key: str) -> Path:
        return _inside(self.uploads, self.uploads / key)

    def folder_of(self, entity_type: str) -> Path:
        folder = _inside(self.uploads, self.uploads / entity_type)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def original_of(self, media_id: str) -> Path:
        self.prepare()
        return _inside(self.originals, self.originals / media_id)

    def watermark(self, name: str) -> Path:
        self.prepare()
        return _inside(self.watermarks, self.watermarks / name)

    def all_public(self) -> Iterator[tuple[str, Path]]:
        """Every finished picture, by its key."""
        for folder, _, names in os.walk(self.uploads):
            for name in names:
                path = Path(folder, name)
                yield path.relative_to(self.uploads).as_posix(), path

    def all_temp(self) -> Iterator[Path]:
        yield from _files_in(self.temp)

    def all_originals(self) -> Iterator[Path]:
        yield from _files_in(self.originals)


def is_full(error: OSError) -> bool:
    """Whether it is for want of room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def as_outage(error: Exception) -> Exception:
    """A full disk and a database that is away are no fault of the picture: its job waits, and that costs no attempt."""
    if isinstance(error, OSError) and is_full(error):
        return Outage("The disk is full: no picture can be written until there is room.")
    return Outage(str(error)) if isinstance(error, EngineUnavailable) else error


def is_older(path: Path, moment: float) -> bool:
    """Than this moment, in seconds; one that is gone is not."""
    try:
        return path.stat().st_mtime < moment
    except FileNotFoundError:
        return False


def is_unfinished(path: Path) -> bool:
    return path.name.endswith(UNFINISHED)


def move(source: Path, target: Path) -> None:
    """As one step, where both are on one file system; else by a copy that appears whole."""
    try:
        replace_safely(source, target)
    except OSError:
        copy_whole(source, target)
        source.unlink(missing_ok=True)


def link(source: Path, target: Path) -> None:
    """The same file under another name; where that can't be, a copy that appears whole."""
    try:
        with suppress(FileExistsError):
            os.link(source, target)
        flush_folder(target.parent)
    except OSError:
        copy_whole(source, target)


def copy_whole(source: Path, target: Path) -> None:
    """A copy that appears whole, in place of what was there."""
    unfinished = unfinished_beside(target)
    try:
        copy(source, unfinished)
        replace_safely(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def copy(source: Path, target: Path) -> None:
    with source.open("rb") as origin, target.open("wb") as file:
        while part := origin.read(1024 * 1024):
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def size_of(path: Path) -> int:
    """In bytes; 0 for one that is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def remove(path: Path) -> int:
    """How many bytes that freed: none while the same file has another name."""
    try:
        before = path.stat()
        path.unlink()
    except FileNotFoundError:
        return 0
    return before.st_size if before.st_nlink == 1 else 0


def _files_in(folder: Path) -> Iterator[Path]:
    if folder.exists():
        yield from (path for path in folder.iterdir() if path.is_file())


def _inside(folder: Path, path: Path) -> Path:
    found = os.path.realpath(folder / path)
    if not found.startswith(os.path.realpath(folder) + os.sep):
        raise BadFile("That file is not among the uploads.")
    return Path(found)
