"""Work in a transaction that the caller began, on a connection of theirs to the file of the queue."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from yamchi.errors import InvalidJob
from yamchi.queues.transactions import driver_connection, refuse

T = TypeVar("T")


async def within(connection: Any, path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    """Do this on a connection of sqlite3, or of SQLAlchemy over it, if it is to this file."""
    db = await driver_connection(connection)
    if not isinstance(db, sqlite3.Connection):
        raise refuse(db, f"the SQLite file {path}, by way of sqlite3")
    _check_file(db, path)
    if not db.in_transaction:
        _begin(db)
    return work(db)


def _begin(db: sqlite3.Connection) -> None:
    if getattr(db, "autocommit", None) is True:  # since Python 3.12; its `commit` does nothing
        raise InvalidJob(
            "connection is in autocommit mode, so there is no transaction that the job could be part of: "
            'begin one with connection.execute("BEGIN"), or add the job without connection.'
        )
    db.execute("BEGIN")


def _check_file(db: sqlite3.Connection, path: Path) -> None:
    files = {Path(file).resolve() for _, _, file in db.execute("PRAGMA database_list") if file}
    if path.resolve() not in files:
        shown = ", ".join(map(str, files)) or "memory"
        raise InvalidJob(
            f"connection is to {shown}: the queue is in {path}, so a transaction can't hold both."
        )
