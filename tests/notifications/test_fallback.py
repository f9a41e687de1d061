"""Two channels and `first_of`: the good one is sent once, whatever becomes of the other."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.notifications.house import ADDRESS, House, a_house
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
async def house(tmp_path: Path, mail_server: MailServer) -> AsyncIterator[House]:
    async with a_house(tmp_path, mail_server) as house:
        house.rules(RULES)
        await house.person(telegram_id=777)
        yield house


# ── Two channels ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("trouble", [Unrecoverable("broken"), Retryable("broken"), Outage("down")])
async def test_one_of_two_is_broken_and_the_other_is_sent_once(house: House, trouble: Exception) -> None:
    house.pigeon.answers = [trouble] * 1_000
    jobs = {job["channel"]: job["job_id"] for job in await house.event("film_everywhere")}
    await house.app.clock.advance("1h")
    assert house.pigeon.sent == []
    assert house.mail.by_recipient() == {ADDRESS: 1}
    await house.again(jobs["email"])
    await house.event("film_everywhere", "e-1")  # the product repeats itself
    await house.app.clock.advance("1h")
    assert house.mail.by_recipient() == {ADDRESS: 1}


# ── The first that reaches ────────────────────────────────────────────────────────────────────────────────────────


async def test_the_first_channel_is_enough(house: House) -> None:
    await house.event("film_out")
    await house.app.drain()
    assert (len(house.pigeon.sent), len(house.mail.letters)) == (1, 0)
    assert [(channel, status) for channel, status, _ in await house.deliveries()] == [("telegram", "SENT")]


async def test_without_an_address_there_the_next_one_is_planned(house: House) -> None:
    await house.person(telegram_id=None)
    (job,) = await house.event("film_out")
    assert job["channel"] == "email"
    await house.app.drain()
    assert house.mail.by_recipient() == {ADDRESS: 1}
    assert [(channel, status) for channel, status, _ in await house.deliveries()] == [("email", "SENT")]


async def test_an_address_lost_meanwhile_sends_it_on(house: House) -> None:
    (job,) = await house.event("film_out_later")
    await house.person(telegram_id=None)
    await house.app.clock.advance("61m")
    assert house.mail.by_recipient() == {ADDRESS: 1}
    assert await house.deliveries() == [
        ("telegram", "SUPPRESSED", "User has no telegram; went on to sms"),
        ("sms", "SUPPRESSED", "The channel sms is not set up here; went on to email"),
        ("email", "SENT", None),
    ]
    assert await house.dead_letters() == []
    await house.again(job["job_id"])
    assert house.mail.by_recipient() == {ADDRESS: 1}


async def test_an_address_gained_meanwhile_is_used(house: House) -> None:
    await house.person(telegram_id=None)
    await house.event("film_out_later")
    await house.person(telegram_id=777)
    await house.app.clock.advance("61m")
    assert (len(house.pigeon.sent), len(house.mail.letters)) == (1, 0)


async def test_a_blocked_bot_sends_it_on_and_is_remembered(house: House) -> None:
    house.pigeon.answers = [Unreachable("403 Forbidden: bot was blocked by the user")]
    (first,) = await house.event("film_out")
    await house.app.drain()
    assert house.mail.by_recipient() == {ADDRESS: 1}
    (telegram, email) = await house.deliveries()
    assert telegram[:2] == ("telegram", "FAILED")
    assert telegram[2].endswith("blocked by the user; went on to email")
    assert email[:2] == ("email", "SENT")
    assert await house.dead_letters() == []

    await house.event("film_out")
    await house.app.drain()
    assert (len(house.pigeon.sent), house.mail.by_recipient()) == (0, {ADDRESS: 2})
    await house.again(first["job_id"])
    assert house.mail.by_recipient() == {ADDRESS: 2}


async def test_nobody_can_be_reached_anywhere(house: House) -> None:
    await house.person(telegram_id=None, email=None)
    await house.event("film_out_later")
    await house.app.clock.advance("61m")
    (letter,) = await house.dead_letters()
    assert letter["error_message"] == "User has no email"


async def test_who_opted_out_of_the_first_is_not_chased_on_the_next(house: House) -> None:
    await house.choose(allowed={"telegram": {"recommendations": False}})
    await house.event("film_out")
    await house.app.drain()
    assert (house.pigeon.sent, house.mail.letters) == ([], [])
    ((channel, status, why),) = await house.deliveries()
    assert (channel, status) == ("telegram", "SUPPRESSED")
    assert "opted out" in (why or "")


async def test_an_outage_is_waited_for_and_not_gone_around(house: House) -> None:
    house.pigeon.answers = [Outage("down")]
    await house.event("film_out")
    await house.app.clock.advance("5m")
    assert (len(house.pigeon.sent), len(house.mail.letters)) == (1, 0)


async def test_a_policy_that_makes_no_sense(house: House) -> None:
    job = await house.notify(meta={"policy": {"then": ["owl"]}})
    await house.app.drain()
    assert await house.status(job) == "FAILED"
    assert "owl" in (await house.dead_letters())[0]["error_message"]


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
async def test_rules_that_make_no_sense_are_refused(house: House, notify: object, named: str) -> None:
    answer = await house.client.post("/rules", json={"on": "x", "notify": notify})
    assert answer.status_code == 422
    assert named in answer.json()["detail"]


async def test_spans_of_a_rule_in_the_table_stay_what_they_are(house: House) -> None:
    notify = {"channel": "email", "template": "new_film_recommendation", "delay": "30m", "expires_in": "7d"}
    await house.client.post("/rules", json={"on": "table_rule", "notify": notify})
    await house.event("table_rule")
    await house.app.clock.advance("29m")
    assert house.mail.letters == []
    await house.app.clock.advance("2m")
    assert len(house.mail.letters) == 1
    (shown,) = (await house.client.get("/rules")).json()["table"]
    assert (shown["notify"]["delay"], shown["notify"]["expires_in"]) == ("30m", "7d")


async def test_an_expression_without_end_is_stopped(house: House) -> None:
    rule = {"on": "x", "when": "range(99999)|map('upper')|list|length > 0 and ('a' * 999999999) != ''"}
    rule["notify"] = {"channel": "email", "template": "new_film_recommendation"}  # type: ignore[assignment]
    answer = await house.client.post("/rules", json=rule)
    assert answer.status_code in (201, 422)
    assert await house.event("x") == []


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
async def test_what_an_event_lacks_is_no_mistake(house: House, when: str, applies: bool) -> None:
    notify = {"channel": "email", "template": "new_film_recommendation"}
    answer = await house.client.post("/rules", json={"on": "y", "when": when, "notify": notify})
    assert answer.status_code == 201, answer.text
    assert len(await house.event("y")) == applies
