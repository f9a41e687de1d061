"""Quiet hours by the person's own clock: what is normal waits, what is urgent goes, also when clocks are changed."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.notifications.conftest import USER
from tests.notifications.harness import Harness, open_harness
from tests.services.mail import MailServer
from yamchi.clock import as_datetime, isoformat, to_moment
from yamchi.errors import ConfigurationError
from yamchi.notifications.people.quiet_hours import QuietHours, moment_of
from yamchi.settings import Settings

NIGHT = {"from": "22:00", "until": "08:00"}


@pytest.fixture
async def harness(tmp_path: Path, mail_server: MailServer) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path, mail_server, default_timezone="Asia/Almaty") as harness:
        await harness.person(timezone="Europe/Berlin")
        await harness.choose(quiet_hours=NIGHT)
        yield harness


# Berlin: clocks go forward on 29 March 2026 at 01:00 UTC, and back on 25 October at 01:00 UTC.
NIGHTS = [
    ("2026-03-27T23:30:00", "2026-03-28T07:00:00"),
    ("2026-03-28T23:30:00", "2026-03-29T06:00:00"),
    ("2026-03-29T23:30:00", "2026-03-30T06:00:00"),
    ("2026-10-24T23:30:00", "2026-10-25T07:00:00"),
    ("2026-10-25T23:30:00", "2026-10-26T07:00:00"),
]


@pytest.mark.parametrize(("evening", "morning"), NIGHTS)
async def test_it_waits_until_the_morning_on_both_sides_of_a_change(
    harness: Harness, evening: str, morning: str
) -> None:
    await harness.at(evening)
    job = await harness.notify()
    await harness.app.drain()
    delivery = await harness.delivery(job)
    assert (delivery["status"], delivery["due_at"]) == ("QUEUED", f"{morning}Z")
    (pending,) = (await harness.client.get(f"/users/{USER}/pending")).json()["items"]
    assert pending["when"] == f"{morning}Z"
    assert "quiet hours in Europe/Berlin" in pending["why"]
    await harness.at((datetime.fromisoformat(morning) - timedelta(seconds=1)).isoformat())
    assert harness.mail.letters == []
    await harness.at(morning)
    assert len(harness.mail.letters) == 1
    delivery = await harness.delivery(job)
    assert (delivery["status"], delivery["attempts"], delivery["last_error"]) == ("SENT", 1, None)


async def test_what_is_urgent_goes_at_once(harness: Harness) -> None:
    await harness.at("2026-03-28T23:30:00")
    job = await harness.notify(meta={"priority": "high"})
    await harness.app.drain()
    assert await harness.status(job) == "SENT"


async def test_by_day_nothing_waits(harness: Harness) -> None:
    await harness.at("2026-03-28T12:00:00")
    job = await harness.notify()
    await harness.app.drain()
    assert await harness.status(job) == "SENT"


async def test_what_expires_in_the_night_is_not_sent_in_the_morning(harness: Harness) -> None:
    await harness.at("2026-03-27T23:30:00")
    soon = isoformat(harness.app.clock.now() + 3_600_000)
    job = await harness.notify(expires_at=soon)
    await harness.app.drain()
    await harness.at("2026-03-28T00:31:00")
    assert await harness.status(job) == "EXPIRED"
    await harness.at("2026-03-28T08:00:00")
    assert harness.mail.letters == []
    assert await harness.dead_letters() == []


async def test_waiting_takes_no_attempts_and_holds_no_slot(harness: Harness) -> None:
    await harness.at("2026-03-27T23:30:00")
    jobs = [await harness.notify() for _ in range(30)]  # more than a worker runs at once
    await harness.app.drain()
    urgent = await harness.notify(meta={"priority": "high"})
    await harness.app.drain()
    assert await harness.status(urgent) == "SENT"
    await harness.at("2026-03-28T07:00:00")
    assert [(await harness.delivery(job))["attempts"] for job in jobs] == [1] * 30


async def test_a_person_without_a_zone_lives_in_the_default_one(harness: Harness) -> None:
    await harness.person(timezone=None)
    await harness.at("2026-03-27T17:30:00")  # 22:30 in Almaty
    job = await harness.notify()
    await harness.app.drain()
    assert (await harness.delivery(job))["due_at"] == "2026-03-28T03:00:00Z"


async def test_called_off_while_it_waits(harness: Harness) -> None:
    await harness.at("2026-03-27T23:30:00")
    job = await harness.notify()
    await harness.app.drain()
    assert (await harness.client.delete(f"/notifications/{job}")).status_code == 204
    await harness.at("2026-03-28T08:00:00")
    assert await harness.status(job) == "CANCELLED"
    assert harness.mail.letters == []


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"default_timezone": "Mars/Olympus"}, "DEFAULT_TIMEZONE"),
        ({"public_url": "notify.example.com"}, "PUBLIC_URL"),
        ({"public_url": "https://notify.example.com/?x=1"}, "PUBLIC_URL"),
    ],
)
def test_settings_that_make_no_sense(given: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        Settings(**given)


ZONES = st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Almaty", "UTC"])
TIMES = st.times().map(lambda when: when.replace(second=0, microsecond=0, tzinfo=None))
MOMENTS = st.datetimes(datetime(2025, 1, 1), datetime(2027, 12, 31), timezones=st.just(UTC))


@given(MOMENTS, TIMES, TIMES, ZONES)
def test_quiet_ends_when_the_clock_shows_its_end(now: datetime, start: time, end: time, zone: str) -> None:
    if start == end:
        return
    moment, place = to_moment(now), ZoneInfo(zone)
    until = QuietHours(start, end).until(moment, place)
    if until is None:
        return
    assert moment < until <= moment + 26 * 3_600_000
    shown = as_datetime(until).astimezone(place)
    assert until == moment_of(shown.date(), end, place) or shown.time() != end  # skipped by the clock
    assert QuietHours(start, end).until(until, place) is None
