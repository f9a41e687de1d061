"""A lead and the person of the same id: a lead tells where it is reached itself, and writes to nobody whom it did not bring."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from sqlalchemy import select

from tests.leads.harness import Harness, open_harness
from yamchi.notifications.tables import events

EVIL = {
    "email": "me@evil.example",
    "phone": "+77029999999",
    "tg_id": "666",
    "locale": "en",
    "timezone": "UTC",
}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path) as harness:
        yield harness


async def person(harness: Harness, user_id: str) -> dict[str, Any]:
    found = (await harness.client.get(f"/v1/users/{user_id}")).json()
    return {name: found[name] for name in ("email", "phone", "telegram_id", "locale", "timezone")}


async def register(harness: Harness, user_id: str, **fields: Any) -> dict[str, Any]:
    answer = await harness.client.put(f"/v1/users/{user_id}", json=fields)
    assert answer.is_success, answer.text
    return await person(harness, user_id)


async def test_a_lead_of_a_persons_id_takes_over_none_of_their_addresses(harness: Harness) -> None:
    victim = str(uuid4())
    known = await register(
        harness, victim, email="aisha@example.com", telegram_id="888", timezone="Asia/Almaty"
    )
    assert (await harness.event("lead.created", victim, "x", **EVIL)).status_code == 202
    assert (await harness.event("bot.activated", victim, "y", tg_id="667", locale="kk")).status_code == 202
    await harness.client.patch(f"/v1/leads/{victim}", json={"email": "again@evil.example"})
    assert await person(harness, victim) == known


async def test_a_lead_whose_person_was_there_first_is_reached_at_its_own_addresses(harness: Harness) -> None:
    lead_id = str(uuid4())
    await register(harness, lead_id, email="old@example.com", timezone="Europe/London")
    await harness.event("lead.created", lead_id, "x", email="new@example.com", name="Айша")
    await harness.app.clock.advance("30m")
    assert [message.to for _, message in harness.email.sent] == ["new@example.com"]
    assert (await harness.get(lead_id))["timezone"] == "Europe/London"  # unless it says another


@pytest.mark.parametrize(
    ("email", "known"), [("aisha@example.com", {"plan": "pro"}), ("me@evil.example", {})]
)
async def test_what_is_known_of_a_person_goes_to_no_other_address(
    harness: Harness, email: str, known: dict[str, str]
) -> None:
    lead_id = str(uuid4())
    await register(harness, lead_id, email="aisha@example.com", attributes={"plan": "pro"})
    await harness.event("lead.created", lead_id, "x", email=email)
    entity = await harness.leads.entities.get(lead_id)
    assert entity is not None
    assert entity.recipient.attributes == known


async def test_nothing_goes_to_a_suppressed_address_of_a_lead(harness: Harness) -> None:
    """Also if the person of its id has another one."""
    lead_id = str(uuid4())
    await register(harness, lead_id, email="aisha@example.com")
    await harness.app.notifications.suppressions.add("email", "gone@example.com", "no such mailbox")
    await harness.event("lead.created", lead_id, "x", email="gone@example.com")
    await harness.app.clock.advance("30m")
    assert harness.email.sent == []


async def test_the_person_whom_a_lead_brought_follows_it(harness: Harness) -> None:
    lead_id = await harness.lead()
    before = await person(harness, lead_id)
    assert (before["email"], before["phone"]) == ("marat@example.com", "+77010000000")
    await harness.event("bot.activated", lead_id, "a", tg_id="777", locale="kk")
    assert await person(harness, lead_id) == {**before, "telegram_id": "777", "locale": "kk"}


async def test_a_person_who_registers_later_is_no_longer_the_leads(harness: Harness) -> None:
    """Whoever guessed an id before it was used has nothing of it."""
    lead_id = str(uuid4())
    await harness.event("lead.created", lead_id, "x", email="me@evil.example")
    known = await register(harness, lead_id, email="aisha@example.com")
    await harness.event("bot.activated", lead_id, "y", tg_id="666", locale="en")
    assert await person(harness, lead_id) == known


async def test_a_lead_stays_with_the_account_that_opened_it(harness: Harness) -> None:
    lead_id = await harness.lead()
    await harness.event("bot.activated", lead_id, "a", tg_id=777)
    await harness.event("bot.activated", lead_id, "b", tg_id=666, locale="en")
    lead = await harness.get(lead_id)
    assert (lead["tg_id"], lead["locale"]) == ("777", None)
    assert (await person(harness, lead_id))["telegram_id"] == "777"


@pytest.mark.parametrize("lead_id", ["crm-42", "crm/42 Ж", "7d1c3f0e-5a0b-4c58-9a55-0d7c5b1f4e21"])
async def test_a_lead_of_any_id_can_be_erased(harness: Harness, lead_id: str) -> None:
    await harness.event("lead.created", lead_id, "a", email="marat@example.com", name="Марат")
    await harness.event("lesson.booked", lead_id, "b", lesson_datetime="2026-01-05T10:00:00Z")
    await harness.event("lead.created", "other", "c", email="aisha@example.com")
    answer = await harness.client.delete(f"/v1/leads/{quote(lead_id, safe='')}")
    assert (answer.status_code, answer.json()["leads"]) == (200, 1), answer.text
    assert [lead.id for lead in await harness.leads.store.page()] == ["other"]
    assert (await harness.jobs("reminders"), len(await harness.jobs("emailChain"))) == ([], 1)
    query = select(events.c.event_id, events.c.data).order_by(events.c.event_id)
    told = await harness.app.database.read(lambda connection: connection.execute(query).all())
    assert [bool(row.data) for row in told] == [False, False, True]
    again = await harness.client.delete(f"/v1/leads/{quote(lead_id, safe='')}")
    assert again.status_code == 404


async def test_an_id_fits_into_the_buttons(harness: Harness) -> None:
    """Telegram takes 64 bytes with a button; a lead whose reminders could not be sent is refused when it comes in."""
    assert (await harness.event("lead.created", "ж" * 26, "a", email="a@example.com")).status_code == 202
    answer = await harness.event("lead.created", "ж" * 27, "b", email="a@example.com")
    assert (answer.status_code, "53 bytes" in answer.json()["detail"]) == (422, True)
