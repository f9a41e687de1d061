"""Many rows by one statement, straight to the driver: what SQLAlchemy works out for each row is worked out once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Dialect
from sqlalchemy.sql.dml import Insert

Row = Mapping[str, Any]
Bind = Callable[[Row], Any]

_prepared: "WeakKeyDictionary[Insert, dict[Dialect, tuple[str, Bind]]]" = WeakKeyDictionary()


def write_rows(connection: Connection, statement: Insert, rows: Sequence[Row]) -> int:
    """Insert rows that all have the same columns, by a statement that lives long; how many rows were changed."""
    known = _prepared.setdefault(statement, {})
    dialect = connection.dialect
    if dialect not in known:
        known[dialect] = _prepare(statement, dialect, list(rows[0]))
    text, bind = known[dialect]
    return connection.exec_driver_sql(text, [bind(row) for row in rows]).rowcount


def _prepare(statement: Insert, dialect: Dialect, columns: Sequence[str]) -> tuple[str, Bind]:
    """The text and how to bind a row. `in_` has no fixed text, and can't be part of such a statement."""
    compiled = statement.compile(dialect=dialect, column_keys=columns)
    constants = compiled.construct_params(dict.fromkeys(columns)) or {}
    places = (compiled.positiontup or []) if compiled.positional else list(constants)
    values = [(name, _value(statement, dialect, constants, name)) for name in places]
    if compiled.positional:
        return str(compiled), lambda row: tuple([value(row) for _, value in values])
    return str(compiled), lambda row: {name: value(row) for name, value in values}


def _value(statement: Insert, dialect: Dialect, constants: Row, name: str) -> Callable[[Row], Any]:
    """How to get one parameter from a row: a column's value as the driver wants it, or what the statement says."""
    column = statement.table.columns.get(name)
    if column is None:
        constant = constants[name]
        return lambda row: constant
    process = column.type.dialect_impl(dialect).bind_processor(dialect)
    if process is None:
        return lambda row: row[name]
    return lambda row: process(row[name])
