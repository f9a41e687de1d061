"""The filters and tests that a template may use: harmless ones of Jinja, bounded versions of the others, and our own."""

import json
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, cast

from jinja2.exceptions import FilterArgumentError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.runtime import Undefined
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from yamchi.notifications.templates.formatting import (
    as_date,
    as_datetime,
    as_time,
    decimal_of,
    money,
    number,
    plural,
)
from yamchi.notifications.templates.markup import unescape
from yamchi.notifications.templates.meter import MAX_NUMBER, METER, SCALARS
from yamchi.notifications.templates.metering import (
    Filter,
    checked_defined,
    metered,
    metered_comparison,
    metered_literal,
    metered_loop,
    metered_repeat,
    metered_slice,
    metered_test,
)
from yamchi.notifications.templates.rewriting import COMPARE, JOIN, LITERAL, LOOP, REPEAT, SLICE

# Each gives at most a few times what it takes; the ones that could grow without bound are replaced below.
_HARMLESS = (
    "abs capitalize count d default dictsort e escape filesizeformat first float forceescape groupby items last"
    " length list lower map max min reject rejectattr reverse safe select selectattr sort string title trim"
    " truncate unique upper urlencode wordcount"
)
_TESTS_OF_KIND = "boolean defined divisibleby even false float integer iterable mapping none number odd sequence string true undefined"
_TESTS_OF_CONTENT = "eq equalto ge gt greaterthan in le lessthan lower lt ne upper == != > >= < <="
_TAGS = re.compile(r"<!--.*?(?:-->|\Z)|<[^<>]*>", re.DOTALL)


# ── Jinja's own, with a bound ─────────────────────────────────────────────────────────────────────────────────────


def joined(values: Iterable[Any], separator: str = "", attribute: str | None = None) -> str:
    items = values if attribute is None else (_field(item, attribute) for item in values)
    return _concat([part for item in items for part in (separator, item)][1:])


def _field(item: Any, attribute: str) -> Any:
    return item.get(attribute, "") if isinstance(item, dict) else ""


def _concat(parts: Iterable[Any]) -> str:
    """One text of all parts; if one is HTML, the others are escaped."""
    texts = [as_text(part) for part in parts]
    METER.get().text(sum(map(len, texts)))
    if any(isinstance(text, Markup) for text in texts):
        return Markup("").join(texts)
    return "".join(texts)


def as_text(value: Any) -> str:
    """What is written for a value: nothing for null, and never Python's way of writing a list."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, (*SCALARS, Undefined)):
        return str(value)
    raise FilterArgumentError(f"a {_kind(value)} can't be written as text: loop over it or use |join")


def _kind(value: object) -> str:
    return (
        "mapping"
        if isinstance(value, dict)
        else "list"
        if isinstance(value, list | tuple)
        else type(value).__name__
    )


def replaced(value: Any, old: str, new: str) -> str:
    text = as_text(value)
    METER.get().text(len(text) + text.count(old) * len(new))
    return text.replace(old, new)


def without_tags(value: Any) -> str:
    """The words of HTML; read once, where Jinja's own starts again behind every comment."""
    return " ".join(unescape(_TAGS.sub("", as_text(value))).split())


def as_int(value: Any, default: int = 0, base: int = 10) -> int:
    found = JINJA_FILTERS["int"](value, default, base)
    if isinstance(found, int) and abs(found) > MAX_NUMBER:
        raise FilterArgumentError(f"{str(value)[:40]!r} is too large a number")
    return int(found)


def batch(values: Iterable[Any], size: int, fill: Any = None) -> list[list[Any]]:
    """Rows of `size`; the last is filled up with `fill` if there is one."""
    if not 1 <= size <= 1000:
        raise FilterArgumentError("batch makes rows of 1 to 1000")
    items = list(values)
    rows = [items[start : start + size] for start in range(0, len(items), size)]
    if rows and fill is not None:
        rows[-1] += [fill] * (size - len(rows[-1]))
    return rows


def total(values: Iterable[Any], attribute: str | None = None) -> Decimal | int:
    found = sum(decimal_of(item if attribute is None else _field(item, attribute)) for item in values)
    return int(found) if found == int(found) else found


def rounded(value: object, digits: int = 0) -> Decimal | int:
    if not 0 <= digits <= 10:
        raise FilterArgumentError("round keeps 0 to 10 digits")
    found = round(decimal_of(value), digits)
    return int(found) if digits == 0 else found


def to_json(value: Any) -> Markup:
    """JSON that may stand in a script or an attribute."""
    return htmlsafe_json_dumps(METER.get().weigh(value), dumps=_dumps)


def _dumps(value: Any, **_: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


# ── The tables ────────────────────────────────────────────────────────────────────────────────────────────────────


_OURS: dict[str, Filter] = {
    "batch": batch,
    "int": as_int,
    "striptags": without_tags,
    "date": as_date,
    "datetime": as_datetime,
    "join": joined,
    "money": money,
    "number": number,
    "plural": plural,
    "replace": replaced,
    "round": rounded,
    "sum": total,
    "time": as_time,
    "tojson": to_json,
}

FILTERS: dict[str, Filter] = {
    **{name: metered(name, JINJA_FILTERS[name]) for name in _HARMLESS.split()},
    **{name: metered(name, checked_defined(function)) for name, function in _OURS.items()},
    LOOP: checked_defined(metered_loop),
    LITERAL: metered_literal,
    JOIN: _concat,
    REPEAT: metered_repeat,
    SLICE: metered_slice,
    COMPARE: metered_comparison,
}
TESTS: dict[str, Any] = {
    **{name: JINJA_TESTS[name] for name in _TESTS_OF_KIND.split()},
    **{name: metered_test(cast(Filter, JINJA_TESTS[name])) for name in _TESTS_OF_CONTENT.split()},
}
