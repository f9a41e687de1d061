"""SQLite in a forked process: it begins without the connections of its parent.

SQLite keeps its locks for a process as a whole. A forked one would believe that it has those of its parent and take none of its own:
another process that leaves the file as the last one would then take away the log that this one writes to, and what a parent
was writing at the moment would stay locked here for ever. So a fork waits until no connection is in use, and the child closes them
all before it opens its own. The parent's locks stay, and because of them nothing of the file is touched.
"""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep  # noqa: TID251 - waits for a lock of the file, whatever time it is
from typing import Any, TypeVar
from weakref import WeakSet

C = TypeVar("C")

WAIT_SECONDS = 30.0
"""How long a transaction waits for those of other processes, and a fork for transactions."""

IMPATIENT = "PRAGMA busy_timeout=100"
"""For a connection that writes: so many milliseconds at a time it waits for another process, and in between a fork may go ahead."""


class Connection(sqlite3.Connection):
    """One that a forked process closes. What uses it does so within `in_use`."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        _connections.add(self)


class _Uses:
    """How many use a connection now, and whether somebody waits to fork."""

    def __init__(self) -> None:
        self._is_quiet = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._number = 0
        self._is_forking = False

    # Both are on the way of every transaction: they take the bare lock, which costs no call of Python.

    def begin(self) -> None:
        with self._lock:
            while self._is_forking:
                self._changed.wait()
            self._number += 1

    def end(self) -> None:
        with self._lock:
            self._number -= 1
            if self._is_forking:
                self._changed.notify_all()

    def before_fork(self) -> None:
        with self._lock:
            self._changed.wait_for(lambda: not self._is_forking)
            self._is_forking = True
            self._is_quiet = self._changed.wait_for(lambda: not self._number, WAIT_SECONDS)

    def after_in_parent(self) -> None:
        with self._lock:
            self._is_forking = False
            self._changed.notify_all()

    def after_in_child(self) -> None:
        self._begin_anew()
        if self._is_quiet:  # else a thread that is not here may hold what closing it would wait for
            for connection in list(_connections):
                connection.close()


_connections: WeakSet[Connection] = WeakSet()
_uses = _Uses()
os.register_at_fork(
    before=_uses.before_fork,
    after_in_parent=_uses.after_in_parent,
    after_in_child=_uses.after_in_child,
)


@contextmanager
def in_use() -> Iterator[None]:
    """Use connections, while nobody forks. Not to be nested."""
    _uses.begin()
    try:
        yield
    finally:
        _uses.end()


def using(transact: Callable[[C, Sequence[Any]], list[Any]]) -> Callable[[C, Sequence[Any]], list[Any]]:
    """The same work, done while nobody forks. While another process has the file locked, it is tried again and again."""

    def run(connection: C, ops: Sequence[Any]) -> list[Any]:
        give_up = monotonic() + WAIT_SECONDS
        while True:
            _uses.begin()
            try:
                return transact(connection, ops)
            except Exception as error:
                if monotonic() > give_up or not _is_locked(error):
                    raise
            finally:
                _uses.end()
            sleep(0.001)  # SQLite does not wait for every lock

    return run


def _is_locked(error: Exception) -> bool:
    cause = getattr(error, "orig", error)  # of SQLAlchemy, or SQLite's own
    return getattr(cause, "sqlite_errorname", "").startswith("SQLITE_BUSY")
