"""What comes from outside: fields of our own are refused, another's digest is not told, and a test stays in the mailbox."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.notifications.conftest import USER
from tests.notifications.harness import ADDRESS, Harness, open_harness
from tests.services.mail import MailServer
from yamchi.clock import isoformat
from yamchi.notifications.schemas.event import Event
from yamchi.notifications.schemas.notification_job import NotificationJob, derived_id
from yamchi.testing import TestApp

OTHER = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f002"
RULES = """
- on: film_out
  notify:
    channel: email
    template: new_film_recommendation
    digest: {every: 1d, at: "09:00", template: new_films_digest}
- on: paid
  notify: {first_of: [telegram, sms], template: receipt}
"""
DIGEST = "---\nsubject: films\ncategory: recommendations\n---\n{% for film in items %}{{ film.film_title }};{% endfor %}"


@pytest.fixture
async def harness(tmp_path: Path, mail_server: MailServer) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path, mail_server) as harness:
        harness.rules(RULES)
        harness.template("new_films_digest", DIGEST)
        harness.template("receipt", "---\ncategory: payments\n---\nPaid, {{ user.locale }}", "telegram")
        await harness.person(telegram_id=777)
        yield harness


def job(harness: Harness, **fields: Any) -> dict[str, Any]:
    return {
        "job_id": str(uuid4()),
        "user_id": USER,
        "channel": "email",
        "template_code": "new_film_recommendation",
        "locale": "en",
        "data": {"film_title": "The Matrix"},
        "created_at": isoformat(harness.app.clock.now()),
        "meta": {"event_type": "test", "event_id": "e-1"},
        **fields,
    }


async def key(harness: Harness, **fields: Any) -> dict[str, str]:
    asked = {"name": "key", "scopes": ["send"], **fields}
    made = await harness.client.post("/keys", json=asked)
    assert made.status_code == 201, made.text
    return {"authorization": f"Bearer {made.json()['key']}"}


@pytest.mark.parametrize(
    ("meta", "named"),
    [
        ({"policy": {"gathers": str(uuid4())}}, "meta.policy.gathers"),
        ({"policy": {"unless_read": str(uuid4())}}, "meta.policy.unless_read"),
        ({"variant": "b"}, "meta.variant"),
        ({"test": False}, "meta.test"),
    ],
)
async def test_fields_of_our_own_are_not_taken(harness: Harness, meta: dict[str, Any], named: str) -> None:
    given = job(harness, meta={"event_type": "test", "event_id": "e-1", **meta})
    for path, body in (
        ("/notifications", given),
        ("http://localhost:3030/api/queues/notifications/jobs", {"data": given}),
    ):
        answer = await harness.client.post(path, json=body)
        assert (answer.status_code, named in answer.json()["detail"]) == (422, True)
    assert await harness.deliveries() == []


async def test_nobody_adds_to_a_campaign_of_ours(harness: Harness) -> None:
    asked = {
        "campaign_id": "spring",
        "template_code": "new_film_recommendation",
        "channel": "email",
        "audience": {"user_ids": [USER]},
        "data": {"film_title": "Solaris"},
    }
    answer = await harness.client.post("/campaigns", json=asked)
    assert answer.status_code == 202, answer.text
    meta = {"event_type": "test", "event_id": "e-1", "campaign_id": "spring"}
    answer = await harness.client.post("/notifications", json=job(harness, meta=meta))
    assert (answer.status_code, "campaign_id" in answer.json()["detail"]) == (422, True)
    foreign = await harness.client.post(
        "/notifications", json=job(harness, meta=meta | {"campaign_id": "theirs"})
    )
    assert foreign.status_code == 202


async def test_guessing_the_id_of_an_event_tells_nothing_of_it(harness: Harness) -> None:
    event = {
        "event_type": "film_out",
        "event_id": "order-7",
        "user_id": USER,
        "data": {"film_title": "Solaris"},
    }
    first = (await harness.client.post("/events", json=event)).json()
    again = (await harness.client.post("/events", json=event)).json()
    assert (again["duplicate"], again["jobs"]) == (True, first["jobs"])
    for other in ({"user_id": OTHER}, {"event_type": "paid"}, {"user_id": None}):
        guess = await harness.client.post("/events", json=event | {"data": {}} | other)
        assert (guess.status_code, guess.json()["duplicate"], guess.json()["jobs"]) == (202, True, [])


async def test_a_digest_is_told_to_its_own_person_only(harness: Harness) -> None:
    """Even where the job comes by the broker, which nobody checks."""
    await harness.person(OTHER, email="mallory@example.com")
    await harness.event("film_out", film_title="A secret wish")
    await harness.app.drain()
    (digest_id,) = {found.record.id for found in await harness.app.notifications.queue.jobs("delayed")}
    forged = job(harness, user_id=OTHER, template_code="new_films_digest", data={})
    forged["meta"]["policy"] = {"gathers": digest_id}
    stolen = NotificationJob.model_validate(forged)
    await harness.app.notifications.service.send([stolen])
    await harness.app.drain()
    assert harness.mail.letters == []
    assert await harness.status(stolen.delivery_id) == "SUPPRESSED"
    await harness.app.clock.advance("2d")
    ((recipient, letter),) = harness.mail.letters
    assert recipient == ADDRESS
    assert "A secret wish" in str(letter.get_body(("plain",)))


async def test_what_a_test_key_sends_stays_in_the_mailbox(harness: Harness) -> None:
    tester = await key(harness, test=True)
    event = {
        "event_type": "film_out",
        "event_id": "order-1",
        "user_id": USER,
        "data": {"film_title": "Solaris"},
    }
    answer = await harness.client.post("/events", json=event, headers=tester)
    assert answer.status_code == 202, answer.text
    sent = await harness.client.post("/notifications", json=job(harness), headers=tester)
    assert sent.status_code == 202, sent.text
    raw = {"data": job(harness), "id": "raw-1"}
    direct = {"data": {"channel": "telegram", "options": {"to": ["1", "2"], "text": "hi"}}}
    for body in (raw, direct):
        added = await harness.client.post(
            "http://localhost:3030/api/queues/notifications/jobs", json=body, headers=tester
        )
        assert (added.status_code, set(added.json())) == (201, {"id", "state"}), added.text
    await harness.app.drain()
    assert (harness.mail.letters, harness.channel.sent) == ([], [])
    kept = (await harness.client.get("/mailbox")).json()
    assert sorted(letter["recipients"][0] for letter in kept) == [
        *[ADDRESS] * 3,
        "telegram-1@test.invalid",
        "telegram-2@test.invalid",
    ]
    assert all(letter["subject"].startswith("[test, ") for letter in kept)
    assert {status for _, status, _ in await harness.deliveries()} == {"SENT"}


class Listener:
    """A feature that follows events, as scenarios do."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def prepare(self, events: Sequence[Event]) -> None:
        """Nothing is needed."""

    def store(self, connection: Any, events: Sequence[Event], prepared: None, now: int) -> None:
        self.heard += [event.event_id for event in events]

    async def follow(self, stored: None) -> None:
        """Nothing was written down."""


