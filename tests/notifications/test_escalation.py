"""Escalation: a letter follows the message in the inbox only if nobody read that, and then once."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.notifications.conftest import USER
from tests.notifications.house import ADDRESS, House, a_house
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
async def house(tmp_path: Path, mail_server: MailServer) -> AsyncIterator[House]:
    async with a_house(tmp_path, mail_server) as house:
        house.rules(RULES)
        await house.person(telegram_id=777)
        yield house


async def inbox(house: House, action: str | None = None) -> list[dict[str, Any]]:
    items = (await house.client.get(f"/users/{USER}/inbox")).json()["items"]
    if action:
        answer = await house.client.post(f"/users/{USER}/inbox/{items[0]['id']}/{action}")
        assert answer.status_code == 200, answer.text
    return list(items)


async def test_unread_after_an_hour_it_is_sent_as_a_letter(house: House) -> None:
    await house.event("film_out")
    await house.app.clock.advance("59m")
    assert (len(await inbox(house)), house.mail.letters) == (1, [])
    (pending,) = (await house.client.get(f"/users/{USER}/pending")).json()["items"]
    assert (pending["channel"], pending["when"]) == ("email", "2026-01-01T01:00:00Z")
    await house.app.clock.advance("1m")
    assert house.mail.by_recipient() == {ADDRESS: 1}
    await house.app.clock.advance("7d")
    assert house.mail.by_recipient() == {ADDRESS: 1}
    assert len(house.pigeon.sent) == 1


@pytest.mark.parametrize("action", ["read", "archive"])
async def test_what_was_read_is_not_sent_again(house: House, action: str) -> None:
    await house.event("film_out")
    await house.app.clock.advance("30m")
    await inbox(house, action)
    await house.app.clock.advance("1h")
    assert house.mail.letters == []
    history = (await house.client.get(f"/users/{USER}/history")).json()["items"]
    (skipped,) = [item for item in history if item["channel"] == "email"]
    assert (skipped["status"], skipped["why"]) == ("SUPPRESSED", "The person has read it in the inbox")
    assert await house.dead_letters() == []


async def test_read_and_marked_unread_again(house: House) -> None:
    await house.event("film_out")
    await house.app.drain()
    await inbox(house, "read")
    await inbox(house, "unread")
    await house.app.clock.advance("1h")
    assert house.mail.by_recipient() == {ADDRESS: 1}


async def test_the_hour_begins_when_it_arrives(house: House) -> None:
    house.rules(
        RULES.replace("template: new_film_recommendation", "template: new_film_recommendation\n    delay: 2h")
    )
    await house.event("film_out")
    await house.app.clock.advance("2h59m")
    assert house.mail.letters == []
    await house.app.clock.advance("1m")
    assert house.mail.by_recipient() == {ADDRESS: 1}


async def test_delivered_again_it_escalates_once(house: House) -> None:
    jobs = {job["channel"]: job["job_id"] for job in await house.event("film_out")}
    await house.app.drain()
    for _ in range(3):
        await house.again(jobs["database"])
        await house.app.clock.advance("1h")
    assert house.mail.by_recipient() == {ADDRESS: 1}
    assert len(await inbox(house)) == 1


async def test_a_crash_before_the_second_was_queued(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = {job["channel"]: job["job_id"] for job in await house.event("film_out")}
    processor = house.app.notifications.processor
    with monkeypatch.context() as patch:

        async def nothing(*_: object) -> None:
            """As when the process ends here."""

        patch.setattr(processor, "_follow_up", nothing)
        await house.app.drain()
    await house.again(jobs["database"])
    await house.app.clock.advance("1h")
    assert house.mail.by_recipient() == {ADDRESS: 1}


async def test_only_the_channel_that_knows_escalates(house: House) -> None:
    await house.event("film_out_other_words")  # the pigeon takes it, and nobody knows whether it was read
    await house.app.clock.advance("1d")
    assert (len(house.pigeon.sent), house.mail.letters) == (1, [])
    await house.person(telegram_id=None)
    await house.event("film_out_other_words")
    await house.app.clock.advance("31m")
    ((_, letter),) = house.mail.letters
    assert "welcome" in str(letter["Subject"]).lower()


async def test_who_opted_out_of_letters_gets_none(house: House) -> None:
    await house.choose(allowed={"email": {"*": False}})
    await house.event("film_out")
    await house.app.clock.advance("2h")
    assert house.mail.letters == []
