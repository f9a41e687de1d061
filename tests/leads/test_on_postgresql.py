"""The same on PostgreSQL: a lead comes in once, is listed, books a time that nobody else gets, and is forgotten."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.leads.harness import Harness, open_harness
from tests.leads.test_people import person, register
from yamchi.clock import to_moment

pytestmark = pytest.mark.services


@pytest.fixture
async def harness(tmp_path: Path, postgres_database) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path, database_url=postgres_database().url) as harness:
        yield harness


async def test_only_the_person_whom_a_lead_brought_follows_it(harness: Harness) -> None:
    theirs, ours = str(uuid4()), await harness.lead()
    known = await register(harness, theirs, email="aisha@example.com")
    await harness.event("lead.created", theirs, "x", email="me@evil.example")
    for lead_id in (theirs, ours):
        await harness.event("bot.activated", lead_id, f"bot-{lead_id}", tg_id="777")
    assert await person(harness, theirs) == known
    assert (await person(harness, ours))["telegram_id"] == "777"


async def test_a_lead_from_the_form_to_its_end(harness: Harness) -> None:
    answers = await asyncio.gather(*(harness.form() for _ in range(5)))
    assert {answer.text for answer in answers} == {"ok"}
    (lead,) = await harness.leads.store.page()
    other = await harness.lead(tranid="3")
    await harness.app.clock.advance("30m")
    assert (await harness.get(lead.id))["email_1_sent_at"] == "2026-01-01T00:30:00Z"

    free = await harness.leads.slots.free(lead.id)
    taken = await asyncio.gather(*(harness.leads.slots.take(one, free[0]) for one in (lead.id, other)))
    assert sorted(taken) == [False, True]
    loser = other if taken[0] else lead.id
    assert free[0] not in await harness.leads.slots.free(loser)

    moment = "2026-01-05T15:00:00+05:00"
    await harness.event("lesson.booked", lead.id, "e1", lesson_datetime=moment)
    assert (await harness.leads.get(lead.id)).lesson_datetime == to_moment(
        harness.app.clock.time.replace(month=1, day=5, hour=10, minute=0)
    )
    pages = []
    cursor = None
    while True:
        query = {"limit": 1, **({"cursor": cursor} if cursor else {})}
        page = (await harness.client.get("/v1/leads", params=query)).json()
        pages += [one["id"] for one in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert sorted(pages) == sorted([lead.id, other])
    assert len((await harness.client.get("/v1/leads/export.csv")).text.splitlines()) == 3
    assert (await harness.app.erase(lead.id))["leads"] == 1
    assert await harness.leads.store.find(lead.id) is None
