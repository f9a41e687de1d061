"""Quiet hours: "22:00 to 08:00" by the person's own clock, on nights when that clock is moved as well.

Each night is two moments, worked out in the person's time zone; between them it is quiet. A moment that the clock skips
is the one that the old offset gives, and of one that comes twice it is the first.
"""

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field

from yamchi.clock import Millis, as_datetime, to_moment

_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d")


def read_time(text: str) -> time:
    """`09:00`, `22:30`; a `ValueError` that shows how to write it."""
    if not _TIME.fullmatch(text):
        raise ValueError(f"{text!r} is not a time of day: write it as '22:00'")
    return time.fromisoformat(text)


def _is_time(text: str) -> str:
    read_time(text)
    return text


TimeOfDay = Annotated[str, Field(max_length=5), AfterValidator(_is_time)]


def zone_of(name: str | None, otherwise: str) -> ZoneInfo:
    """A person's time zone; a name that this machine does not know counts as none."""
    try:
        return ZoneInfo(name or otherwise)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return ZoneInfo(otherwise)


def moment_of(day: date, clock: time, zone: ZoneInfo) -> Millis:
    """When this zone's clocks show this time on this day."""
    return to_moment(datetime.combine(day, clock, zone))


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From one time of the day until another, which is on the next day if it is not later."""

    start: time
    end: time

    def until(self, now: Millis, zone: ZoneInfo) -> Millis | None:
        """When the present quiet hours end; None outside of them."""
        today = as_datetime(now).astimezone(zone).date()
        for day in (today - timedelta(days=1), today):
            if moment_of(day, self.start, zone) <= now < (end := self._end(day, zone)):
                return end
        return None

    def _end(self, day: date, zone: ZoneInfo) -> Millis:
        last = day + timedelta(days=self.end <= self.start)
        return moment_of(last, self.end, zone)
