"""One SQLite file, shared by threads and processes: a writer with group commit, and readers beside it.

Work is handed over as plain functions of a connection. Everything handed over while a commit is on its way to the
disk goes into the next transaction together, so a thousand concurrent callers cost one fsync, not a thousand.
If a transaction fails, its functions are run again one by one, so that each caller gets its own result or error;
a function must therefore do nothing but SQL.
"""

import asyncio
import os
import queue
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from yamchi.errors import (
    EngineError,
    EngineUnavailable,
    StorageCorrupt,
    StorageFull,
    StorageReadOnly,
)

T = TypeVar("T")
Op = Callable[[sqlite3.Connection], T]
Ticket = tuple[Op[Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]

LOCK_PATIENCE = 30.0
"""How long a writer waits for other processes, in seconds."""

GROUP = 2_000
"""At most this many functions share a transaction, so that nobody waits long for others' work."""

_PRAGMAS = (
    "PRAGMA journal_mode=WAL",  # readers never wait for the writer, nor the writer for readers
    "PRAGMA synchronous=FULL",  # a commit is on the disk when it answers; group commit makes this cheap
    "PRAGMA foreign_keys=OFF",  # rows are tied together by the statements themselves
    "PRAGMA temp_store=MEMORY",
    "PRAGMA cache_size=-32000",  # 32 MB: the hot ends of the indexes of a million jobs
    "PRAGMA wal_autocheckpoint=4000",  # 16 MB of log before it is folded in: fewer, larger writes
    "PRAGMA journal_size_limit=67108864",  # give the log's disk space back after a burst
)


class SqliteFile:
    """A database file, its schema brought up to date when it is opened."""

    def __init__(self, path: Path, migrations: Sequence[str]) -> None:
        self.path = path
        self._migrations = migrations
        self._inbox: queue.SimpleQueue[list[Ticket] | None] = queue.SimpleQueue()
        self._outgoing: dict[asyncio.AbstractEventLoop, list[Ticket]] = {}
        self._reads: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._life = threading.Lock()

    # ── Life ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> None:
        """Make or migrate the file and start the threads. Raises one sentence if the file can't be used."""
        with self._life:
            if not self._threads:
                self._open()

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            writer = self._connect()
            _migrate(writer, self._migrations)
            reader = self._connect(readonly=True)
            self._watcher = self._connect(readonly=True)
        except (OSError, sqlite3.Error) as error:
            raise explain(error, self.path) from error
        self._seen = self._version()
        for name, work, connection in (
            ("writer", self._write_all, writer),
            ("reader", self._read_all, reader),
        ):
            thread = threading.Thread(target=work, args=(connection,), name=f"sqlite-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Finish what was handed over, then stop."""
        if not self._threads:
            return
        self._inbox.put(None)
        self._reads.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._watcher.close()

    def _connect(self, *, readonly: bool = False) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path,
            timeout=LOCK_PATIENCE,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        try:
            for pragma in _PRAGMAS:
                connection.execute(pragma)
            if readonly:
                connection.execute("PRAGMA query_only=ON")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    # ── Work ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def write(self, op: Op[T]) -> T:
        """Run this in a transaction; answers when it is on the disk."""
        self._check_open()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        outgoing = self._outgoing.get(loop)
        if outgoing is None:
            # What one turn of the event loop asks for is handed over together, at the end of that turn.
            outgoing = self._outgoing[loop] = []
            loop.call_soon(self._hand_over, loop)
        outgoing.append((op, future, loop))
        return await future

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        self._inbox.put(self._outgoing.pop(loop))

    async def read(self, op: Op[T]) -> T:
        """Run this on a connection that can't write and never waits for the writer."""
        self._check_open()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._reads.put((op, future, loop))
        return await future

    def _check_open(self) -> None:
        if not self._threads:
            raise EngineUnavailable(f"The database {self.path} is not open.")

    def changed_elsewhere(self) -> bool:
        """Whether anybody has committed since the last call: a few microseconds, so it can be asked often."""
        version = self._version()
        changed, self._seen = version != self._seen, version
        return changed

    def glance(self, op: Op[T]) -> T:
        """A look that takes microseconds, without leaving the caller's thread."""
        return op(self._watcher)

    def _version(self) -> int:
        return int(self._watcher.execute("PRAGMA data_version").fetchone()[0])

    # ── The threads ───────────────────────────────────────────────────────────────────────────────────────────────

    def _write_all(self, connection: sqlite3.Connection) -> None:
        with closing(connection):
            while (tickets := self._next_group()) is not None:
                _answer(self._commit(connection, tickets))

    def _next_group(self) -> list[Ticket] | None:
        tickets = self._inbox.get()
        if tickets is None:
            return None
        while len(tickets) < GROUP:
            try:
                more = self._inbox.get_nowait()
            except queue.Empty:
                break
            if more is None:
                self._inbox.put(None)
                break
            tickets.extend(more)
        return tickets

    def _commit(self, connection: sqlite3.Connection, tickets: list[Ticket]) -> list[tuple[Ticket, Any]]:
        try:
            results = _transact(connection, tickets)
        except Exception as error:
            if len(tickets) == 1:
                return [(tickets[0], explain(error, self.path))]
            return [answer for ticket in tickets for answer in self._commit(connection, [ticket])]
        return list(zip(tickets, results, strict=True))

    def _read_all(self, connection: sqlite3.Connection) -> None:
        with closing(connection):
            while (ticket := self._reads.get()) is not None:
                try:
                    result = ticket[0](connection)
                except Exception as error:
                    result = explain(error, self.path)
                _answer([(ticket, result)])


def _transact(connection: sqlite3.Connection, tickets: list[Ticket]) -> list[Any]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        results = [op(connection) for op, _, _ in tickets]
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return results


def _answer(answers: list[tuple[Ticket, Any]]) -> None:
    """Wake each event loop once for all of its answers."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = defaultdict(list)
    for (_, future, loop), result in answers:
        by_loop[loop].append((future, result))
    for loop, resolved in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, resolved)


def _resolve(resolved: list[tuple["asyncio.Future[Any]", Any]]) -> None:
    for future, result in resolved:
        if future.done():
            continue
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)


def _migrate(connection: sqlite3.Connection, migrations: Sequence[str]) -> None:
    """Run the migrations the file has not seen, each in its own transaction; safe when several processes start."""
    while True:
        connection.execute("BEGIN IMMEDIATE")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > len(migrations):
            connection.execute("ROLLBACK")
            raise EngineError(
                f"The database was made by a newer Yamchi (schema {version}, known {len(migrations)})."
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
    room = os.statvfs(path.parent)
    return room.f_bavail * room.f_frsize < 1_000_000


def explain(error: Exception, path: Path) -> Exception:
    """The same error as a sentence a person can act on."""
    if not isinstance(error, OSError | sqlite3.Error):
        return error
    text = str(error)
    if "disk is full" in text or "No space left" in text or ("I/O" in text and _is_full(path)):
        return StorageFull(
            f"The disk that holds {path} is full: nothing was written. Free some room; work resumes by itself."
        )
    if "readonly" in text or "read-only" in text or "Permission denied" in text:
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
            f"The database {path} has been locked by another process for {LOCK_PATIENCE:.0f} s."
        )
    return EngineError(f"SQLite refused ({text}) in {path}.")
