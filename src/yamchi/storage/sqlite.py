"""One SQLite file, shared by threads and processes: a writer with group commit, and a reader beside it."""

import os
import random
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, sleep  # noqa: TID251 - waits for a lock of the file, whatever time it is
from typing import Any, Generic, TypeVar

from yamchi.errors import (
    EngineError,
    EngineUnavailable,
    StorageCorrupt,
    StorageFull,
    StorageReadOnly,
)
from yamchi.storage.forking import IMPATIENT, Connection, in_use, using
from yamchi.storage.groupcommit import GroupCommit
from yamchi.storage.private import make_private

T = TypeVar("T")
Op = Callable[[sqlite3.Connection], T]

LOCK_SECONDS = 30.0
"""How long a writer waits for other processes, in seconds."""

_PRAGMAS = (
    "PRAGMA synchronous=FULL",  # a commit is on the disk when it answers; group commit makes this cheap
    "PRAGMA foreign_keys=OFF",  # rows are tied together by the statements themselves
    "PRAGMA temp_store=MEMORY",
    "PRAGMA cache_size=-32000",  # 32 MB: the hot ends of the indexes of a million jobs
    "PRAGMA wal_autocheckpoint=4000",  # 16 MB of log before it is folded in: fewer, larger writes
    "PRAGMA journal_size_limit=67108864",  # give the log's disk space back after a burst
)


@dataclass(frozen=True, slots=True)
class NotDurable(Generic[T]):
    """Work that could be found out anew after a power failure, and need not wait for the disk."""

    op: Op[T]

    def __call__(self, connection: sqlite3.Connection) -> T:
        return self.op(connection)


class SqliteFile:
    """A database file, its schema brought up to date when it is opened."""

    def __init__(self, path: Path, migrations: Sequence[str]) -> None:
        self.path = path
        self._migrations = migrations
        self._life = threading.Lock()
        self._connections: list[sqlite3.Connection] = []

    # ── Life ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> None:
        """Make or migrate the file and start the threads. Raises one sentence if the file can't be used."""
        with self._life:
            if not self._connections:
                with in_use():
                    self._open()

    def _open(self) -> None:
        try:
            make_private(self.path)
            writing = self._connect()
            _migrate(writing, self._migrations, self.path)
            writing.execute(IMPATIENT)
            reading, self._watcher = self._connect(readonly=True), self._connect(readonly=True)
            self._seen = _version(self._watcher)
        except (OSError, sqlite3.Error) as error:
            raise explain(error, self.path) from error
        explained = partial(explain, path=self.path)
        self._writer = GroupCommit("sqlite-writer", writing, using(_Transactions()), explained)
        self._reader = GroupCommit("sqlite-reader", reading, using(_look), explained)
        self._connections = [writing, reading, self._watcher]

    def close(self) -> None:
        """Finish what was handed over, then stop."""
        with self._life:
            if self._connections:
                self._writer.stop()
                self._reader.stop()
            with in_use():
                for connection in self._connections:
                    connection.close()
            self._connections = []

    def _connect(self, *, readonly: bool = False) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path,
            timeout=LOCK_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            factory=Connection,
        )
        try:
            write_ahead(connection)
            for pragma in _PRAGMAS:
                connection.execute(pragma)
            if readonly:
                connection.execute("PRAGMA query_only=ON")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    # ── Work ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def write(self, op: Op[T], *, durable: bool = True) -> T:
        """Run this in a transaction; answers when it is on the disk.

        What need not outlast a power failure (`durable` False) answers sooner: it is safe from the end of this process.
        """
        self._check_open()
        return await self._writer.run(op if durable else NotDurable(op))

    async def read(self, op: Op[T]) -> T:
        """Run this on a connection that can't write and never waits for the writer."""
        self._check_open()
        return await self._reader.run(op)

    def _check_open(self) -> None:
        if not self._connections:
            raise EngineUnavailable(f"The database {self.path} is not open.")

    def changed_elsewhere(self) -> bool:
        """Whether anybody has committed since the last call: a few microseconds, so it can be asked often."""
        version = self.peek(_version)
        changed, self._seen = version != self._seen, version
        return changed

    def peek(self, op: Op[T]) -> T:
        """A look that takes microseconds, without leaving the caller's thread."""
        with in_use():
            return op(self._watcher)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def write_ahead(connection: sqlite3.Connection) -> None:
    """Log ahead: then readers never wait for the writer, nor the writer for readers.

    Changing the mode of a fresh file takes a lock for which SQLite itself does not wait.
    """
    give_up = monotonic() + LOCK_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or monotonic() > give_up:
                raise
            sleep(random.uniform(0.001, 0.01))


