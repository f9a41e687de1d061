"""`where`: a small filter on people, compiled to SQL with bound parameters, for SQLite and PostgreSQL alike.

    {"attributes.plan": "pro", "locale": ["ru", "kk"], "attributes.age": {"gte": 18, "lt": 30}, "phone": {"exists": true}}

All of it must be true. A plain value means equal, a list means one of these, null means not known. A value is only ever
compared with its own kind: an age that somebody stored as text is neither above 18 nor below it.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Float, Numeric, and_, case, cast, func, not_, or_, true
from sqlalchemy import String as Text
from sqlalchemy.exc import ArgumentError

from yamchi.clock import in_utc, to_moment
from yamchi.errors import InvalidJob
from yamchi.notifications.tables import users

TEXTS = ("user_id", "email", "phone", "telegram_id", "locale", "timezone")
FIELDS = (*TEXTS, "created_at", "attributes.<name>")
MAX_LIST_VALUES = 1_000
"""Values in one list."""
MAX_CONDITIONS = 50
MAX_VALUES = 5_000
"""In all lists together. Each value is a part of the query, which is put together on the event loop."""

_PATH = re.compile(r"attributes(\.[\w-]{1,100}){1,8}", re.ASCII)

Value = ColumnElement[Any]
Compare = Callable[[Value, Any], ColumnElement[bool]]

COMPARISONS: Mapping[str, Compare] = {
    "gt": lambda field, value: field > value,
    "gte": lambda field, value: field >= value,
    "lt": lambda field, value: field < value,
    "lte": lambda field, value: field <= value,
}
OPERATORS = ("eq", "ne", "in", "not_in", *COMPARISONS, "exists")


LARGEST_WHOLE = 2**63
"""Beyond it SQLite knows a number only as a float."""


class Field:
    """A field of a person: its value as one kind of thing, NULL where it is of another."""

    def __init__(self, name: str, is_embedded: bool) -> None:
        self.name = name
        self._is_embedded = is_embedded
        self._path = name.split(".")[1:]
        if name not in (*TEXTS, "created_at") and not _PATH.fullmatch(name):
            raise InvalidJob(f"audience.where: there is no field {name[:60]!r}: use {', '.join(FIELDS)}.")

    def as_kind_of(self, value: Any) -> tuple[Value, Any]:
        """The field and the value, fit to be compared."""
        match value:
            case bool() if self._path:
                return self._truth(), int(value)
            case int() | float() if self._path and not isinstance(value, bool):
                return self._number(), value if abs(value) < LARGEST_WHOLE else float(value)
            case str() if self._path:
                return self._text(), value
            case str() if self.name == "created_at":
                return users.c.created_at, self._moment(value)
            case str():
                return users.c[self.name], value
        raise InvalidJob(f"audience.where: {self.name} can't be compared with {repr(value)[:60]}.")

    def is_missing(self) -> ColumnElement[bool]:
        if not self._path:
            return users.c[self.name].is_(None)
        return or_(self._kind().is_(None), self._kind() == "null")

    def _moment(self, value: str) -> int:
        try:
            return to_moment(in_utc(datetime.fromisoformat(value)))
        except ValueError as error:
            raise InvalidJob(
                f"audience.where: {value[:60]!r} is no moment such as 2026-01-31T12:00:00Z."
            ) from error

    # ── JSON, in two dialects ─────────────────────────────────────────────────────────────────────────────────────

    def _kind(self) -> Value:
        if self._is_embedded:
            return func.json_type(users.c.attributes, self._json_path(), type_=Text)
        return func.json_typeof(func.json_extract_path(users.c.attributes, *self._path), type_=Text)

    def _value(self, kept_as: Any = Text) -> Value:
        if self._is_embedded:
            return func.json_extract(users.c.attributes, self._json_path(), type_=kept_as)
        return func.json_extract_path_text(users.c.attributes, *self._path, type_=Text)

    def _json_path(self) -> str:
        return "$" + "".join(f'."{part}"' for part in self._path)

    def _text(self) -> Value:
        return case((self._kind() == ("text" if self._is_embedded else "string"), self._value()))

    def _number(self) -> Value:
        """The cast is under the condition: PostgreSQL would refuse the whole query for one person's text."""
        if self._is_embedded:
            return case((self._kind().in_(("integer", "real")), self._value(Float)))
        return case((self._kind() == "number", cast(self._value(), Numeric)))

    def _truth(self) -> Value:
        if self._is_embedded:
            return case((self._kind() == "true", 1), (self._kind() == "false", 0))
        return case((self._kind() == "boolean", case((self._value() == "true", 1), else_=0)))


