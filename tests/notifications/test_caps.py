"""Caps: so many in any period and no more, however many processes send, and one that is delivered again counts once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.notifications.conftest import USER
from tests.notifications.harness import Harness, ScriptedChannel, open_harness
from tests.services.mail import MailServer
from yamchi.errors import Outage, Unrecoverable
from yamchi.notifications.channels.base import Recipient
from yamchi.notifications.plugin import Notifications
from yamchi.notifications.policy.caps import Caps
from yamchi.notifications.policy.context import SendContext, SendRequest
from yamchi.notifications.policy.model import NONE, Cap
from yamchi.notifications.schemas.notification_job import NotificationJob, derived_id
from yamchi.storage.database import Database
from yamchi.testing import MovableClock

RULES = """
- on: waits
  notify: {channel: email, template: new_film_recommendation, cap: {most: 2, per: 1d}}
- on: drops
  notify: {channel: email, template: new_film_recommendation, cap: {most: 2, per: 1d, over: suppress}}
- on: hourly
  notify:
    channel: telegram
    template: new_film_recommendation
    expires_in: 1h
    cap: {most: 1, per: 7d, over: suppress}
- on: unhurried
  notify: {channel: telegram, template: new_film_recommendation, cap: {most: 1, per: 1h}}
- on: weekly
  notify: {channel: telegram, template: new_film_recommendation, cap: {most: 1, per: 7d, over: suppress}}
