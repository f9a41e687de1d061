"""Time is a parameter: everything in Yamchi asks a `Clock`, so that 48 hours of a chain are a millisecond in a test.

Moments inside are whole milliseconds since 1970 (UTC), as BullMQ has them; people see aware `datetime`s.
A span may be written as a `timedelta`, a number of seconds, or text such as "30m", "1h30m", "250ms", "7d".
"""

import asyncio
import math
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from yamchi.errors import InvalidJob

Millis = int
Span = timedelta | int | float | str

LONGEST_SPAN: Millis = 36_525 * 86_400_000
"""A hundred years: now plus any span is still a valid moment."""

EARLIEST: Millis = -2_208_988_800_000
LATEST: Millis = 253_402_300_799_999
"""The valid moments: from the beginning of 1900 to the end of 9999."""

_MILLISECOND = timedelta(milliseconds=1)
_LONGEST_TEXT = 100
_SHOWN = 60

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|min|s|m|h|d|w)\s*")


class Clock(Protocol):
    """Tells the time."""

    def now(self) -> Millis:
        """The present moment."""

    async def sleep(self, span: Millis) -> None:
        """Return when this much time has passed."""


class SystemClock:
    """The machine's own time."""

    def now(self) -> Millis:
        return time.time_ns() // 1_000_000

    async def sleep(self, span: Millis) -> None:
        await asyncio.sleep(span / 1000)


def to_millis(span: Span) -> Millis:
    """The length of a span in milliseconds; a sentence that names the text if it can't be read or is out of bounds."""
    match span:
        case bool():
            raise InvalidJob(f"{span!r} is not a span of time.")
        case timedelta():
            return _bounded(round(span / _MILLISECOND), span)
        case int():
            return _bounded(span * 1000, span)
        case float() if math.isfinite(span * 1000):
            return _bounded(round(span * 1000), span)
        case float() if math.isfinite(span):
            return _bounded(LONGEST_SPAN + 1, span)
        case str():
            return _bounded(_read_span(span), span)
    raise InvalidJob(
        f"{in_short(span)} is not a span of time: give a timedelta, seconds, or text such as '30m'."
    )


def _bounded(length: Millis, span: Span) -> Millis:
    if abs(length) > LONGEST_SPAN:
        raise InvalidJob(f"{in_short(span)} is longer than the {LONGEST_SPAN // 86_400_000:,} days allowed.")
    return length


def _read_span(text: str) -> Millis:
    stripped = text.strip() if len(text) <= _LONGEST_TEXT else ""
    parts = list(_PART.finditer(stripped))
    units = {_UNITS[part[2]] for part in parts}
    # "1m 5m 15m" are three spans, which somebody took for steps.
    if not parts or len(units) < len(parts) or "".join(part.group() for part in parts) != stripped:
        raise InvalidJob(
            f"{in_short(text)} is not a span of time: write it as '30s', '5m', '1h30m', '7d' or '250ms'."
        )
    return round(sum(float(part[1]) * _UNITS[part[2]] for part in parts))


def to_moment(moment: datetime) -> Millis:
    """A moment in milliseconds; a `datetime` without a time zone is refused, since it would be a guess."""
    if not isinstance(moment, datetime):
        raise InvalidJob(f"{in_short(moment)} is not a moment: give a datetime with a time zone.")
    if moment.tzinfo is None:
        raise InvalidJob(
            f"{moment.isoformat()} has no time zone: add one, such as Z or +05:00 (tzinfo=UTC in Python)."
        )
    return check_moment(round(moment.timestamp() * 1000))


def check_moment(moment: Millis) -> Millis:
    """The moment, if every calendar and database can show it."""
    if not EARLIEST <= moment <= LATEST:
        raise InvalidJob("A moment must be between the years 1900 and 9999.")
    return moment


def in_utc(moment: datetime) -> datetime:
    """A moment in UTC; one without a time zone is UTC already, as the contract's examples are."""
    aware = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    if not 1900 < aware.year < 9999:  # else it is within the bounds in every time zone
        to_moment(aware)
    return aware.astimezone(UTC)


def check_zone(name: str) -> str:
    """The name of a time zone, if there is such a zone."""
    try:
        return ZoneInfo(name).key
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # "Asia" is a folder of zones
        raise InvalidJob(
            f"{in_short(name)} is not a time zone: write it as 'Asia/Almaty' or 'UTC'."
        ) from error


def as_datetime(moment: Millis) -> datetime:
    return datetime.fromtimestamp(moment / 1000, UTC)


def isoformat(moment: Millis) -> str:
    """UTC with a `Z`, to the second when there are no milliseconds: 2025-11-21T12:34:56Z.

    A number that is no moment, such as another program may have stored, is shown as it is: a list must not fail for it.
    """
    try:
        when = as_datetime(moment)
    except (ValueError, OverflowError, OSError, TypeError):
        return f"{in_short(moment)} is no moment"
    return when.isoformat(timespec="milliseconds" if moment % 1000 else "seconds").replace("+00:00", "Z")


def isoformat_or_none(moment: Millis | None) -> str | None:
    """The same for an optional moment."""
    return None if moment is None else isoformat(moment)


def in_short(value: object) -> str:
    """A value for a sentence: what came from outside may be a million characters long."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a number of more than 40 digits"
    shown = repr(value[:_SHOWN] if isinstance(value, str) else value)
    return shown if len(shown) <= _SHOWN + 2 else f"{shown[:_SHOWN]}…"


def describe_span(span: Millis) -> str:
    """A span for people: 340 ms, 12.5 s, 3 min, 2 h, 4 d."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if span >= size:
            return f"{span / size:.3g} {unit}"
    return f"{span} ms"
