"""Campaigns: everybody once, in variants and at a rate, paused and cancelled, and refused in one sentence when they make no sense."""

from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import insert, select

from yamchi.notifications.campaigns.model import CampaignIn
from yamchi.notifications.channels.null import count_ledger
from yamchi.notifications.schemas.notification_job import derived_id
from yamchi.storage.tables import null_ledger, users
from yamchi.testing import TestApp
from yamchi.web import create_app

PLANS = ("free", "pro", "team")


def person(number: int) -> str:
    return str(derived_id("person", str(number)))


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[TestApp]:
    folder = tmp_path / "templates" / "news"
    folder.mkdir(parents=True)
    (folder / "null.en.txt").write_text("Hello {{ name | default('you') }}")
    async with TestApp(home=tmp_path) as app:
        app.notifications.serve()
        yield app


async def populate(app: TestApp, people: int) -> None:
    now = app.clock.now()
    rows = [
        {
            "user_id": person(number),
            "email": f"user-{number}@example.com",
            "locale": ("ru", "kk", "en")[number % 3],
            "attributes": {"plan": PLANS[number % 3], "age": number, "is_active": number % 2 == 0},
            "created_at": now,
            "updated_at": now,
        }
        for number in range(people)
    ]
    await app.database.write(lambda connection: connection.execute(insert(users), rows).rowcount)


def wish(**fields: Any) -> CampaignIn:
    given = {"campaign_id": "news-1", "template_code": "news", "channel": "null", "audience": {"where": {}}}
    return CampaignIn.model_validate({**given, **fields})


async def send_all(app: TestApp) -> None:
    """Fan out and send until nothing is left that is due."""
    await app.notifications.fan_out.run()
    await app.drain()


async def reached(app: TestApp) -> Counter[str]:
    """How often each person is in the ledger."""
    query = select(null_ledger.c.user_id)
    found = await app.database.read(lambda connection: connection.execute(query).scalars().all())
    return Counter(found)


async def test_everybody_once(app: TestApp) -> None:
    await populate(app, 2_500)
    made = await app.notifications.campaigns.create(wish())
    assert (made["state"], made["progress"]["total"]) == ("running", 2_500)
    await send_all(app)
    shown = await app.notifications.campaigns.show("news-1")
    assert shown["state"] == "finished"
    assert (shown["progress"]["fanned_out"], shown["progress"]["sent"]) == (2_500, 2_500)
    assert await reached(app) == {person(number): 1 for number in range(2_500)}
    assert await count_ledger(app.database) == {"lines": 2_500, "jobs": 2_500, "people": 2_500}