"""


@pytest.fixture
async def harness(tmp_path: Path, mail_server: MailServer) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path, mail_server) as harness:
        harness.rules(RULES)
        await harness.person(telegram_id=777)
        yield harness


async def test_over_the_cap_it_waits_for_its_turn(harness: Harness) -> None:
    jobs = [(await harness.event("waits"))[0]["job_id"] for _ in range(5)]
    await harness.app.drain()
    assert len(harness.mail.letters) == 2
    pending = (await harness.client.get(f"/users/{USER}/pending")).json()["items"]
    assert [item["when"] for item in pending] == ["2026-01-02T00:00:00Z"] * 3
    assert "2 per 1d of 'recommendations' on email" in pending[0]["why"]
    await harness.app.clock.advance("23h")
    assert len(harness.mail.letters) == 2
    await harness.app.clock.advance("1h")
    assert len(harness.mail.letters) == 4
    await harness.app.clock.advance("1d")
    assert len(harness.mail.letters) == 5
    assert {(await harness.delivery(job))["attempts"] for job in jobs} == {1}


async def test_over_the_cap_it_is_dropped(harness: Harness) -> None:
    jobs = [(await harness.event("drops"))[0]["job_id"] for _ in range(3)]
    await harness.app.drain()
    statuses = [await harness.status(job) for job in jobs]
    assert sorted(statuses) == ["SENT", "SENT", "SUPPRESSED"]
    dropped = jobs[statuses.index("SUPPRESSED")]
    assert "Over the cap" in (await harness.delivery(dropped))["last_error"]
    assert await harness.dead_letters() == []


async def test_any_period_counts_and_not_the_calendars(harness: Harness) -> None:
    for moment in ("2026-01-01T22:00:00", "2026-01-01T23:00:00", "2026-01-02T01:00:00"):
        await harness.at(moment)
        await harness.event("drops")
        await harness.app.drain()
    assert len(harness.mail.letters) == 2
    await harness.at("2026-01-02T22:00:00")
    await harness.event("drops")
    await harness.app.drain()
    assert len(harness.mail.letters) == 3


async def test_channels_are_counted_apart(harness: Harness) -> None:
    for event in ("drops", "drops", "weekly", "weekly"):
        await harness.event(event)
    await harness.app.drain()
    assert (len(harness.mail.letters), len(harness.channel.sent)) == (2, 1)


async def test_what_did_not_arrive_does_not_count(harness: Harness) -> None:
    harness.channel.answers = [Unrecoverable("no")]
    await harness.event("weekly")
    await harness.app.drain()
    await harness.event("weekly")
    await harness.app.drain()
    assert len(harness.channel.sent) == 1


@pytest.mark.parametrize("end", ["EXPIRED", "CANCELLED", "SUPPRESSED"])
async def test_what_waited_in_vain_does_not_count(harness: Harness, end: str) -> None:
    """It was within the cap, and waited for its provider to come back."""
    harness.channel.answers = [Outage("it is down", retry_after=timedelta(minutes=30))]
    (waiting,) = await harness.event("hourly")
    job_id = waiting["job_id"]
    await harness.app.drain()
    assert await harness.status(job_id) == "RETRYING"
    match end:
        case "CANCELLED":
            assert (await harness.client.delete(f"/notifications/{job_id}")).status_code == 204
        case "EXPIRED":
            harness.channel.answers = [Outage("it is down", retry_after=timedelta(hours=1))]
        case "SUPPRESSED":
            await harness.choose(allowed={"telegram": {"recommendations": False}})
    await harness.app.clock.advance("2h")
    assert await harness.status(job_id) == end
    await harness.choose(allowed={"telegram": {"recommendations": True}})
    await harness.event("hourly")
    await harness.app.drain()
    assert len(harness.channel.sent) == 1


async def test_what_could_not_be_written_does_not_count(harness: Harness) -> None:
    (broken,) = await harness.event("weekly", other="than its template asks for")
    await harness.app.drain()
    assert await harness.status(broken["job_id"]) == "FAILED"
    await harness.event("weekly")
    await harness.app.drain()
    assert len(harness.channel.sent) == 1


async def test_retries_count_once(harness: Harness) -> None:
    harness.mail.answers.extend(["451 later"] * 2)
    for _ in range(2):
        await harness.event("drops")
    await harness.app.clock.advance("5m")
    assert len(harness.mail.letters) == 2


async def test_what_waited_for_its_provider_counts_when_it_goes(harness: Harness) -> None:
    """Both were within the cap when they came, and find the provider back at the same moment."""
    harness.channel.answers = [Outage("it is down", retry_after=timedelta(minutes=90))]
    await harness.event("unhurried")
    await harness.app.clock.advance("70m")
    await harness.event("unhurried")
    await harness.app.clock.advance("30m")
    assert len(harness.channel.sent) == 1
    await harness.app.clock.advance("49m")
    assert len(harness.channel.sent) == 1
    await harness.app.clock.advance("5m")
    assert len(harness.channel.sent) == 2


# ── Several processes ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def processes(database_url: str) -> AsyncIterator[list[Caps]]:
    """As two processes have them: each with its own connections."""
    databases = [Database(database_url, [Notifications.schema()]) for _ in range(2)]
    await databases[0].migrate()
    clock = MovableClock()
    yield [Caps(database, clock) for database in databases]
    for database in databases:
        await database.close()


@pytest.fixture
def context() -> Callable[[str], SendContext]:
    job: dict[str, Any] = {
        "user_id": USER,
        "channel": "telegram",
        "template_code": "t",
        "locale": "en",
        "data": {},
        "meta": {"event_type": "test", "event_id": "e"},
        "created_at": "2026-01-01T00:00:00Z",
    }

    def make(name: str) -> SendContext:
        notification = NotificationJob.model_validate({**job, "job_id": derived_id(name)})
        request = SendRequest(None, notification)  # type: ignore[arg-type] - caps ask nothing of the job
        return SendContext(request, notification, NONE, Recipient(USER), ScriptedChannel(), None, "UTC")

    return make


async def test_two_processes_keep_to_one_cap(
    processes: list[Caps], context: Callable[[str], SendContext]
) -> None:
    cap = Cap(most=7, per="1d")
    claims = [caps.claim(context(f"{n}"), cap) for n in range(100) for caps in [processes[n % 2]]]
    outcomes = await asyncio.gather(*claims)
    assert outcomes.count(None) == 7


async def test_the_same_job_in_two_processes_counts_once(
    processes: list[Caps], context: Callable[[str], SendContext]
) -> None:
    cap = Cap(most=2, per="1d")
    claims = [caps.claim(context("same"), cap) for caps in processes for _ in range(10)]
    assert await asyncio.gather(*claims) == [None] * 20
    assert await processes[0].claim(context("other"), cap) is None
    assert await processes[1].claim(context("third"), cap) is not None


async def test_caps_of_different_lengths_see_the_same_messages(
    processes: list[Caps], context: Callable[[str], SendContext]
) -> None:
    caps = processes[0]
    assert await caps.claim(context("a"), Cap(most=3, per="1h")) is None
    assert await caps.claim(context("b"), Cap(most=1, per="7d")) is not None
    assert await caps.claim(context("c"), Cap(most=3, per="1h")) is None
    assert await caps.claim(context("d"), Cap(most=2, per="1h")) is not None
