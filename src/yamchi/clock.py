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

from yamchi.errors import InvalidJob

Millis = int
Span = timedelta | int | float | str

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|min|s|m|h|d|w)\s*")


class Clock(Protocol):
    """Where "now" comes from."""

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
    """The length of a span in milliseconds; a sentence that names the text if it can't be read."""
    match span:
        case bool():
            raise InvalidJob(f"{span!r} is not a span of time.")
        case timedelta():
            return round(span.total_seconds() * 1000)
        case int() | float() if math.isfinite(span):
            return round(span * 1000)
        case str():
            return _read_span(span)
    raise InvalidJob(f"{span!r} is not a span of time: give a timedelta, seconds, or text such as '30m'.")


def _read_span(text: str) -> Millis:
    parts = list(_PART.finditer(text.strip()))
    if not parts or "".join(part.group() for part in parts) != text.strip():
        raise InvalidJob(
            f"{text!r} is not a span of time: write it as '30s', '5m', '1h30m', '7d' or '250ms'."
        )
    return round(sum(float(part[1]) * _UNITS[part[2]] for part in parts))


def to_moment(moment: datetime) -> Millis:
    """A moment in milliseconds; a `datetime` without a time zone is refused, since it would be a guess."""
    if not isinstance(moment, datetime):
        raise InvalidJob(f"{moment!r} is not a moment: give a datetime with a time zone.")
    if moment.tzinfo is None:
        raise InvalidJob(f"{moment.isoformat()} has no time zone: add one, for example tzinfo=UTC.")
    return round(moment.timestamp() * 1000)


def as_datetime(moment: Millis) -> datetime:
    return datetime.fromtimestamp(moment / 1000, UTC)


def isoformat(moment: Millis) -> str:
    """UTC with a `Z`, to the second when there are no milliseconds: 2025-11-21T12:34:56Z."""
    when = as_datetime(moment)
    return when.isoformat(timespec="milliseconds" if moment % 1000 else "seconds").replace("+00:00", "Z")


def describe_span(span: Millis) -> str:
    """A span for people: 340 ms, 12.5 s, 3 min, 2 h, 4 d."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if span >= size:
            return f"{span / size:.3g} {unit}"
    return f"{span} ms"
