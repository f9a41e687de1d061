"""Makes the databases that `test_upgrade.py` opens. Run it with the version that they are to come from:

    git worktree add /tmp/old 9620e6e
    PYTHONPATH=/tmp/old/src python tests/upgrade/make_fixture.py sqlite /tmp/fixture
    PYTHONPATH=/tmp/old/src python tests/upgrade/make_fixture.py postgresql postgresql://…/an_empty_database

and keep what it made: `tar cJf tests/upgrade/sqlite.tar.xz -C /tmp/fixture var`, and for PostgreSQL
`pg_dump --inserts --no-owner … | xz > tests/upgrade/postgresql.sql.xz`.

In them: jobs that wait, run later and have failed; a letter that was sent, one that waits in its queue, one of an event that a crash
interrupted before its job was queued; and a campaign of which a quarter is fanned out.
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from uuid import NAMESPACE_DNS, uuid5

from yamchi.notifications.recipients import User  # where the version of the fixture has it

from yamchi.notifications.campaigns import fanout
from yamchi.notifications.campaigns.model import CampaignIn
from yamchi.notifications.schemas.event import Event
from yamchi.settings import Settings
from yamchi.shipped import shipped_app
from yamchi.testing.waiting import eventually

PEOPLE = 20
QUARTER = 5


def person(number: int) -> str:
    return str(uuid5(NAMESPACE_DNS, f"person-{number}"))


async def make(settings: Settings) -> None:
    app = shipped_app(settings)
    async with app:
        await app.database.migrate()
        await _make_people(app)
        await _send_one(app)
        await _leave_jobs(app)
        await _leave_events(app)
        await _leave_campaign(app)


async def _make_people(app) -> None:
    for number in range(PEOPLE):
        user = User(email=f"person-{number}@example.com", locale="en", attributes={"number": number})
        await app.notifications.recipients.put(person(number), user)


async def _send_one(app) -> None:
    await app.notifications.service.handle_event(_event("sent", 0))
    await app.queue("hello").add({"name": "done"}, id="done")
    working = asyncio.create_task(app.work(["notifications", "hello"]))
    await eventually(lambda: app.notifications.mailbox.list(offset=0, limit=1))
    await eventually(lambda: _is_one_done(app))
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


async def _is_one_done(app) -> bool:
    return (await app.queue("hello").stats())["completed"] == 1


async def _leave_jobs(app) -> None:
    for number in range(10):
        await app.queue("hello").add({"name": f"waiting {number}"}, id=f"waiting-{number}", priority=number)
    await app.queue("hello").add({"name": "later"}, id="later", delay="3s")


async def _leave_events(app) -> None:
    """One whose letter is queued, and one that was stored when the process died."""
    service = app.notifications.service
    await service.handle_event(_event("queued", 1))
    batch = [_event("interrupted", 2)]
    now = app.clock.now()
    plans = await service._plan(batch, now)
    await app.database.write(lambda connection: service._store(connection, batch, plans, now))


async def _leave_campaign(app) -> None:
    fanout.BATCH = QUARTER
    campaign = {
        "campaign_id": "half-done",
        "template_code": "black_friday_sale",
        "channel": "null",
        "audience": {"where": {}},
        "data": {"discount": "50%", "promo_code": "BF50"},
    }
    await app.notifications.campaigns.create(CampaignIn.model_validate(campaign))
    await app.notifications.fan_out.turn()


def _event(event_id: str, number: int) -> Event:
    return Event.model_validate(
        {"event_type": "user_registered", "event_id": event_id, "user_id": person(number), "data": {}}
    )


if __name__ == "__main__":
    kind, place = sys.argv[1:]
    if kind == "sqlite":
        asyncio.run(make(Settings(home=Path(place))))
    else:
        with tempfile.TemporaryDirectory() as home:
            asyncio.run(make(Settings(home=Path(home), database_url=place)))
