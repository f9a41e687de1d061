"""A job that is cancelled or removed in its queue, and not by `/notifications`, takes its delivery along."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.notifications.conftest import USER
from tests.notifications.harness import ADDRESS, Harness, ScriptedChannel, open_harness
from tests.services.mail import MailServer
from yamchi.clock import isoformat
from yamchi.errors import Outage
from yamchi.notifications.channels.base import AnswerLost, Message
from yamchi.testing import eventually

QUEUE = "http://localhost:3030/api/queues/notifications"
LATER = "2026-01-02T00:00:00Z"
DIGEST = """
- on: film_out
  notify: {channel: email, template: new_film_recommendation, digest: {every: 1d, template: new_films_digest}}
"""


@pytest.fixture
async def harness(tmp_path: Path, mail_server: MailServer) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path, mail_server) as harness:
        harness.rules(DIGEST)
        await harness.person(telegram_id=777)
        yield harness


WAYS: dict[str, tuple[str, str, Any]] = {
    "cancelled": ("POST", "/jobs/{job_id}/cancel", None),
    "removed": ("DELETE", "/jobs/{job_id}", None),
    "removed with others": ("POST", "/remove", {"ids": ["{job_id}", "nobody"]}),
    "cleaned away": ("POST", "/clean", {"state": "delayed", "older_than": 0}),
    "drained": ("POST", "/drain?delayed=true", None),
}


async def withdraw(harness: Harness, way: str, job_id: str, queue: str = QUEUE) -> None:
    method, path, body = WAYS[way]
    if body and "ids" in body:
        body = {"ids": [job_id, "nobody"]}
    answer = await harness.client.request(method, queue + path.format(job_id=job_id), json=body)
    assert answer.is_success, answer.text


@pytest.mark.parametrize("way", WAYS)
async def test_its_delivery_is_cancelled(harness: Harness, way: str) -> None:
    job_id = await harness.notify(send_after=LATER)
    await withdraw(harness, way, job_id)
    assert await harness.status(job_id) == "CANCELLED"
    await harness.app.clock.advance("2d")
    assert harness.mail.letters == []
    assert (await harness.client.get("/notifications", params={"status": "QUEUED"})).json() == []


async def test_only_what_was_asked_for_is_cleaned_away(harness: Harness) -> None:
    old = await harness.notify(send_after="2026-02-01T00:00:00Z")
    await harness.app.clock.advance("1d")
    new = [await harness.notify(send_after="2026-02-01T00:00:00Z") for _ in range(2)]
    body = {"state": "delayed", "older_than": "1h", "limit": 1}
    assert (await harness.client.post(f"{QUEUE}/clean", json=body)).json() == {"count": 1}
    assert (await harness.client.post(f"{QUEUE}/clean", json=body)).json() == {"count": 0}
    assert [await harness.status(one) for one in (old, *new)] == ["CANCELLED", "QUEUED", "QUEUED"]


@pytest.mark.parametrize("way", ["cancelled", "removed"])
async def test_that_of_a_message_to_an_address_too(harness: Harness, way: str) -> None:
    harness.channel.answers = [Outage("it is down")]
    message = {"channel": "telegram", "options": {"to": "777", "text": "hello"}}
    await harness.app.notifications.service.send_direct(message, "direct-1")
    await harness.app.drain()
    assert await harness.deliveries() == [("telegram", "RETRYING", "it is down")]
    await withdraw(harness, way, "direct-1")
    ((_, status, _),) = await harness.deliveries()
    assert status == "CANCELLED"


@pytest.mark.parametrize("way", ["cancelled", "removed", "drained"])
async def test_a_message_to_an_address_that_nobody_has_tried_to_send_gets_its_delivery(
    harness: Harness, way: str
) -> None:
    message = {"channel": "telegram", "options": {"to": "777", "text": "hello"}}
    await harness.app.queue("notifications").add(message, id="direct-1", delay="1h")
    await withdraw(harness, way, "direct-1")
    assert await harness.deliveries() == [("telegram", "CANCELLED", None)]


async def test_a_message_of_another_program_for_a_campaign_of_its_own_is_counted_once(
    harness: Harness,
) -> None:
    job = await harness.notify(send_after=LATER, meta={"campaign_id": "theirs"})
    await withdraw(harness, "cancelled", job)
    counts = await harness.app.notifications.deliveries.campaign_counts.of("theirs")
    assert {status: n for status, n in counts[""].items() if n} == {"CANCELLED": 1}


async def test_that_of_a_letter_of_email_queue_too(harness: Harness) -> None:
    harness.mail.stop()
    await harness.app.queue("email_queue").add({"to": ADDRESS, "subject": "s", "text": "t"}, id="letter-1")
    await harness.app.drain()
    ((_, status, _),) = await harness.deliveries()
    assert status == "RETRYING"
    await withdraw(harness, "cancelled", "letter-1", QUEUE.replace("notifications", "email_queue"))
    harness.mail.start()
    ((_, status, _),) = await harness.deliveries()
    assert status == "CANCELLED"


async def test_a_digest_goes_with_all_that_was_collected(harness: Harness) -> None:
    (item,) = await harness.event("film_out")
    await harness.app.drain()
    (digest,) = await harness.app.queue("notifications").jobs("delayed")
    await withdraw(harness, "cancelled", digest.id)
    assert [await harness.status(one) for one in (item["job_id"], digest.id)] == ["CANCELLED"] * 2


@pytest.mark.parametrize("way", ["removed", "removed with others"])
async def test_a_job_that_is_over_takes_nothing_along(harness: Harness, way: str) -> None:
    """What was collected waits for its digest, though its own job is done."""
    (item,) = await harness.event("film_out")
    await harness.app.drain()
    await withdraw(harness, way, item["job_id"])
    assert await harness.status(item["job_id"]) == "QUEUED"
    await harness.app.clock.advance("2d")
    assert len(harness.mail.letters) == 1
    assert await harness.status(item["job_id"]) == "SENT"


PUT_BACK: dict[str, tuple[str, Any]] = {
    "alone": ("/jobs/{job_id}/retry", None),
    "with others": ("/retry", {"ids": ["{job_id}", "nobody"]}),
    "with all": ("/retry-all", {"state": "cancelled"}),
}


@pytest.mark.parametrize("way", PUT_BACK)
async def test_one_that_is_put_back_is_sent(harness: Harness, way: str) -> None:
    job_id = await harness.notify(send_after=LATER)
    await withdraw(harness, "cancelled", job_id)
    path, body = PUT_BACK[way]
    if body and "ids" in body:
        body = {"ids": [job_id, "nobody"]}
    answer = await harness.client.post(QUEUE + path.format(job_id=job_id), json=body)
    assert answer.is_success, answer.text
    assert await harness.status(job_id) == "QUEUED"
    await harness.app.drain()
    assert [item["when"] for item in (await pending(harness))] == [LATER]
    await harness.app.clock.advance("2d")
    assert await harness.status(job_id) == "SENT"
    assert len(harness.mail.letters) == 1


async def test_a_digest_that_is_put_back_tells_of_what_went_with_it(harness: Harness) -> None:
    jobs = [(await harness.event("film_out"))[0]["job_id"] for _ in range(3)]
    await harness.app.drain()
    await harness.client.delete(f"/notifications/{jobs[0]}")
    (digest,) = await harness.app.queue("notifications").jobs("delayed")
    await withdraw(harness, "cancelled", digest.id)
    await harness.event("film_out")  # goes into the next one
    answer = await harness.client.post(QUEUE + f"/jobs/{digest.id}/retry")
    assert answer.is_success, answer.text
    await harness.app.clock.advance("10d")
    subjects = [str(letter["Subject"]) for _, letter in harness.mail.letters]
    assert subjects == ["2 new films for you", "New for you: The Matrix"]
    assert [await harness.status(one) for one in jobs] == ["CANCELLED", "SENT", "SENT"]


@pytest.mark.parametrize("decision", ["confirm", "resend"])
async def test_a_digest_that_may_have_left_when_it_was_cancelled_is_decided_about_with_all_of_it(
    harness: Harness, decision: str
) -> None:
    harness.rules(DIGEST.replace("email", "telegram"))
    harness.template("new_films_digest", "{{ count }} films", channel="telegram")
    (item,) = await harness.event("film_out")
    await harness.app.drain()
    hanging = HangingChannel()
    harness.app.notifications.register(hanging)
    (digest,) = await harness.app.queue("notifications").jobs("delayed")
    await harness.app.queue("notifications").promote([digest.id])
    harness.app.clock._now += 2 * 86_400_000
    working = asyncio.create_task(harness.app.work(["notifications"]))
    await eventually(lambda: len(hanging.sent) == 1)
    await withdraw(harness, "cancelled", digest.id)

    async def may_have_left() -> bool:
        return await harness.status(digest.id) == "UNKNOWN"

    await eventually(may_have_left)
    working.cancel()
    await asyncio.wait([working])
    harness.app.notifications.register(harness.channel)
    assert (await harness.client.post(f"/notifications/{digest.id}/{decision}")).is_success
    await harness.app.drain()
    assert [await harness.status(one) for one in (item["job_id"], digest.id)] == ["SENT", "SENT"]
    assert [one.rendered.text for one in harness.channel.sent] == (
        ["1 films"] if decision == "resend" else []
    )


async def test_a_letter_of_email_queue_that_is_put_back_is_sent(harness: Harness) -> None:
    letters = harness.app.queue("email_queue")
    harness.mail.stop()
    await letters.add({"to": ADDRESS, "subject": "s", "text": "t"}, id="letter-1")
    await harness.app.drain()
    await letters.cancel("letter-1")
    assert [status for _, status, _ in await harness.deliveries()] == ["CANCELLED"]
    harness.mail.start()
    await letters.retry(["letter-1"])
    await harness.app.clock.advance("10m")
    assert [status for _, status, _ in await harness.deliveries()] == ["SENT"]


async def test_what_can_not_be_put_back_stays_cancelled(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await harness.notify(send_after=LATER)
    await withdraw(harness, "cancelled", job_id)
    queue = harness.app.queue("notifications")

    async def gone(name: str, job_ids: list[str]) -> list[str]:
        return []

    monkeypatch.setattr(queue.engine, "retry", gone)  # somebody else removed it after the look
    assert await queue.retry([job_id]) == []
    assert await harness.status(job_id) == "CANCELLED"


async def test_one_that_two_put_back_at_once_is_sent(harness: Harness) -> None:
    job_id = await harness.notify(send_after=LATER)
    await withdraw(harness, "cancelled", job_id)
    queue = harness.app.queue("notifications")
    back = await asyncio.gather(queue.retry([job_id]), queue.retry([job_id]))
    assert sorted(back) == [[], [job_id]], "both looked before either had put it back"
    await harness.app.clock.advance("2d")
    assert await harness.status(job_id) == "SENT"
    assert len(harness.mail.letters) == 1


@pytest.mark.parametrize("way", ["cancelled", "removed"])
async def test_what_may_have_arrived_is_not_to_come_when_its_job_is_taken_away(
    harness: Harness, way: str
) -> None:
    harness.channel.answers = [AnswerLost("it hung up")]
    job_id = await harness.notify(channel="telegram")
    await harness.app.drain()
    assert await to_come(harness) == [job_id]
    await withdraw(harness, way, job_id)
    assert await to_come(harness) == []
    assert await harness.status(job_id) == "UNKNOWN"


async def to_come(harness: Harness) -> list[str]:
    return [item["job_id"] for item in await pending(harness)]


async def pending(harness: Harness) -> list[dict[str, Any]]:
    return list((await harness.client.get(f"/users/{USER}/pending")).json()["items"])


class HangingChannel(ScriptedChannel):
    """Its provider has the message, and does not answer."""

    async def send(self, message: Message) -> str | None:
        self.sent.append(message)
        return await asyncio.Event().wait() and None


@pytest.mark.parametrize("resends", [True, False])
async def test_a_message_whose_job_is_cancelled_while_it_is_sent_may_have_left(
    harness: Harness, resends: bool
) -> None:
    channel = HangingChannel(resends_unknown=resends)
    harness.app.notifications.register(channel)
    job_id = await harness.notify(channel="telegram")
    working = asyncio.create_task(harness.app.work(["notifications"]))
    await eventually(lambda: len(channel.sent) == 1)
    await withdraw(harness, "cancelled", job_id)

    async def is_over() -> bool:
        return (await harness.app.queue("notifications").job(job_id)).state == "cancelled"

    await eventually(is_over)
    assert await harness.status(job_id) == "UNKNOWN"
    assert "may have taken it" in (await harness.delivery(job_id))["last_error"]
    assert await to_come(harness) == []
    assert (
        await harness.client.post(f"/notifications/{job_id}/confirm")
    ).is_success  # a person decides at once
    working.cancel()
    await asyncio.wait([working])


async def test_that_of_one_to_an_address_may_have_left_too(harness: Harness) -> None:
    channel = HangingChannel()
    harness.app.notifications.register(channel)
    message = {"channel": "telegram", "options": {"to": "777", "text": "hello"}}
    await harness.app.notifications.service.send_direct(message, "direct-1")
    working = asyncio.create_task(harness.app.work(["notifications"]))
    await eventually(lambda: len(channel.sent) == 1)
    await withdraw(harness, "cancelled", "direct-1")

    async def may_have_left() -> bool:
        return [status for _, status, _ in await harness.deliveries()] == ["UNKNOWN"]

    await eventually(may_have_left)
    working.cancel()
    await asyncio.wait([working])


# ── Jobs that the queue lets expire ───────────────────────────────────────────────────────────────────────────────


async def are(harness: Harness, *expected: str) -> None:
    async def found() -> bool:
        return sorted(status for _, status, _ in await harness.deliveries()) == sorted(expected)

    await eventually(found)


@pytest.mark.parametrize("is_tried", [True, False])
async def test_a_message_expires_with_its_job(harness: Harness, is_tried: bool) -> None:
    harness.channel.answers = [Outage("it is down", retry_after=timedelta(hours=2))]
    message = {"channel": "telegram", "options": {"to": "777", "text": "hello"}}
    soon = harness.app.clock.time + timedelta(hours=1)
    delay = None if is_tried else "2h"
    await harness.app.queue("notifications").add(message, delay=delay, expires_at=soon)
    await harness.app.clock.advance("3h")
    await are(harness, "EXPIRED")
    assert harness.channel.sent == []


async def test_a_message_to_several_expires_for_each(harness: Harness) -> None:
    harness.channel.answers = [Outage("it is down", retry_after=timedelta(hours=2))] * 2
    message = {"channel": "telegram", "options": {"to": ["777", "778"], "text": "hello"}}
    soon = harness.app.clock.time + timedelta(hours=1)
    await harness.app.queue("notifications").add(message, expires_at=soon)
    await harness.app.clock.advance("3h")
    await are(harness, "EXPIRED", "EXPIRED")
    assert harness.channel.sent == []


async def test_a_letter_of_email_queue_expires_with_its_job(harness: Harness) -> None:
    harness.mail.stop()
    soon = harness.app.clock.time + timedelta(seconds=30)
    letter = {"to": [ADDRESS, "other@example.com"], "subject": "s", "text": "t"}
    await harness.app.queue("email_queue").add(letter, expires_at=soon)
    await harness.app.clock.advance("5m")
    await are(harness, "EXPIRED", "EXPIRED")
    harness.mail.start()


async def test_one_that_may_have_arrived_is_not_said_to_have_expired(harness: Harness) -> None:
    harness.channel.answers = [
        AnswerLost("it hung up", outage=Outage("it is down", retry_after=timedelta(hours=2)))
    ]
    soon = harness.app.clock.now() + 3_600_000
    job_id = await harness.notify(channel="telegram", expires_at=isoformat(soon))
    await harness.app.drain()
    assert await to_come(harness) == [job_id]
    await harness.app.clock.advance("3h")
    assert (await harness.status(job_id), await to_come(harness)) == ("UNKNOWN", [])
    assert "not sent again" in (await harness.delivery(job_id))["last_error"]
