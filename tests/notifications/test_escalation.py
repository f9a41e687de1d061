"""Escalation: a letter follows the message in the inbox only if nobody read that, and then once."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.notifications.conftest import USER
from tests.notifications.harness import ADDRESS, Harness, open_harness
from tests.services.mail import MailServer

RULES = """
- on: film_out
  notify:
    channel: [database, telegram]
    template: new_film_recommendation
    escalate: {after: 1h, channel: email, unless: read}
- on: film_out_other_words
  notify:
    first_of: [telegram, database]
    template: new_film_recommendation
    escalate: {after: 30m, channel: email, template: welcome_email}
"""


@pytest.fixture
async def harness(tmp_path: Path, mail_server: MailServer) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path, mail_server) as harness:
        harness.rules(RULES)
        await harness.person(telegram_id=777)
        yield harness


async def inbox(harness: Harness, action: str | None = None) -> list[dict[str, Any]]:
    items = (await harness.client.get(f"/users/{USER}/inbox")).json()["items"]
    if action:
        answer = await harness.client.post(f"/users/{USER}/inbox/{items[0]['id']}/{action}")
        assert answer.status_code == 200, answer.text
    return list(items)


async def test_unread_after_an_hour_it_is_sent_as_a_letter(harness: Harness) -> None:
    await harness.event("film_out")
    await harness.app.clock.advance("59m")
    assert (len(await inbox(harness)), harness.mail.letters) == (1, [])
    (pending,) = (await harness.client.get(f"/users/{USER}/pending")).json()["items"]
    assert (pending["channel"], pending["when"]) == ("email", "2026-01-01T01:00:00Z")
    await harness.app.clock.advance("1m")
    assert harness.mail.by_recipient() == {ADDRESS: 1}
    await harness.app.clock.advance("7d")
    assert harness.mail.by_recipient() == {ADDRESS: 1}
    assert len(harness.channel.sent) == 1


@pytest.mark.parametrize("action", ["read", "archive"])
async def test_what_was_read_is_not_sent_again(harness: Harness, action: str) -> None:
    await harness.event("film_out")
    await harness.app.clock.advance("30m")
    await inbox(harness, action)
    await harness.app.clock.advance("1h")
    assert harness.mail.letters == []
    history = (await harness.client.get(f"/users/{USER}/history")).json()["items"]
    (skipped,) = [item for item in history if item["channel"] == "email"]
    assert (skipped["status"], skipped["why"]) == ("SUPPRESSED", "The person has read it in the inbox")
    assert await harness.dead_letters() == []


async def test_read_and_marked_unread_again(harness: Harness) -> None:
    await harness.event("film_out")
    await harness.app.drain()
    await inbox(harness, "read")
    await inbox(harness, "unread")
    await harness.app.clock.advance("1h")
    assert harness.mail.by_recipient() == {ADDRESS: 1}


async def test_the_hour_begins_when_it_arrives(harness: Harness) -> None:
    harness.rules(
        RULES.replace("template: new_film_recommendation", "template: new_film_recommendation\n    delay: 2h")
    )
    await harness.event("film_out")
    await harness.app.clock.advance("2h59m")
    assert harness.mail.letters == []
    await harness.app.clock.advance("1m")
    assert harness.mail.by_recipient() == {ADDRESS: 1}


async def test_delivered_again_it_escalates_once(harness: Harness) -> None:
    jobs = {job["channel"]: job["job_id"] for job in await harness.event("film_out")}
    await harness.app.drain()
    for _ in range(3):
        await harness.again(jobs["database"])
        await harness.app.clock.advance("1h")
    assert harness.mail.by_recipient() == {ADDRESS: 1}
    assert len(await inbox(harness)) == 1


async def test_a_crash_before_the_second_was_queued(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = {job["channel"]: job["job_id"] for job in await harness.event("film_out")}
    outcomes = harness.app.notifications.processor._outcomes
    with monkeypatch.context() as patch:

        async def nothing(*_: object) -> None:
            """As when the process ends here."""

        patch.setattr(outcomes, "queue_escalation", nothing)
        await harness.app.drain()
    await harness.again(jobs["database"])
    await harness.app.clock.advance("1h")
    assert harness.mail.by_recipient() == {ADDRESS: 1}


async def test_only_the_channel_that_knows_escalates(harness: Harness) -> None:
    await harness.event("film_out_other_words")  # the channel takes it, and nobody knows whether it was read
    await harness.app.clock.advance("1d")
    assert (len(harness.channel.sent), harness.mail.letters) == (1, [])
    await harness.person(telegram_id=None)
    await harness.event("film_out_other_words")
    await harness.app.clock.advance("31m")
    ((_, letter),) = harness.mail.letters
    assert "welcome" in str(letter["Subject"]).lower()


async def test_who_opted_out_of_letters_gets_none(harness: Harness) -> None:
    await harness.choose(allowed={"email": {"*": False}})
    await harness.event("film_out")
    await harness.app.clock.advance("2h")
    assert harness.mail.letters == []
