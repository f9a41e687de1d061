"""A connection of the caller's, as the SQL of adding uses one."""

from typing import Any, cast

import psycopg
from psycopg.rows import tuple_row

from yamchi.queues.engines.pgmq.connections import Connection
from yamchi.queues.transactions import driver_connection, refuse


class _Theirs:
    """A connection of psycopg whose rows are tuples, whatever the caller likes them to be."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def execute(self, statement: Any, values: Any) -> Any:
        return await self._connection.cursor(row_factory=tuple_row).execute(statement, values)


class _Blocking:
    """The same of a blocking one: what it does is done when it returns."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    async def execute(self, statement: Any, values: Any) -> "_Rows":
        return _Rows(self._connection.cursor(row_factory=tuple_row).execute(statement, values))


class _Rows:
    def __init__(self, cursor: psycopg.Cursor[tuple[Any, ...]]) -> None:
        self._cursor = cursor

    async def fetchall(self) -> list[tuple[Any, ...]]:
        return self._cursor.fetchall()


async def caller_connection(connection: Any, host: str) -> Connection:
    """The caller's connection of psycopg or SQLAlchemy, blocking or not."""
    raw = await driver_connection(connection)
    if isinstance(raw, psycopg.AsyncConnection):
        return cast(Connection, _Theirs(raw))
    if isinstance(raw, psycopg.Connection):
        return cast(Connection, _Blocking(raw))
    raise refuse(raw, f"PostgreSQL at {host}, by way of psycopg")
