"""When a step is due: spans, and arithmetic on dates by somebody's own clock.

    at: lesson_datetime - 24h                  exactly 24 hours before
    at: lesson_datetime - 1 day, 09:00         the day before, when clocks there show nine
    at: event.data.starts_at + 1h30m

`h`, `d` and `w` are lengths of time (a `d` is 24 hours); `days` and `weeks` are days of the calendar. A local time that
a change of the clocks removes is the next one that exists; of one that comes twice it is the first.
"""

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from yamchi.clock import Millis, as_datetime, to_millis, to_moment
from yamchi.errors import InvalidJob

LONGEST_WAIT: Millis = 5 * 366 * 86_400_000
"""No step waits longer: a span that does is a mistake in writing."""

_SPAN = r"(?:\d+(?:\.\d+)?\s*(?:ms|min|s|m|h|d|w)\s*)+"
_TERM = re.compile(rf"\s*([+-])\s*(?:(\d+)\s*(days?|weeks?)\b|({_SPAN})(?![a-z]))")
_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_CLOCK = re.compile(r"\s*(?:,|at\b)\s*([01]\d|2[0-3]):([0-5]\d)\s*")


@dataclass(frozen=True, slots=True)
class Shift:
    """One term: a length of time, or whole days of the calendar."""

    span: Millis = 0
    days: int = 0


@dataclass(frozen=True, slots=True)
class At:
    """An `at`, read: the value it hangs on, what is added, and the time of day it is moved to."""

    path: str
    shifts: tuple[Shift, ...] = ()
    clock: time | None = None

    def moment(self, value: Any, zone: ZoneInfo) -> Millis:
        """The moment for this value of the anchor; a `ValueError` says why there is none."""
        moment = read_moment(value, zone)
        for shift in self.shifts:
            moment = _shifted(moment, shift, zone)
        return moment if self.clock is None else local(_day(moment, zone), self.clock, zone)


def read_at(text: str) -> At:
    """The arithmetic in this text; a `ValueError` shows how to write it."""
    found = _PATH.match(text.strip())
    if not found:
        raise ValueError(_unreadable(text))
    rest, shifts = text.strip()[found.end() :], []
    while term := _TERM.match(rest):
        shifts.append(_read_shift(term))
        rest = rest[term.end() :]
    clock = _CLOCK.fullmatch(rest)
    if rest.strip() and not clock:
        raise ValueError(_unreadable(text))
    return At(found[0], tuple(shifts), time(int(clock[1]), int(clock[2])) if clock else None)


def read_span(value: Any) -> Millis:
    """A length of time such as `30m`; a `ValueError` if it is none, or no sensible one."""
    try:
        span = to_millis(value)
    except InvalidJob as error:
        raise ValueError(str(error).rstrip(".")) from None
    if not 0 <= span <= LONGEST_WAIT:
        raise ValueError(f"{value!r} is not a span that a step can wait: give one from 0s to five years")
    return span


def read_moment(value: Any, zone: ZoneInfo) -> Millis:
    """A moment as people and programs write one; without an offset it means this zone's clocks."""
    if value is None or value == "":
        raise ValueError("it is empty")
    if isinstance(value, bool | int | float):
        raise ValueError(f"{value!r} is not a date: write it as 2026-02-25T15:00:00+05:00")
    try:
        read = value if isinstance(value, datetime | date) else datetime.fromisoformat(str(value).strip())
        if not isinstance(read, datetime):
            return local(read, time(0), zone)
        if read.tzinfo is None:
            return local(read.date(), read.time(), zone)
        return to_moment(read)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{str(value)[:60]!r} is not a date: write it as 2026-02-25T15:00:00+05:00"
        ) from None


def local(day: date, clock: time, zone: ZoneInfo) -> Millis:
    """When clocks of this zone show this time on this day, or the next time that they do show."""
    wanted = datetime.combine(day, clock, zone)
    moment = to_moment(wanted)
    if as_datetime(moment).astimezone(zone).replace(tzinfo=None) == wanted.replace(tzinfo=None):
        return moment
    return _after_gap(to_moment(wanted.replace(fold=1)), moment, zone)


def _after_gap(before: Millis, after: Millis, zone: ZoneInfo) -> Millis:
    """The first moment of the new time: it lies between what the new offset gives and what the old one does."""
    new = as_datetime(after).astimezone(zone).utcoffset()
    while after - before > 1:
        middle = (before + after) // 2
        if as_datetime(middle).astimezone(zone).utcoffset() == new:
            after = middle
        else:
            before = middle
    return after


def _shifted(moment: Millis, shift: Shift, zone: ZoneInfo) -> Millis:
    if not shift.days:
        return moment + shift.span
    there = as_datetime(moment).astimezone(zone)
    return local(there.date() + timedelta(days=shift.days), there.time(), zone)


def _day(moment: Millis, zone: ZoneInfo) -> date:
    return as_datetime(moment).astimezone(zone).date()


def _read_shift(term: re.Match[str]) -> Shift:
    sign = 1 if term[1] == "+" else -1
    if term[2]:
        days = int(term[2]) * (7 if term[3].startswith("week") else 1)
        if days * 86_400_000 > LONGEST_WAIT:
            raise ValueError(f"{term[0].strip()!r} is longer than five years")
        return Shift(days=sign * days)
    return Shift(span=sign * read_span(term[4]))


def _unreadable(text: str) -> str:
    return (
        f"{text!r} is not a moment: write a field and what to add, such as 'lesson_datetime - 24h' "
        "or 'lesson_datetime - 1 day, 09:00'"
    )