def compile_where(where: Mapping[str, Any], *, is_embedded: bool) -> ColumnElement[bool]:
    """The filter as SQL; one sentence about what can't be understood."""
    _check_size(where)
    try:
        conditions = [_condition(Field(name, is_embedded), condition) for name, condition in where.items()]
    except ArgumentError as error:
        raise InvalidJob(f"audience.where can't be understood: {error}.") from error
    return and_(true(), *conditions)


def _check_size(where: Mapping[str, Any]) -> None:
    conditions = [
        part
        for condition in where.values()
        for part in (condition.values() if isinstance(condition, dict) else [condition])
    ]
    if len(conditions) > MAX_CONDITIONS:
        raise InvalidJob(f"audience.where has {len(conditions):,} conditions: give at most {MAX_CONDITIONS}.")
    if (
        values := sum(len(condition) for condition in conditions if isinstance(condition, list))
    ) > MAX_VALUES:
        raise InvalidJob(f"audience.where has {values:,} values in its lists: give at most {MAX_VALUES:,}.")


def _condition(field: Field, condition: Any) -> ColumnElement[bool]:
    match condition:
        case dict():
            return _all_of(field, condition)
        case list():
            return _one_of(field, condition)
        case None:
            return field.is_missing()
    kept, value = field.as_kind_of(condition)
    same: ColumnElement[bool] = kept == value
    return same


def _all_of(field: Field, conditions: Mapping[str, Any]) -> ColumnElement[bool]:
    if not conditions:
        raise InvalidJob(f"audience.where: {field.name} says nothing: use one of {', '.join(OPERATORS)}.")
    return and_(*(_operation(field, operator, value) for operator, value in conditions.items()))


def _operation(field: Field, operator: str, value: Any) -> ColumnElement[bool]:
    match operator, value:
        case "eq", _ if not isinstance(value, dict | list):
            return _condition(field, value)
        case "ne", _ if not isinstance(value, dict | list):
            return _not(_condition(field, value))
        case "in", list():
            return _one_of(field, value)
        case "not_in", list():
            return _not(_one_of(field, value))
        case "exists", bool():
            return not_(field.is_missing()) if value else field.is_missing()
    if operator in COMPARISONS and isinstance(value, int | float | str) and not isinstance(value, bool):
        kept, wanted = field.as_kind_of(value)
        return COMPARISONS[operator](kept, wanted)
    if operator in OPERATORS:
        raise InvalidJob(f"audience.where: {field.name}: {operator} can't be used with {repr(value)[:60]}.")
    raise InvalidJob(
        f"audience.where: {field.name}: there is no operator {operator[:60]!r}: use {', '.join(OPERATORS)}."
    )


def _not(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Also true of those of whom it is not known."""
    return not_(func.coalesce(condition, False))


def _one_of(field: Field, values: Sequence[Any]) -> ColumnElement[bool]:
    if not 0 < len(values) <= MAX_LIST_VALUES:
        raise InvalidJob(
            f"audience.where: {field.name} has a list of {len(values):,} values: give 1 to {MAX_LIST_VALUES:,}."
        )
    if any(isinstance(value, dict | list) for value in values):
        raise InvalidJob(f"audience.where: {field.name} has a list with more than plain values.")
    of_kind: dict[type, list[Any]] = defaultdict(list)
    for value in values:
        of_kind[type(value)].append(value)
    return or_(*(_one_of_a_kind(field, alike) for alike in of_kind.values()))


def _one_of_a_kind(field: Field, values: Sequence[Any]) -> ColumnElement[bool]:
    """As one list: SQLite refuses a query in which a thousand conditions stand beside each other."""
    if values[0] is None:
        return field.is_missing()
    pairs = [field.as_kind_of(value) for value in values]
    return pairs[0][0].in_([value for _, value in pairs])
