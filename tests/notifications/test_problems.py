"""What senders are told of a message or a template that can't be used, in the words they used themselves."""

from collections.abc import AsyncIterator
from uuid import uuid4

import httpx2
import pytest

from yamchi.testing import TestApp
from yamchi.web import create_app

J = "/api/queues/notifications/jobs"
HI = "/api/v1/templates/hi/email/en"


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    async with TestApp(plugins=["notifications"]) as app:
        app.serve()
        transport = httpx2.ASGITransport(app=create_app(app))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:3030") as client:
            yield client


async def test_the_form_that_was_meant_is_the_one_that_is_spoken_of(client: httpx2.AsyncClient) -> None:
    direct = {"channel": "pigeon", "options": {"subject": "no address"}}
    answer = await client.post(J, json={"data": direct})
    assert answer.status_code == 422
    assert [fault["field"] for fault in answer.json()["errors"]] == ["data.channel", "data.options.to"]
    assert "NotificationJob" not in answer.text
    answer = await client.post(J, json={"data": {"channel": "email", "template_code": "welcome_email"}})
    missing = {fault["field"] for fault in answer.json()["errors"]}
    assert missing == {
        f"data.{name}" for name in ("job_id", "user_id", "locale", "data", "meta", "created_at")
    }


async def test_a_rule_that_can_not_be_used(client: httpx2.AsyncClient) -> None:
    rule = {"on": "x", "notify": {"channel": "pigeon", "template": "welcome_email"}}
    answer = await client.post("/api/v1/rules", json=rule)
    assert [fault["field"] for fault in answer.json()["errors"]] == ["notify.channel"]
    assert "function-after" not in answer.text
    answer = await client.post(
        "/api/v1/rules", json={"on": "x", "notify": {"channel": "email", "templat": "hi"}}
    )
    assert answer.json()["errors"] == [
        {"field": "notify.template", "message": "Field required"},
        {"field": "notify.templat", "message": "there is no such field"},
    ], "and not that it might have been a list"
    answer = await client.post("/api/v1/rules", json={"on": "x", "notify": 5})
    assert {fault["field"] for fault in answer.json()["errors"]} == {"notify"}


async def test_several_channels_of_a_rule_by_either_name(client: httpx2.AsyncClient) -> None:
    for name in ("channel", "channels"):
        rule = {"on": name, "notify": {name: ["email", "database"], "template": "payment_succeeded"}}
        assert (await client.post("/api/v1/rules", json=rule)).status_code == 201
        event = {"event_type": name, "event_id": name, "user_id": "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001"}
        jobs = (await client.post("/api/v1/events", json=event)).json()["jobs"]
        assert [job["channel"] for job in jobs] == ["email", "database"]


async def test_a_web_socket_says_that_it_is_one(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/ws")
    assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")
    assert "wss://" in answer.json()["detail"]


async def test_a_template_by_its_subject_and_body(client: httpx2.AsyncClient) -> None:
    kept = await client.put(HI, json={"subject": 'Hi: "{{ name }}"', "body": "<p>Hi {{ name }}</p>"})
    assert (kept.status_code, kept.json()["subject"]) == (200, 'Hi: "{{ name }}"')
    for again in ((await client.get(HI)).json(), (await client.get(f"{HI}/versions")).json()[0]):
        assert (again["subject"], again["body"]) == ('Hi: "{{ name }}"', "<p>Hi {{ name }}</p>")
    shown = await client.post(f"{HI}/preview", json={"data": {"name": "<Z>"}})
    assert shown.json()["subject"] == 'Hi: "<Z>"'
    assert "&lt;Z&gt;" in shown.json()["html"]
    assert (await client.put(HI, json={"subject": "no body"})).status_code == 422
    assert (await client.put(HI, json={"text": "a", "body": "b"})).status_code == 422


async def test_a_try_of_a_template_that_is_not_there_is_refused_at_once(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/api/v1/templates/nope/email/en/test", json={"to": "me@example.com"})
    assert answer.status_code == 404
    assert "There is no template 'nope'" in answer.json()["detail"]


async def test_what_is_wrong_with_a_whole_letter_is_said_of_its_data(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/api/queues/email_queue/jobs", json={"data": {"to": "a@example.com"}})
    assert [fault["field"] for fault in answer.json()["errors"]] == ["data"]


async def test_an_event_of_a_batch_is_named_by_its_number(client: httpx2.AsyncClient) -> None:
    batch = [{"event_type": "x", "event_id": "1"}, {"event_type": "x"}]
    answer = await client.post("/api/v1/events/batch", json=batch)
    assert [fault["field"] for fault in answer.json()["errors"]] == ["1.event_id"]


async def test_an_event_in_no_language(client: httpx2.AsyncClient) -> None:
    event = {
        "event_type": "user_registered",
        "event_id": "1",
        "user_id": str(uuid4()),
        "data": {"locale": ["x"]},
    }
    answer = await client.post("/api/v1/events", json=event)
    assert [fault["field"] for fault in answer.json()["errors"]] == ["data.locale"]


@pytest.mark.parametrize(
    ("preferences", "field"),
    [
        ({"channels": {"sms": "maybe"}}, "channels.sms"),
        ({"channels": {"owl": True}}, "channels.owl"),
        ({"channels": ["sms"]}, "channels"),
        ({"categories": {"promotions": "maybe"}}, "categories.promotions"),
        ({"allowed": {"sms": {"promotions": "maybe"}}}, "allowed.sms.promotions"),
    ],
)
async def test_preferences_that_can_not_be_used(
    client: httpx2.AsyncClient, preferences: dict[str, object], field: str
) -> None:
    answer = await client.put(f"/api/v1/users/{uuid4()}/preferences", json=preferences)
    (fault,) = answer.json()["errors"]
    assert (fault["field"], "no such field" in fault["message"]) == (field, False)
