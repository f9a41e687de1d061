"""Arithmetic on dates by somebody's own clock, on every day on which that clock is changed."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scenarios.zones import clock_changes
from yamchi.clock import as_datetime, isoformat, to_moment
from yamchi.scenarios.moments import read_at, read_moment, read_span

ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Africa/Casablanca"]
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "value", "moment"),
    [
        ("lesson - 24h", "2026-02-25T15:00:00+05:00", "2026-02-24T10:00:00Z"),
        ("lesson", "2026-02-25", "2026-02-24T23:00:00Z"),
        ("lesson - 1 day, 09:00", "2026-03-30T02:30", "2026-03-29T07:00:00Z"),
        ("lesson - 1 day", "2026-03-30T12:00", "2026-03-29T10:00:00Z"),
        ("lesson - 24h", "2026-03-29T12:00", "2026-03-28T10:00:00Z"),
        ("lesson - 1 day", "2026-03-29T12:00", "2026-03-28T11:00:00Z"),  # a day of the calendar had 23 hours
        ("lesson + 1h30m - 2 weeks", "2026-01-20T10:00Z", "2026-01-06T11:30:00Z"),
        ("lesson at 08:15", "2026-06-01T23:00Z", "2026-06-02T06:15:00Z"),
    ],
)
def test_what_is_written_is_what_is_meant(text: str, value: str, moment: str) -> None:
    assert isoformat(read_at(text).moment(value, BERLIN)) == moment


def test_a_time_that_is_removed_is_the_next_one_and_a_doubled_one_the_first() -> None:
    assert isoformat(read_moment("2026-03-29T02:30", BERLIN)) == "2026-03-29T01:00:00Z"  # 03:00 there
    assert isoformat(read_moment("2026-10-25T02:30", BERLIN)) == "2026-10-25T00:30:00Z"
    # Samoa had no 30 December 2011 at all.
    assert isoformat(read_moment("2011-12-30T05:00", ZoneInfo("Pacific/Apia"))) == "2011-12-30T10:00:00Z"


@pytest.mark.parametrize("zone", ZONES)
def test_every_change_of_the_clocks(zone: str) -> None:
    """Each minute for three hours around it: the moment found shows that time, or it does not exist and follows at once."""
    there = ZoneInfo(zone)
    changes = list(clock_changes(there, 2026))
    assert len(changes) >= 2
    for change in changes:
        around = as_datetime(change).astimezone(there).replace(tzinfo=None, second=0)
        for minutes in range(-180, 181):
            wanted = around + timedelta(minutes=minutes)
            moment = read_moment(wanted.isoformat(), there)
            shown = as_datetime(moment).astimezone(there).replace(tzinfo=None)
            if shown == wanted:
                earlier = as_datetime(moment - 86_400_000 // 24).astimezone(there).replace(tzinfo=None)
                assert earlier != wanted, "the first of two"
            else:
                assert moment == change, "the next minute that exists"
                assert shown > wanted


@given(
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)),
    st.sampled_from(ZONES),
    st.integers(0, 5_000),
)
def test_hours_are_exact_whatever_clocks_do(day: datetime, zone: str, hours: int) -> None:
    there = ZoneInfo(zone)
    anchor = read_moment(day.isoformat(), there)
    assert read_at(f"x - {hours}h").moment(day.isoformat(), there) == anchor - hours * 3_600_000


def test_what_is_no_moment_says_how_to_write_one() -> None:
    for text in ("5 - x", "x -", "x - 24", "x * 2", "x, 25:00", "x - 9999 weeks", ""):
        with pytest.raises(ValueError, match=r"not a|longer than|is not a span"):
            read_at(text)
    for value in (None, "", "tomorrow", 5, True, "2026-13-01"):
        with pytest.raises(ValueError, match=r"not a date|empty"):
            read_moment(value, BERLIN)
    for span in ("30x", "-5m", "", "1e9d", "999999d"):
        with pytest.raises(ValueError, match=r"span|longer than"):
            read_span(span)


def test_a_moment_with_an_offset_means_that_offset() -> None:
    assert read_moment("2026-02-25T15:00:00+05:00", BERLIN) == to_moment(
        datetime.fromisoformat("2026-02-25T10:00:00+00:00")
    )
