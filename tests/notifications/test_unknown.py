"""A person decides about every delivery that is `UNKNOWN`, whatever queued it: an event, a campaign, a scenario, another program."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from typer.testing import CliRunner

from tests.notifications.conftest import USER
from tests.notifications.harness import ScriptedChannel
from tests.processes import DEADLINE, Process
from tests.services.gateway import Gateway
from yamchi import Yamchi
from yamchi.cli import cli
from yamchi.clock import isoformat
from yamchi.errors import WrongState
from yamchi.notifications.campaigns.model import CampaignIn
from yamchi.notifications.channels.base import AnswerLost
from yamchi.notifications.people.recipients import User
from yamchi.notifications.schemas.event import Event
from yamchi.notifications.tables import notification_delivery as table
from yamchi.settings import Settings
from yamchi.testing import TestApp, eventually

PHONE = "+77010000000"
SCENARIO = """
scenario: nudge
on: cart_left
key: "{{ event.data.phone }}"
steps:
  - job: write
    wait: 0s
    send: {channel: sms, template: nudge, to: "{{ event.data.phone }}"}
"""


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as gateway:
        yield gateway


@pytest.fixture
async def app(gateway: Gateway, tmp_path: Path) -> AsyncIterator[TestApp]:
    template(tmp_path)
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "nudge.yaml").write_text(SCENARIO)
    app = TestApp(home=tmp_path, sms_url=gateway.url, plugins=("notifications", "scenarios"))
    app.notifications.serve()
    app.scenarios.serve()
    await app.notifications.recipients.put(USER, User(phone=PHONE, locale="en"))
    yield app
    await app.close()


def template(home: Path) -> None:
    (home / "templates" / "nudge").mkdir(parents=True)
    (home / "templates" / "nudge" / "sms.en.txt").write_text("Your cart waits")


FOREIGN = {
    "job_id": "0a8cf1d8-6a5c-4f0e-9f0b-2f8d2d9f6c11",
    "user_id": USER,
    "channel": "sms",
    "template_code": "nudge",
    "locale": "en",
    "data": {},
    "meta": {"event_type": "t", "event_id": "e-1", "campaign_id": None, "priority": "normal"},
    "created_at": "2025-11-14T12:35:10Z",
    "send_after": None,
    "expires_at": None,
}


async def by_another_program(app: TestApp) -> None:
    """Yamchi has no row of it before it is sent."""
    await app.queue("notifications").add(FOREIGN)


async def by_campaign(app: TestApp) -> None:
    asked = {"campaign_id": "spring", "template_code": "nudge", "channel": "sms", "audience": {"where": {}}}
    await app.notifications.campaigns.create(CampaignIn.model_validate(asked))
    await app.notifications.fan_out.run()


async def by_text(app: TestApp) -> None:
    message = {"channel": "sms", "options": {"to": PHONE, "text": "Your cart waits"}}
    await app.notifications.service.send_direct(message, "direct-1")


async def by_template(app: TestApp) -> None:
    message = {"channel": "sms", "options": {"to": PHONE, "template": "nudge", "locale": "en"}}
    await app.notifications.service.send_direct(message, "direct-1")


async def by_scenario(app: TestApp) -> None:
    data = {"phone": PHONE, "locale": "en"}
    await app.notifications.service.handle_event(Event(event_type="cart_left", event_id="e-1", data=data))


Origin = Callable[[TestApp], Awaitable[None]]
ORIGINS = [by_another_program, by_campaign, by_text, by_template, by_scenario]


async def lose_the_answer(app: TestApp, gateway: Gateway, origin: Origin) -> str:
    """Send one whose answer is lost; its delivery's id."""
    gateway.answers.append(0)
    await origin(app)
    await app.clock.advance("1s")
    ((job_id, status),) = await statuses(app)
    assert status == "UNKNOWN"
    return job_id


async def statuses(app: Yamchi) -> list[tuple[str, str]]:
    query = select(table.c.job_id, table.c.status)
    return [tuple(row) for row in await app.database.read(lambda c: c.execute(query).all())]


@pytest.mark.parametrize("origin", ORIGINS)
async def test_it_did_not_arrive(app: TestApp, gateway: Gateway, origin: Origin) -> None:
    job_id = await lose_the_answer(app, gateway, origin)
    await app.notifications.unknown_deliveries.send_again(job_id)
    await app.clock.advance("24h")
    assert gateway.taken == [(PHONE, "Your cart waits")] * 2
    assert await statuses(app) == [(job_id, "SENT")]


@pytest.mark.parametrize("origin", ORIGINS)
async def test_it_did_arrive(app: TestApp, gateway: Gateway, origin: Origin) -> None:
    job_id = await lose_the_answer(app, gateway, origin)
    await app.notifications.unknown_deliveries.mark_sent(job_id)
    await app.clock.advance("24h")
    assert len(gateway.taken) == 1
    assert await statuses(app) == [(job_id, "SENT")]


async def test_an_answer_that_is_lost_twice_is_decided_about_twice(app: TestApp, gateway: Gateway) -> None:
    job_id = await lose_the_answer(app, gateway, by_text)
    gateway.answers.append(0)
    await app.notifications.unknown_deliveries.send_again(job_id)
    await app.drain()
    assert await statuses(app) == [(job_id, "UNKNOWN")]
    await app.notifications.unknown_deliveries.send_again(job_id)
    await app.drain()
    assert len(gateway.taken) == 3
    assert await statuses(app) == [(job_id, "SENT")]


