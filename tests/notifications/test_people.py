"""What a person will get and got, page by page, and forgetting them: the data is gone, the counts stay."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, select

from tests.notifications.conftest import USER
from tests.notifications.house import ADDRESS, House, a_house
from tests.services.mail import MailServer
from yamchi import Yamchi
from yamchi.notifications import erasure
from yamchi.notifications.people.recipients import User
from yamchi.notifications.schemas.notification_job import NotificationJob
from yamchi.notifications.tables import metadata
from yamchi.settings import Settings


@pytest.fixture
async def house(tmp_path: Path, mail_server: MailServer) -> AsyncIterator[House]:
    async with a_house(tmp_path, mail_server) as house:
        await house.person(telegram_id=777000777, attributes={"first_name": "Nurzhan"})
        yield house


async def pages(house: House, path: str, limit: int = 3) -> list[dict[str, Any]]:
    """Every item, a page at a time."""
    items, cursor = [], ""
    while cursor is not None:
        params = {"limit": limit} | ({"cursor": cursor} if cursor else {})
        page = (await house.client.get(f"/users/{USER}/{path}", params=params)).json()
        assert len(page["items"]) <= limit
        items += page["items"]
        cursor = page["next_cursor"]
    return items


async def test_pending_says_when_and_why(house: House) -> None:
    jobs = [await house.notify(send_after=f"2026-01-0{9 - day}T10:00:00Z") for day in range(7)]
    await house.app.drain()
    pending = await pages(house, "pending")
    assert [item["job_id"] for item in pending] == jobs[::-1]  # soonest first
    assert pending[0]["when"] == "2026-01-03T10:00:00Z"
    assert await pages(house, "history") == []
    await house.at("2026-01-06T12:00:00")
    assert len(await pages(house, "pending")) == 3
    assert {item["status"] for item in await pages(house, "history")} == {"SENT"}


async def test_history_says_why_something_was_skipped(house: House) -> None:
    sent = await house.notify()
    await house.app.drain()
    await house.app.clock.advance("1m")
    await house.choose(allowed={"email": {"recommendations": False}})
    skipped = await house.notify()
    expired = await house.notify(expires_at="2025-01-01T00:00:00Z")
    await house.app.drain()
    history = {item["job_id"]: item for item in await pages(house, "history", 2)}
    assert {job: item["status"] for job, item in history.items()} == {
        sent: "SENT",
        skipped: "SUPPRESSED",
        expired: "EXPIRED",
    }
    assert "opted out" in history[skipped]["why"]
    assert history[sent]["when"] == "2026-01-01T00:00:00Z"


async def test_what_retries_is_pending_with_its_last_error(house: House) -> None:
    house.mail.answers.extend(["451 try later"])
    await house.notify()
    await house.app.drain()
    (item,) = await pages(house, "pending")
    assert (item["status"], item["why"]) == ("RETRYING", "451 try later")


@pytest.mark.parametrize("cursor", ["nonsense", "AAAA", "%00", "é", "MTIz"])
async def test_a_cursor_of_somebody_elses_making(house: House, cursor: str) -> None:
    for path in ("pending", "history"):
        answer = await house.client.get(f"/users/{USER}/{path}", params={"cursor": cursor})
        assert answer.status_code == 422
        assert "cursor" in answer.json()["detail"]


# ── Erasing ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def everything(house: House) -> str:
    """All that the database says, as one text."""

    def look(connection: Connection) -> str:
        tables = (connection.execute(select(table)).all() for table in metadata.sorted_tables)
        return "\n".join(str(tuple(row)) for rows in tables for row in rows)

    return await house.app.database.read(look)


async def test_an_erased_person_leaves_only_counts(house: House) -> None:
    house.mail.refusals[ADDRESS] = f"550 no mailbox {ADDRESS} here"
    await house.event("user_registered", first_name="Nurzhan")
    await house.app.drain()
    await house.client.delete(f"/suppressions/email/{ADDRESS}")
    house.mail.refusals.clear()
    sent = await house.notify()
    await house.app.drain()
    await house.choose(allowed={"sms": {"*": False}}, quiet_hours={"from": "22:00", "until": "08:00"})
    waiting = await house.notify(send_after="2026-02-01T00:00:00Z", data={"film_title": "Secret"})
    other = str(uuid4())
    await house.person(other, email="other@example.com")
    await house.notify(user_id=other, send_after="2026-02-01T00:00:00Z", data={"film_title": "Alien"})
    before = await house.deliveries()

    answer = await house.client.delete(f"/users/{USER}")
    found = {kind: count for kind, count in answer.json().items() if count}  # other features found nothing
    assert found == {"people": 1, "cancelled": 1, "deliveries": 3, "events": 1}
    left = await everything(house)
    for trace in (USER, ADDRESS, "Nurzhan", "777000777", "Secret", "Matrix"):
        assert trace not in left.replace("other@example.com", "").replace(other, ""), trace
    after = await house.deliveries()
    assert len(after) == len(before)
    assert (await house.status(sent), await house.status(waiting)) == ("SENT", "CANCELLED")
    assert await house.dead_letters() == []
    assert await house.app.notifications.queue.engine.get("notifications", waiting) is None

    await house.app.clock.advance("60d")
    assert house.mail.by_recipient() == {ADDRESS: 1, "other@example.com": 1}
    assert (await house.client.get(f"/users/{USER}")).status_code == 404
    assert (await house.client.delete(f"/users/{USER}")).status_code == 404


async def test_letters_at_home_go_too(tmp_path: Path, mail_server: MailServer) -> None:
    async with a_house(tmp_path, mail_server) as house:
        house.app.notifications.register(_at_home(house))
        await house.person()
        await house.notify()
        await house.app.drain()
        assert len((await house.client.get("/mailbox")).json()) == 1
        await house.client.delete(f"/users/{USER}")
        assert (await house.client.get("/mailbox")).json() == []


def _at_home(house: House) -> Any:
    from yamchi.notifications.channels.email.channel import MailboxChannel

    return MailboxChannel(house.app.database, "Yamchi <noreply@localhost>", house.app.clock)


ENGINES = ["sqlite", *(pytest.param(name, marks=pytest.mark.services) for name in ("bull", "pgmq"))]


@pytest.mark.parametrize("engine", ENGINES)
async def test_jobs_leave_the_queue_wherever_it_is(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    places = {
        "sqlite": lambda: f"sqlite:///{tmp_path}/jobs.db",
        "bull": lambda: str(request.getfixturevalue("redis_url")),
        "pgmq": lambda: str(request.getfixturevalue("postgres_database")().url),
    }
    async with Yamchi(Settings(home=tmp_path, default_queue_url=places[engine]())) as app:
        house = app.notifications
        await house.recipients.put(USER, User(email=ADDRESS))
        moment = {"send_after": "2100-01-01T00:00:00Z", "created_at": "2026-01-01T00:00:00Z"}
        job = NotificationJob.model_validate(
            {"job_id": uuid4(), "user_id": USER, "channel": "email", "template_code": "welcome_email"}
            | {"locale": "en", "data": {}, "meta": {"event_type": "t", "event_id": "e"}, **moment}
        )
        await house.service.send([job])
        assert await house.queue.engine.get("notifications", job.delivery_id) is not None
        erased = await house.erasure.erase(USER)
        assert erased["cancelled"] == 1
        assert await house.queue.engine.get("notifications", job.delivery_id) is None


def test_every_table_that_names_people_is_thought_of() -> None:
    named = {name for name, table in metadata.tables.items() if "user_id" in table.columns}
    assert named == {table.name for table in erasure.THOUGHT_OF}
