"""Caps: so many in any period and no more, however many processes send, and one that is delivered again counts once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.notifications.conftest import USER
from tests.notifications.house import House, Pigeon, a_house
from tests.services.mail import MailServer
from yamchi.errors import Unrecoverable
from yamchi.notifications.channels.base import Recipient
from yamchi.notifications.plugin import Notifications
from yamchi.notifications.policy.caps import Caps
from yamchi.notifications.policy.context import Errand
from yamchi.notifications.policy.model import NONE, Cap
from yamchi.notifications.schemas.notification_job import NotificationJob, derived_id
from yamchi.storage.database import Database
from yamchi.testing import MovableClock

RULES = """
- on: waits
  notify: {channel: email, template: new_film_recommendation, cap: {most: 2, per: 1d}}
- on: drops
  notify: {channel: email, template: new_film_recommendation, cap: {most: 2, per: 1d, over: suppress}}
- on: weekly
  notify: {channel: telegram, template: new_film_recommendation, cap: {most: 1, per: 7d, over: suppress}}
"""


@pytest.fixture
async def house(tmp_path: Path, mail_server: MailServer) -> AsyncIterator[House]:
    async with a_house(tmp_path, mail_server) as house:
        house.rules(RULES)
        await house.person(telegram_id=777)
        yield house


async def test_over_the_cap_it_waits_for_its_turn(house: House) -> None:
    jobs = [(await house.event("waits"))[0]["job_id"] for _ in range(5)]
    await house.app.drain()
    assert len(house.mail.letters) == 2
    pending = (await house.client.get(f"/users/{USER}/pending")).json()["items"]
    assert [item["when"] for item in pending] == ["2026-01-02T00:00:00Z"] * 3
    assert "2 per 1d of 'recommendations' on email" in pending[0]["why"]
    await house.app.clock.advance("23h")
    assert len(house.mail.letters) == 2
    await house.app.clock.advance("1h")
    assert len(house.mail.letters) == 4
    await house.app.clock.advance("1d")
    assert len(house.mail.letters) == 5
    assert {(await house.delivery(job))["attempts"] for job in jobs} == {1}


async def test_over_the_cap_it_is_dropped(house: House) -> None:
    jobs = [(await house.event("drops"))[0]["job_id"] for _ in range(3)]
    await house.app.drain()
    statuses = [await house.status(job) for job in jobs]
    assert sorted(statuses) == ["SENT", "SENT", "SUPPRESSED"]
    dropped = jobs[statuses.index("SUPPRESSED")]
    assert "Over the cap" in (await house.delivery(dropped))["last_error"]
    assert await house.dead_letters() == []


async def test_any_period_counts_and_not_the_calendars(house: House) -> None:
    for moment in ("2026-01-01T22:00:00", "2026-01-01T23:00:00", "2026-01-02T01:00:00"):
        await house.at(moment)
        await house.event("drops")
        await house.app.drain()
    assert len(house.mail.letters) == 2
    await house.at("2026-01-02T22:00:00")
    await house.event("drops")
    await house.app.drain()
    assert len(house.mail.letters) == 3


async def test_channels_are_counted_apart(house: House) -> None:
    for event in ("drops", "drops", "weekly", "weekly"):
        await house.event(event)
    await house.app.drain()
    assert (len(house.mail.letters), len(house.pigeon.sent)) == (2, 1)


async def test_what_did_not_arrive_does_not_count(house: House) -> None:
    house.pigeon.answers = [Unrecoverable("no")]
    await house.event("weekly")
    await house.app.drain()
    await house.event("weekly")
    await house.app.drain()
    assert len(house.pigeon.sent) == 1


async def test_retries_count_once(house: House) -> None:
    house.mail.answers.extend(["451 later"] * 2)
    for _ in range(2):
        await house.event("drops")
    await house.app.clock.advance("5m")
    assert len(house.mail.letters) == 2


# ── Several processes ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/data.db"
    return str(request.getfixturevalue("postgres_database")().url)


@pytest.fixture
async def offices(url: str) -> AsyncIterator[list[Caps]]:
    """As two processes have them: each with its own connections."""
    databases = [Database(url, [Notifications.schema()]) for _ in range(2)]
    await databases[0].migrate()
    clock = MovableClock()
    yield [Caps(database, clock) for database in databases]
    for database in databases:
        await database.close()


@pytest.fixture
def errand() -> Callable[[str], Errand]:
    job: dict[str, Any] = {
        "user_id": USER,
        "channel": "telegram",
        "template_code": "t",
        "locale": "en",
        "data": {},
        "meta": {"event_type": "test", "event_id": "e"},
        "created_at": "2026-01-01T00:00:00Z",
    }

    def make(name: str) -> Errand:
        notification = NotificationJob.model_validate({**job, "job_id": derived_id(name)})
        return Errand(notification, NONE, Recipient(USER), Pigeon(), None, 1, 5, "UTC")

    return make


async def test_two_processes_keep_to_one_cap(offices: list[Caps], errand: Callable[[str], Errand]) -> None:
    cap = Cap(most=7, per="1d")
    claims = [office.claim(errand(f"{n}"), cap) for n in range(100) for office in [offices[n % 2]]]
    outcomes = await asyncio.gather(*claims)
    assert outcomes.count(None) == 7


async def test_the_same_job_in_two_processes_counts_once(
    offices: list[Caps], errand: Callable[[str], Errand]
) -> None:
    cap = Cap(most=2, per="1d")
    claims = [office.claim(errand("same"), cap) for office in offices for _ in range(10)]
    assert await asyncio.gather(*claims) == [None] * 20
    assert await offices[0].claim(errand("other"), cap) is None
    assert await offices[1].claim(errand("third"), cap) is not None


async def test_caps_of_different_lengths_see_the_same_messages(
    offices: list[Caps], errand: Callable[[str], Errand]
) -> None:
    office = offices[0]
    assert await office.claim(errand("a"), Cap(most=3, per="1h")) is None
    assert await office.claim(errand("b"), Cap(most=1, per="7d")) is not None
    assert await office.claim(errand("c"), Cap(most=3, per="1h")) is None
    assert await office.claim(errand("d"), Cap(most=2, per="1h")) is not None
