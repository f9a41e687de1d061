"""What a template can do to a value: Jinja's harmless filters, and those for people: dates, money, plurals.

{{ lesson_datetime|datetime }}                      25 февраля 2026 г. в 20:00      in the reader's language and zone
{{ 12990|money("KZT") }}                            12 990 ₸
{{ count }} {{ count|plural("фильм", "фильма", "фильмов") }}
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from functools import lru_cache, wraps
from typing import Any, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from babel import Locale, UnknownLocaleError
from babel.dates import format_date, format_datetime, format_time
from babel.numbers import format_currency, format_decimal, is_currency
from jinja2.environment import Environment
from jinja2.exceptions import FilterArgumentError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.nodes import EvalContext
from jinja2.runtime import Context, Undefined
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from yamchi.notifications.templates.markup import unescape
from yamchi.notifications.templates.meter import MAX_NUMBER, METER, SCALARS, SIZED, Meter
from yamchi.notifications.templates.rewriting import COMPARE, JOIN, LITERAL, LOOP, REPEAT, SLICE

Filter = Callable[..., Any]

# Each gives at most a few times what it takes; the ones that could grow without bound are replaced below.
_HARMLESS = (
    "abs capitalize count d default dictsort e escape filesizeformat first float forceescape groupby items last"
    " length list lower map max min reject rejectattr reverse safe select selectattr sort string title trim"
    " truncate unique upper urlencode wordcount"
)
# These hand their items on without looking inside them; the others pay for all that is inside.
_LOOK_AT_NOTHING = frozenset(
    [
        "batch",
        "count",
        "d",
        "default",
        "first",
        "items",
        "last",
        "length",
        "list",
        "map",
        "reject",
        "rejectattr",
        "reverse",
        "safe",
        "select",
        "selectattr",
    ]
)
# These go through a text letter by letter.
_TAKE_ITEMS = frozenset(
    [
        "batch",
        "dictsort",
        "groupby",
        "join",
        "list",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "select",
        "selectattr",
        "sort",
        "sum",
        "unique",
    ]
)
_TESTS_OF_KIND = "boolean defined divisibleby even false float integer iterable mapping none number odd sequence string true undefined"
_TESTS_OF_CONTENT = "eq equalto ge gt greaterthan in le lessthan lower lt ne upper == != > >= < <="

_TAGS = re.compile(r"<!--.*?(?:-->|\Z)|<[^<>]*>", re.DOTALL)
_NO_SIZE = frozenset({int, float, bool, type(None), Environment, Context, EvalContext})
_FORMATS = ("short", "medium", "long", "full")
_SIGNS = {"KZT": "₸", "RUB": "₽", "USD": "$", "EUR": "€", "GBP": "£"}  # the same in every language
_PLURAL_ORDER = ("zero", "one", "two", "few", "many", "other")
_SPARE_PLURAL = {"other": ("few", "many", "one"), "many": ("other",), "few": ("other",)}


# ── Dates, money, plurals ─────────────────────────────────────────────────────────────────────────────────────────


def as_date(value: object, format: str = "long") -> str:
    """The day: `short`, `medium`, `long`, `full`, or a CLDR pattern such as `d MMMM`."""
    return format_date(_local(value), format=_pattern(format), locale=_locale())


def as_time(value: object, format: str = "short") -> str:
    return format_time(_local(value), format=_pattern(format), tzinfo=_zone(), locale=_locale())


def as_datetime(value: object, format: str = "long") -> str:
    """The day in this format and the time to the minute; or one pattern for both."""
    if format not in _FORMATS:
        return format_datetime(_local(value), format=_pattern(format), tzinfo=_zone(), locale=_locale())
    day, hour = as_date(value, format), as_time(value)
    return (
        str(_locale().datetime_formats["long" if format == "full" else format])
        .format(hour, day)
        .replace("'", "")
    )


def money(value: object, currency: str = "KZT") -> str:
    """An amount with its currency; whole amounts without zeros after the point."""
    if not is_currency(currency):
        raise FilterArgumentError(f"{currency!r} is not a currency: write it as KZT, USD, EUR")
    amount, locale = _decimal(value), _locale()
    pattern = locale.currency_formats["standard"].pattern.replace("¤", _SIGNS.get(currency, "¤"))
    if amount == amount.to_integral_value():
        pattern = pattern.replace(".00", "")
    return format_currency(amount, currency, format=pattern, locale=locale, currency_digits=False)


def number(value: object) -> str:
    return format_decimal(_decimal(value), locale=_locale())


def plural(value: object, *forms: str) -> str:
    """The form that goes with the number: (one, few, many) in Russian, (one, other) in English and Kazakh."""
    count, locale = abs(_decimal(value)), _locale()
    names = [name for name in _PLURAL_ORDER if name in {*locale.plural_form.tags, "other"}]
    by_name = dict(zip(names, forms, strict=False))
    chosen = locale.plural_form(count)
    for name in (chosen, *_SPARE_PLURAL.get(chosen, ())):
        if name in by_name:
            return by_name[name]
    raise FilterArgumentError(f"plural needs a form for {', '.join(names)}")


def _locale() -> Locale:
    return _locale_of(METER.get().locale)


@lru_cache(maxsize=256)
def _locale_of(name: str) -> Locale:
    try:
        return Locale.parse(name, sep="-")
    except (UnknownLocaleError, ValueError):
        return Locale("en")


def _zone() -> ZoneInfo:
    """Looked up only when a time is written: a reader whose zone is wrong still gets a letter without times."""
    name = METER.get().timezone
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise FilterArgumentError(f"{name[:60]!r} is not a time zone: write it as Asia/Almaty") from None


def _pattern(format: str) -> str:
    if len(format) > 60:
        raise FilterArgumentError("a pattern for a date has at most 60 characters")
    return format


def _local(value: object) -> datetime:
    """A moment in the reader's time zone; one that names no zone is taken to be there already."""
    match value:
        case datetime():
            moment = value
        case date():
            moment = datetime.combine(value, time())
        case str():
            moment = _parse(value)
        case _:
            raise FilterArgumentError(
                f"{str(value)[:40]!r} is not a date: give text such as 2026-02-25T15:00:00Z"
            )
    return moment.astimezone(_zone()) if moment.tzinfo else moment.replace(tzinfo=_zone())


