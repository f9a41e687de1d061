"""When clocks are changed."""

from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from yamchi.clock import Millis, as_datetime, to_moment

STEP: Millis = 15 * 60_000
"""Clocks are changed at no other moments of an hour."""


def clock_changes(zone: ZoneInfo, year: int) -> Iterator[Millis]:
    """The moments of a year at which a zone's clocks are changed."""
    first, end = (to_moment(datetime(y, 1, 1, tzinfo=UTC)) for y in (year, year + 1))
    offset = as_datetime(first).astimezone(zone).utcoffset()
    for moment in range(first + STEP, end, STEP):
        now = as_datetime(moment).astimezone(zone).utcoffset()
        if now != offset:
            yield moment
            offset = now
