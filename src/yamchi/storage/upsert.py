"""`INSERT … ON CONFLICT`, the same words for SQLite and PostgreSQL."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_new(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert those rows that are not there yet, by any unique key; how many that were."""
    if not rows:
        return 0
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    return connection.execute(dialect.insert(table).on_conflict_do_nothing(), list(rows)).rowcount