async def test_old_letters_leave_the_mailbox() -> None:
    """A test key may fill it for years."""
    direct = {"channel": "email", "options": {"to": ADDRESS, "subject": "Hi", "text": "there"}, "test": True}
    async with TestApp(mailbox_keep="2d") as app:
        app.notifications.serve()
        mailbox = app.notifications.mailbox
        for number in range(3):
            await app.queue("notifications").add({**direct, "number": number}, id=f"m-{number}")
            await app.drain()
            await app.clock.advance("30h")
        assert await mailbox.prune() == 2
        assert len(await mailbox.list()) == 1


async def test_a_test_starts_nothing_else(harness: Harness) -> None:
    listener = Listener()
    harness.app.notifications.service.followers.append(listener)
    tester = await key(harness, test=True)
    event = {"event_type": "film_out", "user_id": USER, "data": {"film_title": "Solaris"}}
    await harness.client.post("/events", json=event | {"event_id": "1"}, headers=tester)
    await harness.client.post("/events/batch", json=[event | {"event_id": "2"}], headers=tester)
    await harness.client.post("/events", json=event | {"event_id": "3"})
    assert listener.heard == ["3"]


async def test_a_test_goes_on_to_the_next_channel_and_still_leaves_nothing(harness: Harness) -> None:
    await harness.person(telegram_id=777, phone="+77011234567")
    blocked = {"channel": "telegram", "address": "777", "reason": "the bot is blocked"}
    assert (await harness.client.post("/suppressions", json=blocked)).status_code == 204
    harness.template("receipt", "Paid", "sms")
    tester = await key(harness, test=True)
    event = {"event_type": "paid", "event_id": "order-2", "user_id": USER, "data": {}}
    assert (await harness.client.post("/events", json=event, headers=tester)).status_code == 202
    await harness.app.drain()
    assert [(channel, status) for channel, status, _ in await harness.deliveries()] == [
        ("telegram", "SUPPRESSED"),
        ("sms", "SENT"),
    ]
    (letter,) = (await harness.client.get("/mailbox")).json()
    assert letter["recipients"] == ["sms-77011234567@test.invalid"]


async def test_a_test_does_not_stand_in_the_way_of_the_real_thing(harness: Harness) -> None:
    tester = await key(harness, test=True)
    event = {"event_type": "paid", "event_id": "order-3", "user_id": USER, "data": {}}
    given = job(harness)
    for headers in (tester, {}):
        told = await harness.client.post("/events", json=event, headers=headers)
        sent = await harness.client.post("/notifications", json=given, headers=headers)
        assert (told.status_code, told.json()["duplicate"], sent.status_code) == (202, False, 202)
    await harness.app.drain()
    assert len(harness.mail.letters) == 1
    assert len(harness.channel.sent) == 1


@pytest.mark.parametrize("given", ["42", "x" * 255], ids=["short", "long"])
async def test_no_id_of_a_test_is_one_of_the_real_thing(harness: Harness, given: str) -> None:
    tester = await key(harness, test=True)
    jobs = "http://localhost:3030/api/queues/email_queue/jobs"
    letter = {"to": "asel@example.com", "subject": "Paid", "html": "x"}
    event = {"event_type": "paid", "user_id": USER, "data": {}}
    answers = []
    for name, headers in ((given, tester), (given, tester), (f"test-{given}"[:255], {}), (given, {})):
        added = await harness.client.post(jobs, json={"data": letter, "id": name}, headers=headers)
        body = event | {"event_id": name.replace("-", ":")}
        told = await harness.client.post("/events", json=body, headers=headers)
        answers.append((added.status_code, told.json()["duplicate"]))
    assert answers == [(201, False), (200, True), (201, False), (201, False)]


async def test_a_test_key_adds_nothing_to_queues_that_know_no_tests(harness: Harness) -> None:
    harness.app.define("thumbnails")
    tester = await key(harness, test=True)
    answer = await harness.client.post(
        "http://localhost:3030/api/queues/thumbnails/jobs", json={"data": {}}, headers=tester
    )
    assert (answer.status_code, "test key" in answer.json()["detail"]) == (403, True)


async def test_a_test_key_can_only_send(harness: Harness) -> None:
    for scope in ("read", "admin", "people:token"):
        answer = await harness.client.post("/keys", json={"name": "x", "scopes": [scope], "test": True})
        assert answer.status_code == 422, answer.text
    assert derived_id("test", "a") != derived_id("a")
