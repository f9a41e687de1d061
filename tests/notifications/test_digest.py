"""Digests: many events, one letter; nothing is lost or told twice, whatever crashes, and whoever collects at the same time."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select

from tests.notifications.conftest import USER
from tests.notifications.harness import ADDRESS, Harness, open_harness
from tests.services.mail import MailServer
from yamchi.clock import as_datetime, isoformat
from yamchi.errors import EngineUnavailable
from yamchi.notifications.channels.base import AnswerLost, Unreachable
from yamchi.notifications.policy.model import Digest
from yamchi.notifications.schemas.notification_job import NotificationJob
from yamchi.notifications.sending.digests import next_due
from yamchi.notifications.tables import digest_items, digests

RULES = """
- on: film_out
  notify:
    channel: email
    template: new_film_recommendation
    digest: {every: 1d, at: "09:00", template: new_films_digest}
- on: film_out_anywhere
  notify:
    first_of: [telegram, email]
    template: new_film_recommendation
    digest: {every: 1h, template: new_films_digest}
- on: short_film
  notify:
    channel: email
    template: new_film_recommendation
    expires_in: 1h
    digest: {every: 1d, at: "09:00", template: new_films_digest}
"""
WEEKLY = """
- on: film_of_the_week
  notify:
    channel: email
    template: new_film_recommendation
    digest: {every: 7d, at: "09:00", template: weekly_digest}
