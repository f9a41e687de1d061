"""Two channels and `first_of`: the good one is sent once, whatever becomes of the other."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.notifications.harness import ADDRESS, Harness, open_harness
from tests.services.mail import MailServer
from yamchi.errors import Outage, Retryable, Unrecoverable
from yamchi.notifications.channels.base import Unreachable

RULES = """
- on: film_out
  notify: {first_of: [telegram, email], template: new_film_recommendation}
- on: film_out_later
  notify: {first_of: [telegram, sms, email], template: new_film_recommendation, delay: 1h}
- on: film_everywhere
  notify: {channel: [telegram, email], template: new_film_recommendation}
"""


@pytest.fixture
async def harness(tmp_path: Path, mail_server: MailServer) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path, mail_server) as harness:
        harness.rules(RULES)
        await harness.person(telegram_id=777)
        yield harness


# ── Two channels ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("trouble", [Unrecoverable("broken"), Retryable("broken"), Outage("down")])
async def test_one_of_two_is_broken_and_the_other_is_sent_once(harness: Harness, trouble: Exception) -> None:
    harness.channel.answers = [trouble] * 1_000
    jobs = {job["channel"]: job["job_id"] for job in await harness.event("film_everywhere")}
    await harness.app.clock.advance("1h")
    assert harness.channel.sent == []
    assert harness.mail.by_recipient() == {ADDRESS: 1}
    await harness.again(jobs["email"])
    await harness.event("film_everywhere", "e-1")  # the product repeats itself
    await harness.app.clock.advance("1h")
    assert harness.mail.by_recipient() == {ADDRESS: 1}


# ── The first that reaches ────────────────────────────────────────────────────────────────────────────────────────


async def test_the_first_channel_is_enough(harness: Harness) -> None:
    await harness.event("film_out")
    await harness.app.drain()
    assert (len(harness.channel.sent), len(harness.mail.letters)) == (1, 0)
    assert [(channel, status) for channel, status, _ in await harness.deliveries()] == [("telegram", "SENT")]


async def test_without_an_address_there_the_next_one_is_planned(harness: Harness) -> None:
    await harness.person(telegram_id=None)
    (job,) = await harness.event("film_out")
    assert job["channel"] == "email"
    await harness.app.drain()
    assert harness.mail.by_recipient() == {ADDRESS: 1}
    assert [(channel, status) for channel, status, _ in await harness.deliveries()] == [("email", "SENT")]


async def test_an_address_lost_meanwhile_sends_it_on(harness: Harness) -> None:
    (job,) = await harness.event("film_out_later")
    await harness.person(telegram_id=None)
    await harness.app.clock.advance("61m")
    assert harness.mail.by_recipient() == {ADDRESS: 1}
    assert await harness.deliveries() == [
        ("telegram", "SUPPRESSED", "User has no telegram; went on to sms"),
        ("sms", "SUPPRESSED", "The channel sms is not set up here; went on to email"),
        ("email", "SENT", None),
    ]
    assert await harness.dead_letters() == []
    await harness.again(job["job_id"])
    assert harness.mail.by_recipient() == {ADDRESS: 1}


async def test_an_address_gained_meanwhile_is_used(harness: Harness) -> None:
    await harness.person(telegram_id=None)
    await harness.event("film_out_later")
    await harness.person(telegram_id=777)
    await harness.app.clock.advance("61m")
    assert (len(harness.channel.sent), len(harness.mail.letters)) == (1, 0)


async def test_a_blocked_bot_sends_it_on_and_is_remembered(harness: Harness) -> None:
    harness.channel.answers = [Unreachable("403 Forbidden: bot was blocked by the user")]
    (first,) = await harness.event("film_out")
    await harness.app.drain()
    assert harness.mail.by_recipient() == {ADDRESS: 1}
    (telegram, email) = await harness.deliveries()
    assert telegram[:2] == ("telegram", "FAILED")
    assert telegram[2].endswith("blocked by the user; went on to email")
    assert email[:2] == ("email", "SENT")
    assert await harness.dead_letters() == []

    await harness.event("film_out")
    await harness.app.drain()
    assert (len(harness.channel.sent), harness.mail.by_recipient()) == (0, {ADDRESS: 2})
    await harness.again(first["job_id"])
    assert harness.mail.by_recipient() == {ADDRESS: 2}


async def test_nobody_can_be_reached_anywhere(harness: Harness) -> None:
    await harness.person(telegram_id=None, email=None)
    await harness.event("film_out_later")
    await harness.app.clock.advance("61m")
    (letter,) = await harness.dead_letters()
    assert letter["error_message"] == "User has no email"


async def test_who_opted_out_of_the_first_is_not_chased_on_the_next(harness: Harness) -> None:
    await harness.choose(allowed={"telegram": {"recommendations": False}})
    await harness.event("film_out")
    await harness.app.drain()
    assert (harness.channel.sent, harness.mail.letters) == ([], [])
    ((channel, status, why),) = await harness.deliveries()
    assert (channel, status) == ("telegram", "SUPPRESSED")
    assert "opted out" in (why or "")


async def test_an_outage_is_waited_for_and_not_gone_around(harness: Harness) -> None:
    harness.channel.answers = [Outage("down")]
    await harness.event("film_out")
    await harness.app.clock.advance("5m")
    assert (len(harness.channel.sent), len(harness.mail.letters)) == (1, 0)


async def test_a_policy_that_makes_no_sense(harness: Harness) -> None:
    job = await harness.notify(meta={"policy": {"then": ["owl"]}})
    await harness.app.drain()
    assert await harness.status(job) == "FAILED"
    assert "owl" in (await harness.dead_letters())[0]["error_message"]


@pytest.mark.parametrize(
    ("notify", "named"),
    [
        ({"first_of": ["telegram", "owl"], "template": "t"}, "owl"),
        ({"channel": "email", "first_of": ["email"], "template": "t"}, "either"),
        ({"channel": "email", "template": "t", "cap": {"most": 0, "per": "1d"}}, "most"),
        ({"channel": "email", "template": "t", "cap": {"most": 1, "per": "soon"}}, "soon"),
        ({"channel": "email", "template": "t", "digest": {"every": "1d"}}, "template"),
        (
            {"channel": "email", "template": "t", "digest": {"every": "5h", "at": "09:00", "template": "d"}},
            "days",
        ),
        ({"channel": "email", "template": "t", "escalate": {"after": "1h", "channel": "sms"}}, "database"),
    ],
)
async def test_rules_that_make_no_sense_are_refused(harness: Harness, notify: object, named: str) -> None:
    answer = await harness.client.post("/rules", json={"on": "x", "notify": notify})
    assert answer.status_code == 422
    assert named in answer.json()["detail"]


async def test_spans_of_a_rule_in_the_table_stay_what_they_are(harness: Harness) -> None:
    notify = {"channel": "email", "template": "new_film_recommendation", "delay": "30m", "expires_in": "7d"}
    await harness.client.post("/rules", json={"on": "table_rule", "notify": notify})
    await harness.event("table_rule")
    await harness.app.clock.advance("29m")
    assert harness.mail.letters == []
    await harness.app.clock.advance("2m")
    assert len(harness.mail.letters) == 1
    (shown,) = (await harness.client.get("/rules")).json()["table"]
    assert (shown["notify"]["delay"], shown["notify"]["expires_in"]) == ("30m", "7d")


async def test_an_expression_without_end_is_stopped(harness: Harness) -> None:
    rule = {"on": "x", "when": "range(99999)|map('upper')|list|length > 0 and ('a' * 999999999) != ''"}
    rule["notify"] = {"channel": "email", "template": "new_film_recommendation"}  # type: ignore[assignment]
    answer = await harness.client.post("/rules", json=rule)
    assert answer.status_code in (201, 422)
    assert await harness.event("x") == []


@pytest.mark.parametrize(
    ("when", "applies"),
    [
        ("event.data.plan == 'pro'", False),
        ("not event.data.trial", True),
        ("event.data.a.b.c is defined", False),
        ("user.locale == 'en'", True),
        ("event.data.total > 100", False),
        ("event.data.film_title|length > 3", True),
    ],
)
async def test_what_an_event_lacks_is_no_mistake(harness: Harness, when: str, applies: bool) -> None:
    notify = {"channel": "email", "template": "new_film_recommendation"}
    answer = await harness.client.post("/rules", json={"on": "y", "when": when, "notify": notify})
    assert answer.status_code == 201, answer.text
    assert len(await harness.event("y")) == applies