def _parse(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        message = f"{text[:40]!r} is not a date: give text such as 2026-02-25T15:00:00Z"
        raise FilterArgumentError(message) from None


def _decimal(value: object) -> Decimal:
    try:
        found = Decimal(str(value).strip()[:40])
    except InvalidOperation:
        found = Decimal("NaN")
    if not found.is_finite() or abs(found) > 10**18:
        raise FilterArgumentError(f"{str(value)[:40]!r} is not a number")
    return found


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
    found = sum(_decimal(item if attribute is None else _field(item, attribute)) for item in values)
    return int(found) if found == int(found) else found


def rounded(value: object, digits: int = 0) -> Decimal | int:
    if not 0 <= digits <= 10:
        raise FilterArgumentError("round keeps 0 to 10 digits")
    found = round(_decimal(value), digits)
    return int(found) if digits == 0 else found


def to_json(value: Any) -> Markup:
    """JSON that may stand in a script or an attribute."""
    return htmlsafe_json_dumps(METER.get().weigh(value), dumps=_dumps)


def _dumps(value: Any, **_: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


# ── What the rewriter puts in ─────────────────────────────────────────────────────────────────────────────────────


def _loop(values: Iterable[Any], written: int) -> Iterable[Any]:
    """Pay for each turn: one step, and the fixed text that it may write."""
    meter = METER.get()
    for value in values:
        meter.step()
        meter.text(written)
        yield value


def _metered(name: str, function: Filter) -> Filter:
    """Pay for what goes in and what comes out; an undefined value goes through, for `default`."""
    looks_inside, takes_items = name not in _LOOK_AT_NOTHING, name in _TAKE_ITEMS

    @wraps(function)
    def paid(*args: Any, **kwargs: Any) -> Any:
        meter = METER.get()
        meter.step()
        taken = [arg if type(arg) in _NO_SIZE else _taken(meter, arg, looks_inside) for arg in args]
        if kwargs:
            kwargs = {key: _taken(meter, arg, looks_inside) for key, arg in kwargs.items()}
        if takes_items:
            meter.step(max((len(arg) for arg in args if isinstance(arg, str)), default=0))
        result = function(*taken, **kwargs)
        if isinstance(result, str):
            meter.text(len(result))
        elif _comes_by_item(result):
            return _counted(meter, result)
        else:
            meter.charge(result)
        return result

    return paid


def _taken(meter: Meter, value: Any, looks_inside: bool) -> Any:
    """The value, paid for now or, if it comes item by item, as it comes."""
    if isinstance(value, str):
        meter.text(len(value))
        return value
    if _comes_by_item(value):
        return _looked_into(meter, value) if looks_inside else _counted(meter, value)
    if callable(value) and not isinstance(value, Undefined):
        raise FilterArgumentError("a filter takes data, and a function is none")
    meter.charge(value)
    if looks_inside and isinstance(value, SIZED):
        meter.pay(value)
    return value


def _comes_by_item(value: Any) -> bool:
    return hasattr(type(value), "__next__")  # isinstance with Iterator takes ten times as long


def _counted(meter: Meter, values: Iterator[Any]) -> Iterator[Any]:
    for value in values:
        meter.step()
        yield value


def _looked_into(meter: Meter, values: Iterator[Any]) -> Iterator[Any]:
    for value in values:
        meter.step()
        meter.pay(value)
        yield value


def _metered_test(function: Filter) -> Filter:
    """Pay for what is compared; what is not defined goes through, for `is defined`."""

    @wraps(function)
    def paid(*args: Any, **kwargs: Any) -> Any:
        meter = METER.get()
        meter.step()
        return function(*[_compared(arg) for arg in args], **kwargs)

    return paid


def _compared(value: Any) -> Any:
    """A side of a comparison: each pays for all that is inside it."""
    if type(value) in _NO_SIZE:
        return value
    meter = METER.get()
    if _comes_by_item(value):
        return _looked_into(meter, value)
    meter.pay(value)
    return value


def _defined(function: Filter) -> Filter:
    """A missing variable is told by its name before the filter looks at it."""

    @wraps(function)
    def checked(value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, Undefined):
            str(value)
        return function(value, *args, **kwargs)

    return checked


def _weighed(value: Any) -> Any:
    return METER.get().weigh(value)


def _slice(value: Any) -> Any:
    METER.get().charge(value)
    return value


def _repeat(written: int) -> None:
    METER.get().text(written)


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
    **{name: _metered(name, JINJA_FILTERS[name]) for name in _HARMLESS.split()},
    **{name: _metered(name, _defined(function)) for name, function in _OURS.items()},
    LOOP: _defined(_loop),
    LITERAL: _weighed,
    JOIN: _concat,
    REPEAT: _repeat,
    SLICE: _slice,
    COMPARE: _compared,
}
TESTS: dict[str, Any] = {
    **{name: JINJA_TESTS[name] for name in _TESTS_OF_KIND.split()},
    **{name: _metered_test(cast(Filter, JINJA_TESTS[name])) for name in _TESTS_OF_CONTENT.split()},
}