"""
DIGEST = "---\nsubject: films\ncategory: recommendations\n---\n{% for film in items %}{{ film.film_title }};{% endfor %}"


@pytest.fixture
async def harness(tmp_path: Path, mail_server: MailServer) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path, mail_server, default_timezone="Asia/Almaty") as harness:
        harness.rules(RULES)
        await harness.person(telegram_id=777)
        yield harness


async def left(harness: Harness) -> int:
    query = select(func.count()).select_from(digest_items)
    return int(await harness.app.database.read(lambda connection: connection.execute(query).scalar_one()))


async def test_twenty_events_are_one_letter(harness: Harness) -> None:
    jobs = [(await harness.event("film_out", film_title=f"Film {n}"))[0]["job_id"] for n in range(20)]
    await harness.app.drain()
    assert harness.mail.letters == []
    pending = (await harness.client.get(f"/users/{USER}/pending")).json()["items"]
    assert len(pending) == 21  # each of them, and the letter itself
    assert {item["when"] for item in pending} == {"2026-01-01T04:00:00Z"}  # 09:00 in Almaty
    assert sum("digest" in (item["why"] or "") for item in pending) == 20

    await harness.at("2026-01-01T03:59:59")
    assert harness.mail.letters == []
    await harness.at("2026-01-01T04:00:00")
    ((recipient, letter),) = harness.mail.letters
    assert recipient == ADDRESS
    assert letter["Subject"] == "20 new films for you"
    text = letter.get_body(("plain",)).get_content()
    assert all(f"Film {n}" in text for n in range(20))
    assert text.index("Film 0") < text.index("Film 19")
    assert {await harness.status(job) for job in jobs} == {"SENT"}
    assert await left(harness) == 0
    await harness.app.clock.advance("3d")
    assert len(harness.mail.letters) == 1


async def test_the_next_day_has_its_own_letter(harness: Harness) -> None:
    for day in ("2026-01-01T03:00:00", "2026-01-01T05:00:00", "2026-01-02T03:00:00"):
        await harness.at(day)
        await harness.event("film_out", film_title=day)
    await harness.at("2026-01-05T00:00:00")
    subjects = [str(letter["Subject"]) for _, letter in harness.mail.letters]
    assert subjects == ["New for you: 2026-01-01T03:00:00", "2 new films for you"]


async def test_whatever_is_delivered_again_is_told_once(harness: Harness) -> None:
    (item,) = await harness.event("film_out")
    await harness.app.drain()
    await harness.again(item["job_id"])
    await harness.event("film_out", "e-1")
    await harness.at("2026-01-01T04:00:00")
    assert len(harness.mail.letters) == 1
    digest = await digest_id(harness)
    await harness.again(item["job_id"])
    await harness.again(digest)
    await harness.at("2026-01-03T00:00:00")
    assert len(harness.mail.letters) == 1


async def digest_id(harness: Harness) -> str:
    query = select(digests.c.digest_id).order_by(digests.c.due_at).limit(1)
    return str(await harness.app.database.read(lambda connection: connection.execute(query).scalar_one()))


async def test_what_comes_while_it_is_told_goes_into_the_next(harness: Harness) -> None:
    await harness.event("film_out", film_title="early")
    await harness.app.drain()
    carrier = (await harness.app.notifications.queue.job(await digest_id(harness))).record.payload
    telling = NotificationJob.model_validate_json(carrier)
    await harness.app.notifications.processor._digests.gather(
        telling.delivery_id, telling
    )  # closed, and not yet sent
    await harness.event("film_out", film_title="late")
    await harness.app.drain()
    await harness.at("2026-01-03T00:00:00")
    subjects = [str(letter["Subject"]) for _, letter in harness.mail.letters]
    assert subjects == ["New for you: early", "New for you: late"]


async def test_many_collect_at_once(harness: Harness) -> None:
    await asyncio.gather(*(harness.event("film_out", f"many-{n}", film_title=f"F{n}") for n in range(100)))
    await harness.app.drain()
    await harness.at("2026-01-01T04:00:00")
    ((_, letter),) = harness.mail.letters
    assert letter["Subject"] == "100 new films for you"


async def test_more_than_a_letter_holds_is_counted(harness: Harness) -> None:
    await asyncio.gather(*(harness.event("film_out", f"many-{n}", film_title=f"F{n}") for n in range(230)))
    await harness.app.drain()
    await harness.at("2026-01-01T04:00:00")
    ((_, letter),) = harness.mail.letters
    assert "And 30 more." in letter.get_body(("plain",)).get_content()


async def test_what_expired_or_was_called_off_is_not_told(harness: Harness) -> None:
    (kept,) = await harness.event("film_out", film_title="kept")
    (gone,) = await harness.event("film_out", film_title="gone")
    (late,) = await harness.event("short_film", film_title="late")
    await harness.app.drain()
    assert (await harness.client.delete(f"/notifications/{gone['job_id']}")).status_code == 204
    await harness.at("2026-01-01T04:00:00")
    ((_, letter),) = harness.mail.letters
    assert letter["Subject"] == "New for you: kept"
    statuses = [await harness.status(job["job_id"]) for job in (kept, gone, late)]
    assert statuses == ["SENT", "CANCELLED", "EXPIRED"]


async def test_nothing_left_to_tell(harness: Harness) -> None:
    (item,) = await harness.event("film_out")
    await harness.app.drain()
    await harness.client.delete(f"/notifications/{item['job_id']}")
    await harness.at("2026-01-02T00:00:00")
    assert harness.mail.letters == []
    assert await harness.dead_letters() == []


async def test_a_digest_that_is_called_off_takes_its_items_with_it(harness: Harness) -> None:
    (item,) = await harness.event("film_out", film_title="first")
    await harness.app.drain()
    assert (await harness.client.delete(f"/notifications/{await digest_id(harness)}")).status_code == 204
    assert await harness.status(item["job_id"]) == "CANCELLED"
    await harness.event("film_out", film_title="second")
    await harness.at("2026-01-05T00:00:00")
    assert [str(letter["Subject"]) for _, letter in harness.mail.letters] == ["New for you: second"]


async def test_a_digest_that_is_called_off_long_before_it_is_due_collects_nothing_more(
    harness: Harness,
) -> None:
    """Another digest of the person ends meanwhile, and takes old ones with it that nobody needs to know any more."""
    harness.rules(RULES + WEEKLY)
    harness.template("weekly_digest", DIGEST)
    await harness.event("film_of_the_week")
    await harness.app.drain()
    assert (await harness.client.delete(f"/notifications/{await digest_id(harness)}")).status_code == 204
    await harness.at("2026-01-03T12:00:00")
    await harness.event("film_out")
    await harness.at("2026-01-04T12:00:00")
    (item,) = await harness.event("film_of_the_week")
    await harness.at("2026-01-13T00:00:00")
    assert await harness.status(item["job_id"]) == "SENT"


async def test_who_opted_out_meanwhile_gets_no_digest(harness: Harness) -> None:
    (item,) = await harness.event("film_out")
    await harness.app.drain()
    await harness.choose(allowed={"email": {"recommendations": False}})
    (other,) = await harness.event("film_out")
    await harness.at("2026-01-02T00:00:00")
    assert harness.mail.letters == []
    assert [await harness.status(job["job_id"]) for job in (item, other)] == ["SUPPRESSED", "SUPPRESSED"]
    assert await left(harness) == 0


async def test_a_digest_that_fails_can_be_replayed(harness: Harness) -> None:
    harness.mail.refusals[ADDRESS] = "554 no"
    (item,) = await harness.event("film_out")
    await harness.at("2026-01-02T00:00:00")
    assert await harness.status(item["job_id"]) == "FAILED"
    (letter,) = await harness.dead_letters()
    harness.mail.refusals.clear()
    await harness.client.post(f"/dlq/{letter['id']}/replay")
    await harness.app.drain()
    assert await harness.status(item["job_id"]) == "SENT"
    assert len(harness.mail.letters) == 1


async def test_a_digest_that_failed_long_ago_can_be_replayed(harness: Harness) -> None:
    """Others of the same person were told meanwhile."""
    harness.mail.refusals[ADDRESS] = "554 no"
    (item,) = await harness.event("film_out")
    await harness.at("2026-01-02T00:00:00")
    (letter,) = await harness.dead_letters()
    harness.mail.refusals.clear()
    for day in (10, 20):
        await harness.at(f"2026-01-{day}T00:00:00")
        await harness.event("film_out")
    await harness.at("2026-01-30T00:00:00")
    assert len(harness.mail.letters) == 2
    await harness.client.post(f"/dlq/{letter['id']}/replay")
    await harness.app.drain()
    assert await harness.status(item["job_id"]) == "SENT"
    assert len(harness.mail.letters) == 3


async def test_a_digest_that_was_cancelled_long_ago_is_forgotten(harness: Harness) -> None:
    """One that failed is not: its dead letter may be replayed."""
    digests = harness.app.notifications.digests
    await harness.event("film_out")
    await harness.app.drain()
    (digest,) = await harness.app.queue("notifications").jobs("delayed")
    await harness.client.delete(f"/notifications/{digest.id}")
    harness.mail.refusals[ADDRESS] = "554 no"
    await harness.at("2026-01-02T12:00:00")
    (failed,) = await harness.event("film_out")
    await harness.at("2026-01-20T00:00:00")
    assert await harness.status(failed["job_id"]) == "FAILED"
    assert (await digests.prune(), await left(harness)) == (0, 2)
    await harness.at("2026-02-20T00:00:00")
    assert (await digests.prune(), await left(harness)) == (1, 1)
    await harness.app.queue("notifications").retry([digest.id])
    await harness.app.drain()
    assert await harness.status(digest.id) == "SUPPRESSED"


async def test_quiet_hours_hold_a_digest_too(harness: Harness) -> None:
    await harness.choose(quiet_hours={"from": "22:00", "until": "10:30"})
    await harness.event("film_out")
    await harness.at("2026-01-01T05:29:59")
    assert harness.mail.letters == []
    await harness.at("2026-01-01T05:30:00")
    assert len(harness.mail.letters) == 1


async def test_a_digest_goes_on_to_the_next_channel(harness: Harness) -> None:
    harness.template("new_films_digest", "{{ count }} films", channel="telegram")
    harness.channel.answers = [Unreachable("blocked")]
    jobs = [(await harness.event("film_out_anywhere"))[0]["job_id"] for _ in range(3)]
    await harness.app.clock.advance("61m")
    assert harness.mail.by_recipient() == {ADDRESS: 1}
    assert {await harness.status(job) for job in jobs} == {"SENT"}
    await harness.again(await digest_id(harness))
    assert harness.mail.by_recipient() == {ADDRESS: 1}


async def test_a_digest_that_is_called_off_on_the_next_channel_takes_its_items_with_it(
    harness: Harness,
) -> None:
    harness.template("new_films_digest", "{{ count }} films", channel="telegram")
    harness.channel.answers = [Unreachable("blocked")]
    harness.mail.stop()
    (item,) = await harness.event("film_out_anywhere")
    await harness.app.clock.advance("61m")
    (letter,) = (await harness.client.get("/notifications", params={"status": "RETRYING"})).json()
    assert (await harness.client.delete(f"/notifications/{letter['job_id']}")).status_code == 204
    assert await harness.status(item["job_id"]) == "CANCELLED"
    assert await left(harness) == 1, "its job may be put back"


async def test_a_digest_waits_for_a_database_that_is_away(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_op: Any) -> Any:
        raise EngineUnavailable("The database can't be reached.")

    (item,) = await harness.event("film_out")
    await harness.at("2026-01-01T03:59:59")
    with monkeypatch.context() as broken:
        broken.setattr(harness.app.database, "read", away)
        broken.setattr(harness.app.database, "write", away)
        await harness.app.clock.advance("1m")
    assert await harness.dead_letters() == []
    await harness.app.clock.advance("1m")
    assert await harness.status(item["job_id"]) == "SENT"
    assert harness.mail.by_recipient() == {ADDRESS: 1}


@pytest.mark.parametrize("decision", ["confirm", "resend"])
async def test_a_digest_whose_answer_was_lost_ends_its_items_when_somebody_decides(
    harness: Harness, decision: str
) -> None:
    harness.template("new_films_digest", "{{ count }} films", channel="telegram")
    harness.channel.resends_unknown = False
    harness.channel.answers = [AnswerLost("it broke off")]
    (item,) = await harness.event("film_out_anywhere")
    await harness.app.clock.advance("61m")
    told = await digest_id(harness)
    assert await harness.status(told) == "UNKNOWN"
    assert (await harness.client.post(f"/notifications/{told}/{decision}")).status_code == 204
    await harness.app.drain()
    assert await harness.status(told) == "SENT"
    assert await harness.status(item["job_id"]) == "SENT"
    assert await left(harness) == 0


async def test_an_erased_person_has_no_digest(harness: Harness) -> None:
    await harness.event("film_out")
    await harness.app.drain()
    await harness.client.delete(f"/users/{USER}")
    assert await left(harness) == 0
    await harness.app.clock.advance("3d")
    assert harness.mail.letters == []


# ── When ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("every", "at", "zone", "now", "due"),
    [
        ("1d", "09:00", "Asia/Almaty", "2026-01-01T03:59:00Z", "2026-01-01T04:00:00Z"),
        ("1d", "09:00", "Asia/Almaty", "2026-01-01T04:00:00Z", "2026-01-02T04:00:00Z"),
        ("1d", None, "UTC", "2026-01-01T10:00:00Z", "2026-01-02T09:00:00Z"),
        ("1d", "09:00", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T07:00:00Z"),
        (
            "1d",
            "02:30",
            "Europe/Berlin",
            "2026-03-28T12:00:00Z",
            "2026-03-29T01:30:00Z",
        ),  # skipped by the clock
        ("7d", "18:00", "UTC", "2026-01-01T00:00:00Z", "2026-01-05T18:00:00Z"),  # a Monday
        ("1h", None, "Asia/Kolkata", "2026-01-01T10:20:00Z", "2026-01-01T11:00:00Z"),
        ("15m", None, "UTC", "2026-01-01T10:15:00Z", "2026-01-01T10:30:00Z"),
    ],
)
def test_when_it_is_due(every: str, at: str | None, zone: str, now: str, due: str) -> None:
    digest = Digest(every=every, at=at, template="t")
    moment = round(datetime.fromisoformat(now).timestamp() * 1000)
    assert isoformat(next_due(digest, moment, ZoneInfo(zone))) == due


@given(st.datetimes(datetime(2025, 1, 1), datetime(2027, 1, 1)), st.integers(1, 10))
def test_it_is_due_after_now_and_within_the_period(now: datetime, days: int) -> None:
    digest = Digest(every=f"{days}d", at="02:30", template="t")
    moment = round(now.timestamp() * 1000)
    for zone in ("Europe/Berlin", "America/New_York", "Asia/Almaty"):
        due = next_due(digest, moment, ZoneInfo(zone))
        assert moment < due <= moment + days * 86_400_000 + 2 * 3_600_000
        assert as_datetime(due).astimezone(ZoneInfo(zone)).date().toordinal() % days == 1 % days
