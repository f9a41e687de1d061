"""Filters for people: dates, money, numbers and plurals, in the reader's language and time zone.

{{ lesson_datetime|datetime }}                      25 февраля 2026 г. в 20:00
{{ 12990|money("KZT") }}                            12 990 ₸
{{ count }} {{ count|plural("фильм", "фильма", "фильмов") }}
"""

from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from babel import Locale, UnknownLocaleError
from babel.dates import format_date, format_datetime, format_time
from babel.numbers import format_currency, format_decimal, is_currency
from jinja2.exceptions import FilterArgumentError

from yamchi.notifications.templates.meter import METER

_FORMATS = ("short", "medium", "long", "full")
_SIGNS = {"KZT": "₸", "RUB": "₽", "USD": "$", "EUR": "€", "GBP": "£"}  # the same in every language
_PLURAL_ORDER = ("zero", "one", "two", "few", "many", "other")
_SPARE_PLURAL = {"other": ("few", "many", "one"), "many": ("other",), "few": ("other",)}


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
    amount, locale = decimal_of(value), _locale()
    pattern = locale.currency_formats["standard"].pattern.replace("¤", _SIGNS.get(currency, "¤"))
    if amount == amount.to_integral_value():
        pattern = pattern.replace(".00", "")
    return format_currency(amount, currency, format=pattern, locale=locale, currency_digits=False)


def number(value: object) -> str:
    return format_decimal(decimal_of(value), locale=_locale())


def plural(value: object, *forms: str) -> str:
    """The form that goes with the number: (one, few, many) in Russian, (one, other) in English and Kazakh."""
    count, locale = abs(decimal_of(value)), _locale()
    names = [name for name in _PLURAL_ORDER if name in {*locale.plural_form.tags, "other"}]
    by_name = dict(zip(names, forms, strict=False))
    chosen = locale.plural_form(count)
    for name in (chosen, *_SPARE_PLURAL.get(chosen, ())):
        if name in by_name:
            return by_name[name]
    raise FilterArgumentError(f"plural needs a form for {', '.join(names)}")


def _locale() -> Locale:
    return locale_of(METER.get().locale)


@lru_cache(maxsize=256)
def locale_of(name: str) -> Locale:
    """The conventions of a language, `en-US` or `kk`; English for what is none."""
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


def decimal_of(value: object) -> Decimal:
    try:
        found = Decimal(str(value).strip()[:40])
    except InvalidOperation:
        found = Decimal("NaN")
    if not found.is_finite() or abs(found) > 10**18:
        raise FilterArgumentError(f"{str(value)[:40]!r} is not a number")
    return found
