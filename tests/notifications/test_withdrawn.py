"""A job that is cancelled or removed in its queue, and not by `/notifications`, takes its delivery along."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.notifications.harness import ADDRESS, Harness, open_harness
from tests.services.mail import MailServer
from yamchi.errors import Outage

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
