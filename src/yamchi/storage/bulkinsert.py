"""Many rows by one statement, straight to the driver: SQLAlchemy prepares the statement once and not for each row."""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Dialect
from sqlalchemy.sql.dml import Insert

Row = Mapping[str, Any]
Bind = Callable[[Row], Any]

_prepared: "WeakKeyDictionary[Insert, dict[Dialect, tuple[str, Bind]]]" = WeakKeyDictionary()


def write_rows(connection: Connection, statement: Insert, rows: Sequence[Row]) -> int:
    """Insert rows with the same columns, by a statement that is used again and again; how many rows were changed."""
    if not rows:
        return 0
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
    values = _getter(statement, dialect, columns, constants, places)
    if compiled.positional:
        return str(compiled), values
    return str(compiled), lambda row: dict(zip(places, values(row), strict=True))


def _getter(
    statement: Insert, dialect: Dialect, columns: Sequence[str], constants: Row, places: Sequence[str]
) -> Callable[[Row], tuple[Any, ...]]:
    """The values of a row in the order of their places, as the driver wants them."""
    own = {name: value for name, value in constants.items() if name not in columns}
    pick = itemgetter(*places)
    processors = [
        (place, process)
        for place, name in enumerate(places)
        if name not in own and (process := _processor(statement, dialect, name))
    ]

    def values(row: Row) -> tuple[Any, ...]:
        found = list(pick({**own, **row}))
        for place, process in processors:
            found[place] = process(found[place])
        return tuple(found)

    return values


def _processor(statement: Insert, dialect: Dialect, name: str) -> Callable[[Any], Any] | None:
    return statement.table.columns[name].type.dialect_impl(dialect).bind_processor(dialect)