async def test_of_two_who_send_it_again_at_once_one_does(
    app: TestApp, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await lose_the_answer(app, gateway, by_text)
    deliveries, has_looked, may_go_on = app.notifications.deliveries, asyncio.Event(), asyncio.Event()
    look = deliveries.check_left

    async def look_and_wait(job_id: str) -> None:
        await look(job_id)
        if not has_looked.is_set():
            has_looked.set()
            await may_go_on.wait()

    monkeypatch.setattr(deliveries, "check_left", look_and_wait)
    late = asyncio.create_task(app.notifications.unknown_deliveries.send_again(job_id))
    await has_looked.wait()
    await app.notifications.unknown_deliveries.send_again(job_id)
    may_go_on.set()
    with pytest.raises(WrongState):
        await late
    await app.drain()
    assert await statuses(app) == [(job_id, "SENT")]
    assert len(gateway.taken) == 2


async def test_a_campaign_counts_what_was_decided(app: TestApp, gateway: Gateway) -> None:
    job_id = await lose_the_answer(app, gateway, by_campaign)
    progress = (await app.notifications.campaigns.show("spring"))["progress"]
    assert (progress["unknown"], progress["sent"], progress["waiting"]) == (1, 0, 0)
    await app.notifications.unknown_deliveries.mark_sent(job_id)
    progress = (await app.notifications.campaigns.show("spring"))["progress"]
    assert (progress["unknown"], progress["sent"], progress["waiting"]) == (0, 1, 0)


async def test_what_an_earlier_version_has_not_kept_can_still_be_confirmed(
    app: TestApp, gateway: Gateway
) -> None:
    job_id = await lose_the_answer(app, gateway, by_text)
    forget = table.update().values(job=None)
    await app.database.write(lambda connection: connection.execute(forget).rowcount)
    with pytest.raises(WrongState, match="has not kept what it said"):
        await app.notifications.unknown_deliveries.send_again(job_id)
    await app.notifications.unknown_deliveries.mark_sent(job_id)
    assert await statuses(app) == [(job_id, "SENT")]


async def test_what_may_have_arrived_is_not_said_to_have_expired(app: TestApp) -> None:
    channel = ScriptedChannel("sms", answers=[AnswerLost("it hung up")])
    app.notifications.register(channel)
    await app.notifications.recipients.put(USER, User(telegram_id=777))
    job = {**FOREIGN, "expires_at": isoformat(app.clock.now() + 500)}
    await app.queue("notifications").add(job)
    await app.clock.advance("1h")
    assert channel.sent == []
    assert [status for _, status in await statuses(app)] == ["UNKNOWN"]


# ── What is kept, and for how long ────────────────────────────────────────────────────────────────────────────────


async def kept(app: TestApp) -> Any:
    ((job_id, _),) = await statuses(app)
    return (await app.notifications.deliveries.get(job_id))["job"]


@pytest.mark.parametrize("origin", [by_text, by_template, by_scenario])
async def test_what_was_written_to_an_address_is_kept_no_longer_than_needed(
    app: TestApp, gateway: Gateway, origin: Origin
) -> None:
    job_id = await lose_the_answer(app, gateway, origin)
    assert PHONE in str(await kept(app))
    await app.notifications.unknown_deliveries.mark_sent(job_id)
    assert await kept(app) is None


async def test_what_was_sent_to_an_address_is_not_kept(app: TestApp, gateway: Gateway) -> None:
    await by_text(app)
    await app.drain()
    assert len(gateway.taken) == 1
    assert await kept(app) is None


async def test_what_was_written_to_the_address_of_a_person_is_erased_with_them(
    app: TestApp, gateway: Gateway
) -> None:
    await lose_the_answer(app, gateway, by_text)
    await app.notifications.erase(USER)
    assert await kept(app) is None


# ── From a terminal ───────────────────────────────────────────────────────────────────────────────────────────────


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["delivery", *arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def are_lost() -> bool:
    found = json.loads(run("list", "--status", "UNKNOWN", "--json"))
    return ["answer was lost" in one["last_error"] for one in found] == [True, True]


@pytest.fixture
def lost(own_home: Path, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Two messages whose answers were lost, and a worker that goes on."""
    monkeypatch.chdir(own_home)
    monkeypatch.setenv("SMS_URL", gateway.url)
    gateway.answers.extend([0, 0])
    for _ in range(2):
        CliRunner().invoke(cli, ["send", "sms", PHONE, "--text", "Your cart waits"])
    worker = Process(own_home, "worker", SMS_URL=gateway.url, LOG_LEVEL="warning")
    try:
        worker.wait_for(are_lost, "two lost answers")
        yield [one["job_id"] for one in json.loads(run("list", "--json"))]
    finally:
        worker.process.terminate()
        worker.process.wait()


def test_from_a_terminal(lost: list[str], gateway: Gateway, own_home: Path) -> None:
    arrived, missing = lost
    assert "UNKNOWN" in run("list")
    assert "answer was lost" in run("show", arrived)
    assert "SENT" in run("confirm", arrived)
    assert "queued again" in run("resend", missing)
    assert "is SENT, not UNKNOWN" in run("confirm", arrived, code=1)
    asyncio.run(until_all_are_sent(own_home))
    assert len(gateway.taken) == 3


async def until_all_are_sent(home: Path) -> None:
    async with Yamchi(Settings(home=home)) as app:

        async def are_sent() -> bool:
            return {status for _, status in await statuses(app)} == {"SENT"}

        await eventually(are_sent, DEADLINE)


def test_what_a_terminal_is_refused(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own_home)
    assert "no notification 'nobody'" in run("cancel", "nobody", code=1)
    assert "choose from QUEUED, SENT" in run("list", "--status", "LOST", code=1)
