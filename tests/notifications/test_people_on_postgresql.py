"""The same story on PostgreSQL: choices, quiet hours, suppression, digest, cap, escalation, pages and erasing."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from tests.notifications.conftest import USER
from tests.notifications.harness import ADDRESS, Harness, open_harness
from tests.services.mail import MailServer
from yamchi.errors import Outage, Unrecoverable
from yamchi.notifications.channels.base import Unreachable
from yamchi.notifications.people.recipients import _PEOPLE
from yamchi.notifications.plugin import Notifications
from yamchi.notifications.tables import users
from yamchi.notifications.templates.locales import LONGEST_LOCALE
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


async def test_whatever_the_provider_says_is_kept(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that takes no such text must not make a message that has left leave again."""
    channel = harness.channel
    monkeypatch.setattr(channel, "send", AsyncMock(side_effect=["1234567890," * 30, "a\0b", 42]))
    found = []
    for _ in range(3):
        job_id = await harness.notify(channel="telegram")
        await harness.app.drain()
        found.append(await harness.delivery(job_id))
    assert [one["status"] for one in found] == ["SENT"] * 3
    ids = [one["provider_message_id"] for one in found]
    assert ids[0].startswith("1234567890,1234567890,")
    assert ids[1:] == ["a\\0b", "42"]
    assert channel.send.await_count == 3


@pytest.mark.parametrize("kind", [Unrecoverable, Outage])
async def test_a_reason_that_no_table_takes_is_kept_in_its_own_way(
    harness: Harness, kind: type[Exception]
) -> None:
    harness.channel.answers = [kind("no \0 \ud800")]
    job_id = await harness.notify(channel="telegram")
    await harness.app.drain()
    found = await harness.delivery(job_id)
    assert found["timeline"][1]["answer"] == "no \\0 \\ud800"
    assert (found["status"], len(harness.channel.sent)) in [("FAILED", 0), ("RETRYING", 0)]
    if kind is Outage:
        await harness.app.clock.advance(timedelta(minutes=1))
        await harness.app.drain()
        assert await harness.status(job_id) == "SENT"


async def test_a_long_locale_fits_as_on_sqlite(harness: Harness) -> None:
    locale = "zh-Hant-HK-aaaaaaaa-bbbbbbbb-cccccc"
    assert len(locale) == LONGEST_LOCALE
    await harness.person(locale=locale)
    new = {"subject": "Hi", "body": "<p>there</p>"}
    answer = await harness.client.put(f"/templates/greeting/email/{locale}", json=new)
    assert answer.status_code == 200, answer.text
    job_id = await harness.notify("greeting", locale=locale)
    await harness.app.drain()
    assert (await harness.status(job_id), harness.mail.by_recipient()) == ("SENT", {ADDRESS: 1})


async def test_an_outage_of_a_provider_with_a_long_name_costs_no_attempt(harness: Harness) -> None:
    harness.channel.provider = "vpce-0123456789abcdef0-01234567.email-smtp.us-east-1.vpce.amazonaws.com:587"
    harness.channel.answers = [Outage("away")]
    job_id = await harness.notify(channel="telegram")
    await harness.app.drain()
    (circuit,) = await harness.app.notifications.circuits.all()
    assert circuit.is_open
    await harness.app.clock.advance(timedelta(minutes=1))
    await harness.app.drain()
    found = await harness.delivery(job_id)
    assert (found["status"], found["attempts"]) == ("SENT", 1)
