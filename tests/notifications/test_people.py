"""What a person will get and got, page by page, and forgetting them: the data is gone, the counts stay."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, select

from tests.notifications.conftest import USER
from tests.notifications.harness import ADDRESS, Harness, open_harness
from tests.services.mail import MailServer
from yamchi import Outage, Yamchi
from yamchi.notifications import erasure
from yamchi.notifications.channels.base import AnswerLost
from yamchi.notifications.people.recipients import User
from yamchi.notifications.schemas.notification_job import NotificationJob
from yamchi.notifications.sending.statuses import BEING_SENT
from yamchi.notifications.tables import metadata
from yamchi.settings import Settings
from yamchi.testing.waiting import eventually


@pytest.fixture
async def harness(tmp_path: Path, mail_server: MailServer) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path, mail_server) as harness:
        await harness.person(telegram_id=777000777, attributes={"first_name": "Nurzhan"})
        yield harness


async def pages(harness: Harness, path: str, limit: int = 3) -> list[dict[str, Any]]:
    """Every item, a page at a time."""
    items, cursor = [], ""
    while cursor is not None:
        params = {"limit": limit} | ({"cursor": cursor} if cursor else {})
        page = (await harness.client.get(f"/users/{USER}/{path}", params=params)).json()
        assert len(page["items"]) <= limit
        items += page["items"]
        cursor = page["next_cursor"]
    return items


@pytest.mark.parametrize("given", [777000777, "777000777"])
async def test_a_person_is_shown_as_they_were_answered(harness: Harness, given: str | int) -> None:
    answer = (await harness.client.put(f"/users/{USER}", json={"telegram_id": given})).json()
    assert answer["telegram_id"] == "777000777"
    assert (await harness.client.get(f"/users/{USER}")).json() == answer


async def test_pending_says_when_and_why(harness: Harness) -> None:
    jobs = [await harness.notify(send_after=f"2026-01-0{9 - day}T10:00:00Z") for day in range(7)]
    await harness.app.drain()
    pending = await pages(harness, "pending")
    assert [item["job_id"] for item in pending] == jobs[::-1]  # soonest first
    assert pending[0]["when"] == "2026-01-03T10:00:00Z"
    assert await pages(harness, "history") == []
    await harness.at("2026-01-06T12:00:00")
    assert len(await pages(harness, "pending")) == 3
    assert {item["status"] for item in await pages(harness, "history")} == {"SENT"}


@pytest.mark.parametrize("is_resent", [True, False])
async def test_what_nobody_knows_of_is_pending_only_if_it_is_sent_again(
    harness: Harness, is_resent: bool
) -> None:
    harness.channel.resends_unknown = is_resent
    harness.channel.answers = [AnswerLost("it hung up")] * 3
    job_id = await harness.notify(channel="telegram")
    await harness.app.drain()

    async def listed(path: str) -> list[tuple[str, str]]:
        return [(item["job_id"], item["status"]) for item in await pages(harness, path)]

    known = [(job_id, "UNKNOWN")]
    assert (await listed("pending"), await listed("history")) == ((known, []) if is_resent else ([], known))
    await harness.app.clock.advance("1h")  # its attempts are used up
    ended = [(job_id, "FAILED" if is_resent else "UNKNOWN")]

    async def is_over() -> bool:
        return (await listed("pending"), await listed("history")) == ([], ended)

    await eventually(is_over)


async def test_what_another_program_queued_for_later_is_pending(
    harness: Harness, welcome: dict[str, Any]
) -> None:
    later = "2026-01-02T00:00:00Z"
    await harness.app.queue("notifications").add({**welcome, "send_after": later})
    await harness.app.drain()
    assert [(item["status"], item["when"]) for item in await pages(harness, "pending")] == [("QUEUED", later)]
    await harness.at("2026-01-02T00:00:00")
    assert [item["status"] for item in await pages(harness, "history")] == ["SENT"]


async def test_pending_says_that_a_provider_is_down(harness: Harness) -> None:
    """Only the first message has met that itself; the others wait behind it."""
    harness.channel.answers = [Outage("it is on fire")]
    for _ in range(2):
        await harness.notify(channel="telegram")
        await harness.app.drain()
    later = await harness.notify(channel="telegram", send_after="2026-01-02T00:00:00Z")
    said = {item["job_id"]: item["why"] for item in await pages(harness, "pending")}
    assert said.pop(later) is None
    first, second = sorted(said.values())
    assert (first, "down (it is on fire)" in second) == ("it is on fire", True)


async def test_what_is_being_sent_is_pending(harness: Harness) -> None:
    channel, seen = harness.channel, []
    channel.resends_unknown = False

    async def send(message: Any) -> str:
        seen.extend(await pages(harness, "pending"))
        return "1"

    channel.send = send
    await harness.notify(channel="telegram")
    await harness.app.drain()
    assert [(item["status"], item["why"]) for item in seen] == [("UNKNOWN", BEING_SENT)]
    assert await pages(harness, "pending") == []


async def test_history_says_why_something_was_skipped(harness: Harness) -> None:
    sent = await harness.notify()
    await harness.app.drain()
    await harness.app.clock.advance("1m")
    await harness.choose(allowed={"email": {"recommendations": False}})
    skipped = await harness.notify()
    expired = await harness.notify(expires_at="2025-01-01T00:00:00Z")
    await harness.app.drain()
    history = {item["job_id"]: item for item in await pages(harness, "history", 2)}
    assert {job: item["status"] for job, item in history.items()} == {
        sent: "SENT",
        skipped: "SUPPRESSED",
        expired: "EXPIRED",
    }
    assert "opted out" in history[skipped]["why"]
    assert history[sent]["when"] == "2026-01-01T00:00:00Z"


async def test_what_retries_is_pending_with_its_last_error(harness: Harness) -> None:
    harness.mail.answers.extend(["451 try later"])
    await harness.notify()
    await harness.app.drain()
    (item,) = await pages(harness, "pending")
    assert (item["status"], item["why"]) == ("RETRYING", "451 try later")


@pytest.mark.parametrize("cursor", ["nonsense", "AAAA", "%00", "é", "MTIz"])
async def test_a_cursor_of_somebody_elses_making(harness: Harness, cursor: str) -> None:
    for path in ("pending", "history"):
        answer = await harness.client.get(f"/users/{USER}/{path}", params={"cursor": cursor})
        assert answer.status_code == 422
        assert "cursor" in answer.json()["detail"]


# ── Erasing ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def everything(harness: Harness) -> str:
    """All that the database says, as one text."""

    def look(connection: Connection) -> str:
        tables = (connection.execute(select(table)).all() for table in metadata.sorted_tables)
        return "\n".join(str(tuple(row)) for rows in tables for row in rows)

    return await harness.app.database.read(look)


async def test_an_erased_person_leaves_only_counts(harness: Harness) -> None:
    harness.mail.refusals[ADDRESS] = f"550 no mailbox {ADDRESS} here"
    await harness.event("user_registered", first_name="Nurzhan")
    await harness.app.drain()
    await harness.client.delete(f"/suppressions/email/{ADDRESS}")
    harness.mail.refusals.clear()
    sent = await harness.notify()
    await harness.app.drain()
    await harness.choose(allowed={"sms": {"*": False}}, quiet_hours={"from": "22:00", "until": "08:00"})
    waiting = await harness.notify(send_after="2026-02-01T00:00:00Z", data={"film_title": "Secret"})
    other = str(uuid4())
    await harness.person(other, email="other@example.com")
    await harness.notify(user_id=other, send_after="2026-02-01T00:00:00Z", data={"film_title": "Alien"})
    before = await harness.deliveries()

    answer = await harness.client.delete(f"/users/{USER}")
    found = {kind: count for kind, count in answer.json().items() if count}  # other features found nothing
    assert found == {"people": 1, "cancelled": 1, "deliveries": 3, "events": 1}
    left = await everything(harness)
    for trace in (USER, ADDRESS, "Nurzhan", "777000777", "Secret", "Matrix"):
        assert trace not in left.replace("other@example.com", "").replace(other, ""), trace
    after = await harness.deliveries()
    assert len(after) == len(before)
    assert (await harness.status(sent), await harness.status(waiting)) == ("SENT", "CANCELLED")
    assert await harness.dead_letters() == []
    assert await harness.app.notifications.queue.engine.get("notifications", waiting) is None

    await harness.app.clock.advance("60d")
    assert harness.mail.by_recipient() == {ADDRESS: 1, "other@example.com": 1}
    assert (await harness.client.get(f"/users/{USER}")).status_code == 404
    assert (await harness.client.delete(f"/users/{USER}")).status_code == 404


async def test_letters_at_home_go_too(tmp_path: Path, mail_server: MailServer) -> None:
    async with open_harness(tmp_path, mail_server) as harness:
        harness.app.notifications.register(_at_home(harness))
        await harness.person()
        await harness.notify()
        await harness.app.drain()
        assert len((await harness.client.get("/mailbox")).json()) == 1
        await harness.client.delete(f"/users/{USER}")
        assert (await harness.client.get("/mailbox")).json() == []


def _at_home(harness: Harness) -> Any:
    from yamchi.notifications.channels.email.channel import MailboxChannel

    return MailboxChannel(harness.app.notifications.mailbox, "Yamchi <noreply@localhost>", harness.app.clock)


@pytest.mark.parametrize("is_sent_once", [True, False])
async def test_a_message_that_is_being_sent_leaves_nothing_either(
    harness: Harness, is_sent_once: bool
) -> None:
    """Its job ends after the person was erased, and says that the message may have left."""
    channel, has_begun = harness.channel, asyncio.Event()
    channel.resends_unknown = not is_sent_once

    async def send(message: Any) -> str:
        has_begun.set()
        return str(await asyncio.Event().wait())

    channel.send = send
    job_id = await harness.notify(channel="telegram", data={"film_title": "Secret"})
    working = asyncio.create_task(harness.app.work(["notifications"]))
    await has_begun.wait()
    assert (await harness.client.delete(f"/users/{USER}")).is_success
    working.cancel()
    await asyncio.wait([working])
    assert await harness.app.notifications.queue.engine.get("notifications", job_id) is None
    assert await harness.status(job_id) == "UNKNOWN"
    left = await everything(harness)
    for trace in (USER, "Secret"):
        assert trace not in left, trace


async def test_what_a_dead_worker_was_sending_is_erased_by_the_next_call(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "LONGEST_WAIT_SECONDS", 0)
    job_id = await harness.notify(data={"film_title": "Secret"})
    engine = harness.app.notifications.queue.engine
    await engine.exchange("notifications", [], 1, 30_000, "a worker that dies")
    answer = await harness.client.delete(f"/users/{USER}")
    assert (answer.status_code, "again in a minute" in answer.json()["detail"]) == (409, True)
    await harness.app.clock.advance("1m")
    await engine.recover("notifications")
    await harness.app.drain()
    assert (await harness.client.delete(f"/users/{USER}")).is_success
    assert await engine.get("notifications", job_id) is None
    assert harness.mail.letters == []
    assert "Secret" not in await everything(harness)


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
        harness = app.notifications
        await harness.recipients.put(USER, User(email=ADDRESS))
        moment = {"send_after": "2100-01-01T00:00:00Z", "created_at": "2026-01-01T00:00:00Z"}
        job = NotificationJob.model_validate(
            {"job_id": uuid4(), "user_id": USER, "channel": "email", "template_code": "welcome_email"}
            | {"locale": "en", "data": {}, "meta": {"event_type": "t", "event_id": "e"}, **moment}
        )
        await harness.service.send([job])
        assert await harness.queue.engine.get("notifications", job.delivery_id) is not None
        erased = await harness.erasure.erase(USER)
        assert erased["cancelled"] == 1
        assert await harness.queue.engine.get("notifications", job.delivery_id) is None


def test_every_table_that_names_people_is_thought_of() -> None:
    named = {name for name, table in metadata.tables.items() if "user_id" in table.columns}
    assert named == {table.name for table in erasure.TABLES_WITH_PEOPLE}
