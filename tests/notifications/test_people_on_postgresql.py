"""The same story on PostgreSQL: choices, quiet hours, suppression, digest, cap, escalation, pages and erasing."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.notifications.conftest import USER
from tests.notifications.harness import ADDRESS, Harness, open_harness
from tests.services.mail import MailServer
from yamchi.notifications.channels.base import Unreachable
from yamchi.notifications.people.recipients import _PEOPLE
from yamchi.notifications.plugin import Notifications
from yamchi.notifications.tables import users
from yamchi.storage.database import Database

pytestmark = pytest.mark.services

RULES = """
- on: digested
  notify:
    channel: email
    template: new_film_recommendation
    digest: {every: 1d, at: "09:00", template: new_films_digest}
- on: capped
  notify: {channel: telegram, template: new_film_recommendation, cap: {most: 1, per: 1d, over: suppress}}
- on: escalated
  notify: {channel: database, template: new_film_recommendation, escalate: {after: 1h, channel: email}}
- on: fallen_back
  notify: {first_of: [telegram, email], template: new_film_recommendation}
"""


@pytest.fixture
async def harness(tmp_path: Path, mail_server: MailServer, postgres_database) -> AsyncIterator[Harness]:
    url = postgres_database().url
    database = Database(url, [Notifications.schema()])
    await database.migrate()
    await database.close()
    async with open_harness(tmp_path, mail_server, database_url=url) as harness:
        harness.rules(RULES)
        await harness.person(telegram_id=777)
        yield harness


async def test_the_whole_story(harness: Harness) -> None:
    for n in range(20):
        await harness.event("digested", film_title=f"Film {n}")
    await harness.event("capped")
    await harness.event("capped")
    await harness.event("escalated")
    await harness.app.clock.advance("2h")
    assert (len(harness.channel.sent), harness.mail.by_recipient()) == (1, {ADDRESS: 1})
    await harness.at("2026-01-01T09:00:00")
    assert harness.mail.by_recipient() == {ADDRESS: 2}
    assert harness.mail.letters[-1][1]["Subject"] == "20 new films for you"

    harness.channel.answers = [Unreachable("blocked")]
    await harness.event("fallen_back")
    await harness.app.drain()
    assert harness.mail.by_recipient() == {ADDRESS: 3}
    (kept,) = (await harness.client.get("/suppressions", params={"limit": 1})).json()["items"]
    assert (kept["channel"], kept["address"]) == ("telegram", "777")

    await harness.choose(quiet_hours={"from": "08:00", "until": "12:00"})
    await harness.notify()
    await harness.app.drain()
    (waiting,) = (await harness.client.get(f"/users/{USER}/pending", params={"limit": 1})).json()["items"]
    assert waiting["when"] == "2026-01-01T12:00:00Z"
    await harness.choose(allowed={"email": {"recommendations": False}})
    await harness.at("2026-01-01T12:00:00")
    assert harness.mail.by_recipient() == {ADDRESS: 3}

    seen, cursor = [], ""
    while cursor is not None:
        params = {"limit": 7} | ({"cursor": cursor} if cursor else {})
        page = (await harness.client.get(f"/users/{USER}/history", params=params)).json()
        seen += [item["job_id"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert len(seen) == len(set(seen)) == 28
    erased = (await harness.client.delete(f"/users/{USER}")).json()
    found = {kind: count for kind, count in erased.items() if count}
    assert found == {"people": 1, "deliveries": 28, "events": 24}
    assert (await harness.client.get(f"/users/{USER}/history")).json()["items"] == []


async def test_people_are_loaded_by_indexes(harness: Harness) -> None:
    """However many addresses are suppressed, none but the person's own is looked at."""
    fill = (
        "INSERT INTO suppressions (address, channel, reason, created_at) "
        "SELECT 'a' || n || '@example.com', 'email', 'x', now() FROM generate_series(1, 50000) AS n"
    )

    def explain(connection):
        connection.exec_driver_sql(fill)
        connection.exec_driver_sql("ANALYZE")
        query = _PEOPLE.where(users.c.user_id.in_([USER]))
        text = str(query.compile(connection.engine, compile_kwargs={"literal_binds": True}))
        return "\n".join(row[0] for row in connection.exec_driver_sql(f"EXPLAIN {text}"))

    plan = await harness.app.database.write(explain)
    assert "Seq Scan on suppressions" not in plan, plan
