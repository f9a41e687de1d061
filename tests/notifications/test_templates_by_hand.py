"""A template that somebody wrote into the table with SQL, by the columns that the contract names."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.notifications.harness import ADDRESS, Harness, open_harness
from tests.services.mail import MailServer

BY_HAND = text(
    "INSERT INTO templates (code, channel, locale, subject, body, version)"
    " VALUES ('by_hand', :channel, 'en', 'For {{ film_title }}', '<p>Hello, <b>you</b></p>', 1)"
)


CHANNELS = ("email", "telegram")


@pytest.fixture
async def harness(tmp_path: Path, mail_server: MailServer, database_url: str) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path, mail_server, database_url=database_url) as harness:
        await harness.person(telegram_id=777)
        yield harness


async def test_it_is_sent(harness: Harness) -> None:
    begun = datetime.now(UTC) - timedelta(seconds=1)
    rows = [{"channel": channel} for channel in CHANNELS]
    await harness.app.database.write(lambda connection: connection.execute(BY_HAND, rows).rowcount)
    for channel in CHANNELS:
        job_id = await harness.notify("by_hand", channel=channel)
        await harness.app.drain()
        assert await harness.status(job_id) == "SENT"
    ((_, letter),) = harness.mail.letters
    assert (letter["To"], letter["Subject"]) == (ADDRESS, "For The Matrix")
    (version,) = (await harness.client.get("/templates/by_hand/email/en/versions")).json()
    made = datetime.fromisoformat(version["created_at"])
    assert begun < made < datetime.now(UTC) + timedelta(seconds=1)
    again = await harness.client.put("/templates/by_hand/email/en", json={"subject": "A", "body": "<p>B</p>"})
    assert again.json()["version"] == "2"


async def test_on_sqlite_its_moment_is_written_as_all_others_are(
    tmp_path: Path, mail_server: MailServer
) -> None:
    async with open_harness(tmp_path, mail_server) as harness:
        await harness.client.put("/templates/by_hand/email/ru", json={"subject": "A", "body": "<p>B</p>"})
        await harness.app.database.write(
            lambda connection: connection.execute(BY_HAND, {"channel": "email"}).rowcount
        )
        query = text("SELECT created_at FROM templates")
        moments = await harness.app.database.read(
            lambda connection: connection.execute(query).scalars().all()
        )
    assert [len(moment) for moment in moments] == [len("2026-01-01 00:00:00.000000")] * 2
    assert all(datetime.fromisoformat(moment) for moment in moments)