class _Transactions:
    """Runs work in transactions of the writer, each as safe as the work in it asks for."""

    def __init__(self) -> None:
        self._is_durable = True

    def __call__(self, connection: sqlite3.Connection, ops: Sequence[Op[Any]]) -> list[Any]:
        self._prepare(connection, is_durable=not all(isinstance(op, NotDurable) for op in ops))
        connection.execute("BEGIN IMMEDIATE")
        try:
            results = [op(connection) for op in ops]
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return results

    def _prepare(self, connection: sqlite3.Connection, *, is_durable: bool) -> None:
        if is_durable != self._is_durable:
            connection.execute(f"PRAGMA synchronous={'FULL' if is_durable else 'NORMAL'}")
            self._is_durable = is_durable


def _look(connection: sqlite3.Connection, ops: Sequence[Op[Any]]) -> list[Any]:
    return [op(connection) for op in ops]


def _migrate(connection: sqlite3.Connection, migrations: Sequence[str], path: Path) -> None:
    """Run the migrations the file has not seen, each in its own transaction; safe when several processes start."""
    while True:
        connection.execute("BEGIN IMMEDIATE")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > len(migrations):
            connection.execute("ROLLBACK")
            raise EngineError(
                f"The database {path} was made by a newer Yamchi (schema {version}, known here: {len(migrations)}): "
                "upgrade this one, or use another file."
            )
        if version == len(migrations):
            connection.execute("COMMIT")
            return
        for statement in migrations[version].split(";"):
            if statement.strip():
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version={version + 1}")
        connection.execute("COMMIT")


def _is_full(path: Path) -> bool:
    try:
        room = os.statvfs(path.parent)
    except OSError:  # the disk itself is gone
        return False
    return room.f_bavail * room.f_frsize < 1_000_000


def _is_locked_up(path: Path, text: str) -> bool:
    """SQLite says only that it can't open a file which it can't make beside the database."""
    return "unable to open" in text and path.parent.is_dir() and not os.access(path.parent, os.W_OK)


def explain(error: Exception, path: Path) -> Exception:
    """The same error as a sentence a person can act on."""
    if not isinstance(error, OSError | sqlite3.Error):
        return error
    text = str(error)
    if "disk is full" in text or "No space left" in text or ("I/O" in text and _is_full(path)):
        return StorageFull(
            f"The disk that holds {path} is full: nothing was written. Free some room; work resumes by itself."
        )
    if (
        "readonly" in text
        or "read-only" in text.lower()
        or "Permission denied" in text
        or _is_locked_up(path, text)
    ):
        return StorageReadOnly(
            f"The database {path} can't be written: check who owns the file and its folder."
        )
    if "not a database" in text or "malformed" in text:
        return StorageCorrupt(
            f"{path} is damaged or is not a SQLite database: move it away, or restore a copy."
        )
    if "unable to open" in text or isinstance(error, OSError):
        return EngineUnavailable(
            f"The database {path} can't be opened ({text}): check the path and its permissions."
        )
    if "locked" in text or "busy" in text:
        return EngineUnavailable(
            f"The database {path} has been locked by another process for {LOCK_SECONDS:.0f} s."
        )
    return EngineError(f"SQLite refused ({text}) in {path}.")
