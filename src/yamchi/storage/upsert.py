"""`INSERT … ON CONFLICT`, the same words for SQLite and PostgreSQL."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_into(table: Table, *, is_sqlite: bool) -> sqlite.Insert | postgresql.Insert:
    """An insert that knows `on_conflict_do_nothing` and `on_conflict_do_update`."""
    return sqlite.insert(table) if is_sqlite else postgresql.insert(table)


def insert_new(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert the rows that do not exist yet, by any unique key; how many were inserted."""
    if not rows:
        return 0
    statement = insert_into(table, is_sqlite=connection.dialect.name == "sqlite").on_conflict_do_nothing()
    # SQLAlchemy does not ask PostgreSQL how many rows a list was, unless told to: it would say -1.
    return connection.execute(statement, list(rows), execution_options={"preserve_rowcount": True}).rowcount
