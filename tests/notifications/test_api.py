"""Notifications over HTTP: what a product sends, what its people see, and what is refused in one sentence."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import orjson
import pytest

from tests.notifications.conftest import USER
from yamchi.notifications.sending.service import PRIORITIES
from yamchi.testing import TestApp
from yamchi.web import create_app

EVENT = {
    "event_type": "user_registered",
    "event_id": "e-1",
    "user_id": USER,
    "data": {"first_name": "Нуржан"},
}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[TestApp]:
    async with TestApp(home=tmp_path) as app:
        app.notifications.serve()
        yield app


@pytest.fixture
async def client(app: TestApp) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=create_app(app))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:3030/api/v1") as client:
        known = {"email": "nurzhan@example.com", "locale": "kk", "timezone": "Asia/Almaty"}
        assert (await client.put(f"/users/{USER}", json=known)).status_code == 200
        yield client


async def test_from_an_event_to_the_mailbox(app: TestApp, client: httpx2.AsyncClient) -> None:
    answer = await client.post("/events", json=EVENT)
    assert answer.status_code == 202
    (planned,) = answer.json()["jobs"]
    assert (planned["channel"], planned["template_code"], planned["status"]) == (
        "email",
        "welcome_email",
        "QUEUED",
    )
    again = (await client.post("/events", json=EVENT)).json()
    assert (again["duplicate"], [job["job_id"] for job in again["jobs"]]) == (True, [planned["job_id"]])
    await app.drain()
    delivery = (await client.get(f"/notifications/{planned['job_id']}")).json()
    assert (delivery["status"], delivery["attempts"]) == ("SENT", 1)
    assert [step["what"] for step in delivery["timeline"]] == ["queued", "sent"]
    (letter,) = (await client.get("/mailbox")).json()
    assert letter["recipients"] == ["nurzhan@example.com"]
    assert "қош келдіңіз" in letter["subject"]
    shown = await client.get(f"/mailbox/{letter['message_id']}/html")
    assert "sandbox" in shown.headers["content-security-policy"]
    assert "script" not in shown.text.lower()
    found = (await client.get("/notifications", params={"user_id": USER, "status": "SENT"})).json()
    assert [one["job_id"] for one in found] == [planned["job_id"]]


@pytest.mark.parametrize("form", ["array", "lines"])
async def test_a_batch(app: TestApp, client: httpx2.AsyncClient, form: str) -> None:
    events = [{**EVENT, "event_id": f"b-{number}"} for number in range(50)]
    body = orjson.dumps(events) if form == "array" else b"\n".join(map(orjson.dumps, events))
    answer = await client.post("/events/batch", content=body)
    assert answer.status_code == 202
    assert len(answer.json()) == 50
    await app.drain()
    assert len((await client.get("/mailbox", params={"size": 100})).json()) == 50


async def test_a_notification_as_it_is_and_its_end(
    app: TestApp, client: httpx2.AsyncClient, welcome: dict[str, Any]
) -> None:
    queued = await client.post("/notifications", json=welcome)
    assert (queued.status_code, queued.json()["status"]) == (202, "QUEUED")
    assert (await client.delete(f"/notifications/{welcome['job_id']}")).status_code == 204
    await app.drain()
    delivery = (await client.get(f"/notifications/{welcome['job_id']}")).json()
    assert delivery["status"] == "CANCELLED"
    assert (await client.delete(f"/notifications/{welcome['job_id']}")).status_code == 409
    assert (await client.get("/mailbox")).json() == []


async def test_a_notification_that_comes_twice_is_one_job(app: TestApp, client: httpx2.AsyncClient) -> None:
    """Both ways in, before the first of them has left: two jobs would be two letters."""
    job = {
        "job_id": str(uuid4()),
        "user_id": USER,
        "channel": "email",
        "template_code": "welcome_email",
        "locale": "ru",
        "data": {"first_name": "Нуржан"},
        "meta": {"event_type": "test", "event_id": "t-1"},
        "created_at": "2026-01-01T00:00:00Z",
    }
    jobs = "http://localhost:3030/api/queues/notifications/jobs"
    first = await client.post(jobs, json={"data": job})
    again = await client.post(jobs, json={"data": {**job, "job_id": job["job_id"].upper()}})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"] == job["job_id"]
    assert (await client.post("/notifications", json=job)).status_code == 202
    assert (await app.queue("notifications").counts())["waiting"] == 1
    named = await client.post(jobs, json={"data": {**job, "job_id": str(uuid4())}, "id": "own"})
    assert named.json()["id"] == "own"
    for wrong in ("no uuid", 7, None):
        answer = await client.post(jobs, json={"data": {**job, "job_id": wrong}})
        assert (answer.status_code, "job_id" in answer.json()["detail"]) == (422, True)


async def test_rules_are_added_and_taken_away(app: TestApp, client: httpx2.AsyncClient) -> None:
    rule = {
        "on": "order.paid",
        "when": "event.data.sum > 100",
        "notify": {"channel": "email", "template": "welcome_email"},
    }
    rule_id = (await client.post("/rules", json=rule)).json()["rule_id"]
    for number, total in enumerate((50, 500)):
        event = {**EVENT, "event_type": "order.paid", "event_id": f"o-{number}", "data": {"sum": total}}
        answer = (await client.post("/events", json=event)).json()
        assert len(answer["jobs"]) == (total > 100)
    assert (await client.delete(f"/rules/{rule_id}")).status_code == 204
    assert (await client.delete(f"/rules/{rule_id}")).status_code == 404


async def test_templates_have_versions(app: TestApp, client: httpx2.AsyncClient) -> None:
    one = "/templates/welcome_email/email/en"
    for subject in ("First", "Second"):
        text = (
            f"---\nsubject: {subject} for {{{{ first_name }}}}\nsample: {{first_name: Ann}}\n---\n<p>Hi</p>"
        )
        assert (await client.put(one, json={"text": text})).status_code == 200
    shown = (await client.post(f"{one}/preview", json={"data": {"first_name": "Aya"}})).json()
    assert shown["subject"] == "Second for Aya"
    assert [row["version"] for row in (await client.get(f"{one}/versions")).json()] == [2, 1]
    sent = await client.post(f"{one}/test", json={"to": "me@example.com"})
    assert sent.status_code == 202
    (waiting,) = await app.notifications.queue.jobs("waiting")
    assert waiting.priority == PRIORITIES["normal"], "none would go before all others on Redis"
    await app.drain()
    assert (await client.get("/mailbox")).json()[0]["subject"] == "Second for Ann"


async def test_a_template_is_kept_under_the_name_of_its_language(client: httpx2.AsyncClient) -> None:
    kept = await client.put("/templates/welcome_email/email/RU_kz", json={"text": "---\nsubject: A\n---\nB"})
    assert kept.json()["locale"] == "ru-KZ"
    versions = await client.get("/templates/welcome_email/email/ru-KZ/versions")
    assert [row["version"] for row in versions.json()] == [1]


async def test_a_dead_letter_is_mended_and_replayed(
    app: TestApp, client: httpx2.AsyncClient, welcome: dict[str, Any]
) -> None:
    await client.post("/notifications", json={**welcome, "user_id": str(uuid4())})
    await app.drain()
    (letter,) = (await client.get("/dlq")).json()["letters"]
    assert letter["error_message"] == "User has no email"
    assert (await client.post(f"/dlq/{letter['id']}/replay", json={})).status_code == 204
    await app.drain()
    (letter,) = (await client.get("/dlq")).json()["letters"]
    assert letter["error_message"] == "User has no email", "the same job, for nothing was said of its data"
    mended = {**letter["job"], "user_id": USER}
    assert (await client.post(f"/dlq/{letter['id']}/replay", json={"data": mended})).status_code == 204
    await app.drain()
    assert len((await client.get("/mailbox")).json()) == 1
    (sent,) = (await client.get(f"/users/{USER}/history")).json()["items"]
    assert sent["status"] == "SENT"


async def test_a_delivery_says_how_its_dead_letter_was_mended(
    app: TestApp, client: httpx2.AsyncClient, welcome: dict[str, Any]
) -> None:
    await client.post("/notifications", json={**welcome, "channel": "ws", "template_code": "welcom"})
    await app.drain()
    (letter,) = (await client.get("/dlq")).json()["letters"]
    mended = {**letter["job"], "channel": "email", "template_code": "welcome_email"}
    assert (await client.post(f"/dlq/{letter['id']}/replay", json={"data": mended})).status_code == 204
    await app.drain()
    sent = (await client.get(f"/notifications/{welcome['job_id']}")).json()
    assert (sent["status"], sent["channel"], sent["template_code"]) == ("SENT", "email", "welcome_email")


async def test_a_list_of_dead_letters_has_the_beginnings_of_long_ones(
    app: TestApp, client: httpx2.AsyncClient, welcome: dict[str, Any]
) -> None:
    large = {**welcome, "user_id": str(uuid4()), "data": {"note": "x" * 500_000}}
    await client.post("/notifications", json=large)
    await app.drain()
    answer = await client.get("/dlq")
    (letter,) = answer.json()["letters"]
    assert len(answer.content) < 2_000
    assert (letter["error_message"], "job" in letter) == ("User has no email", False)
    assert welcome["job_id"] in letter["preview"]
    whole = (await client.get(f"/dlq/{letter['id']}")).json()
    assert whole["job"]["data"] == large["data"]
    assert whole["failed_at"] == letter["failed_at"]


BAD = [
    ("POST", "/events", {"event_type": "x"}, 422, "event_id"),
    ("POST", "/events", {**EVENT, "user_id": "nobody"}, 422, "user_id"),
    ("POST", "/events", {**EVENT, "surprise": 1}, 422, "surprise"),
    ("POST", "/events/batch", [EVENT, {"event_type": "x"}], 422, "nothing of it was taken"),
    ("POST", "/events/batch", [EVENT] * 10_001, 422, "10,000"),
    ("POST", "/events", {**EVENT, "data": {"big": "x" * 5_000_000}}, 413, "bytes"),
    ("POST", "/notifications", {"job_id": "1"}, 422, "job_id"),
    ("PUT", f"/users/{USER}", {"email": "not an address"}, 422, "e-mail"),
    ("PUT", f"/users/{USER}", {"timezone": "Mars/Olympus"}, 422, "time zone"),
    ("POST", "/rules", {"on": "x", "notify": {"channel": "owl", "template": "t"}}, 422, "owl"),
    (
        "POST",
        "/rules",
        {"on": "x", "when": "((", "notify": {"channel": "email", "template": "t"}},
        422,
        "expression",
    ),
    (
        "POST",
        "/rules",
        {"on": "x", "when": "1" + "+7" * 300, "notify": {"channel": "email", "template": "t"}},
        422,
        "nested too deeply",
    ),
    ("PUT", "/templates/t/email/en", {"text": "{% for %}"}, 422, "t"),
    ("GET", "/templates/nothing/email/ru", None, 404, "nothing"),
    ("GET", f"/notifications/{USER}", None, 404, "There is no notification"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "named"), BAD)
async def test_bad_input_is_refused_in_a_sentence(
    client: httpx2.AsyncClient, method: str, path: str, body: Any, status: int, named: str
) -> None:
    answer = await client.request(method, path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert named in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("{{ missing_thing }}", "missing_thing"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "loop"),
        ("{{ ''.__class__.__mro__ }}", "__class__"),
    ],
)
async def test_a_template_that_misbehaves_fails_its_job_alone(
    app: TestApp, client: httpx2.AsyncClient, welcome: dict[str, Any], body: str, named: str
) -> None:
    text = f"---\nsubject: Hi\n---\n{body}"
    kept = await client.put("/templates/naughty/email/ru", json={"text": text})
    if kept.status_code == 422:  # refused before anybody could be sent it
        assert named in kept.json()["detail"]
        return
    await client.post("/notifications", json={**welcome, "template_code": "naughty"})
    await client.post("/events", json=EVENT)
    await app.drain()
    (letter,) = (await client.get("/dlq")).json()["letters"]
    assert named in letter["error_message"]
    assert len((await client.get("/mailbox")).json()) == 1
