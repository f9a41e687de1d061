"""A campaign with a rate and two workers, on every engine: everybody once, and never faster than it may be."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert, select

from tests.notifications.ledger import count_ledger
from yamchi import Yamchi
from yamchi.notifications.campaigns.model import CampaignIn
from yamchi.notifications.schemas.notification_job import derived_id
from yamchi.notifications.tables import null_ledger, users
from yamchi.settings import Settings
from yamchi.testing import eventually

PEOPLE, RATE = 150, 50
SLACK = RATE // 10
"""On a busy machine a message may be a little later than its permit, and fall into the next second."""

ENGINES = ["sqlite", *(pytest.param(name, marks=pytest.mark.services) for name in ("bull", "pgmq", "kafka"))]


@pytest.fixture(params=ENGINES)
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "bull":
            return str(request.getfixturevalue("redis_url"))
        case "pgmq":
            return str(request.getfixturevalue("postgres_database")().url)
        case "kafka":
            server = await asyncio.to_thread(request.getfixturevalue("private_kafka"))
            return f"kafka://{server.url}"
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
async def apps(url: str, tmp_path: Path) -> AsyncIterator[list[Yamchi]]:
    """Two applications with a worker each, as two processes would be."""
    settings = Settings(home=tmp_path, default_queue_url=url, lease=timedelta(seconds=5))
    apps = [Yamchi(settings) for _ in range(2)]
    for app in apps:
        app.define("notifications", backoff="200ms")
        app.notifications.serve()
    workers = [app.worker() for app in apps]
    working = [asyncio.create_task(worker.run()) for worker in workers]
    yield apps
    for worker in workers:
        worker.stop()
    await asyncio.gather(*working)
    for app in apps:
        await app.close()


async def test_everybody_once_at_a_rate(apps: list[Yamchi]) -> None:
    app = apps[0]
    await populate(app)
    request = CampaignIn.model_validate(
        {
            "campaign_id": "news",
            "template_code": "welcome_email",
            "channel": "null",
            "audience": {"where": {}},
            "rate": f"{RATE}/s",
        }
    )
    await app.notifications.campaigns.create(request)

    async def finished() -> bool:
        shown = await app.notifications.campaigns.show("news")
        return bool(shown["state"] == "finished")

    await eventually(finished, 90)
    assert await count_ledger(app.database) == {"lines": PEOPLE, "jobs": PEOPLE, "people": PEOPLE}
    query = select(null_ledger.c.received_at).order_by(null_ledger.c.received_at)
    moments = await app.database.read(lambda connection: connection.execute(query).scalars().all())
    fastest = max(sum(start <= one < start + 1_000 for one in moments) for start in moments)
    print(f"{app.notifications.queue.engine.type}: {fastest} in a second, {moments[-1] - moments[0]} ms")
    assert fastest <= RATE + SLACK


async def populate(app: Yamchi) -> None:
    now = app.clock.now()
    rows = [
        {
            "user_id": str(derived_id("person", str(number))),
            "email": f"user-{number}@example.com",
            "locale": "en",
            "attributes": {"first_name": "Person"},
            "created_at": now,
            "updated_at": now,
        }
        for number in range(PEOPLE)
    ]
    await app.database.write(lambda connection: connection.execute(insert(users), rows).rowcount)
