"""Requests that nobody sends by mistake: each is refused with the field named, nothing is stored, nothing answers 5xx."""

import io
import json
import re
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import product
from typing import Any

import httpx2
import pytest
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from sqlalchemy import func, select, text

from yamchi import Job
from yamchi.errors import InvalidJob
from yamchi.http.failures import address_of
from yamchi.http.limits import FORM_LIMIT, MOST_FIELDS, MOST_VALUES, StrictContent, read_json
from yamchi.notifications.policy.rules import Rule
from yamchi.notifications.tables import campaigns, events, notification_delivery, rules, users
from yamchi.observe import logging
from yamchi.queues.deadletters import to_dict
from yamchi.queues.handlers import MOST_FAULTS, Handler, PoisonMessage
from yamchi.queues.options import JobOptions
from yamchi.queues.records import DeadLetter, JobRecord, NewJob
from yamchi.testing import TestApp
from yamchi.web import create_app
from yamchi.web.schemas import JobRow, LetterOut, LetterRow

USER = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001"
LONG = "x" * 30_000


@pytest.fixture
async def app() -> AsyncIterator[TestApp]:
    async with TestApp() as app:

        @app.job("hello")
        async def greet(job: Job[Any]) -> None: ...

        app.notifications.serve()
        yield app


@pytest.fixture
async def client(app: TestApp) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=create_app(app), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:3030") as client:
        yield client


def event(**fields: Any) -> dict[str, Any]:
    return {"event_type": "user_registered", "event_id": "e-1", "user_id": USER, "data": {}} | fields


def notification(**fields: Any) -> dict[str, Any]:
    meta = {"event_type": "x", "event_id": "y"}
    return {
        "job_id": "bd0b0a5c-61b4-4a44-a6ae-1d3c0e1f2b3c", "user_id": USER, "channel": "email", "template_code": "welcome_email",
        "locale": "ru", "data": {}, "meta": meta, "created_at": "2026-01-01T00:00:00Z",
    } | fields  # fmt: skip


def campaign(**fields: Any) -> dict[str, Any]:
    audience = {"user_ids": [USER]}
    return {
        "campaign_id": "c",
        "template_code": "welcome_email",
        "channel": "email",
        "audience": audience,
    } | fields


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"x": value}
    return value


EVENTS = "/api/v1/events"
JOBS = "/api/queues/hello/jobs"
PERSON = f"/api/v1/users/{USER}"

REFUSED = [
    ("POST", EVENTS, event(event_id=LONG), "event_id"),
    ("POST", EVENTS, event(event_id="a\nb"), "event_id"),
    ("POST", EVENTS, event(event_type=LONG), "event_type"),
    ("POST", EVENTS, event(occurred_at="0001-01-01T00:00:00+14:00"), "occurred_at"),
    ("POST", EVENTS, event(occurred_at=1e300), "occurred_at"),
    ("POST", EVENTS, event(data={"locale": 5}), "data.locale"),
    ("POST", EVENTS, event(data={"locale": LONG}), "data.locale"),
    ("POST", EVENTS, event(data={"a": {"b": ["\ud83d"]}}), "data.a.b.0"),
    ("POST", EVENTS, event(data={"a": 2**70}), "data.a"),
    ("POST", EVENTS, event(data={"a": float("nan")}), "data.a"),
    ("POST", EVENTS, event(data={"a": float("-inf")}), "data.a"),
    ("POST", EVENTS, event(data={"a": "\0"}), "data.a"),
    ("POST", EVENTS, event(data=deep(200)), "data.x"),
    ("POST", EVENTS, event(data={"a": [[]] * MOST_VALUES}), "values"),
    ("POST", f"{EVENTS}/batch", [event(), event(data={"a": "\ud83d"})], "1.data.a"),
    ("POST", "/api/v1/notifications", notification(send_after="0001-01-01T00:00:00+14:00"), "send_after"),
    ("POST", "/api/v1/notifications", notification(expires_at="99999-01-01"), "expires_at"),
    ("POST", "/api/v1/notifications", notification(template_code=LONG), "template_code"),
    ("POST", "/api/v1/notifications", notification(locale=5), "locale"),
    ("POST", "/api/v1/notifications", notification(locale=LONG), "locale"),
    ("POST", "/api/v1/notifications", notification(channel=LONG), "channel"),
    ("POST", "/api/v1/notifications", notification(extra=2**80), "extra"),
    ("POST", JOBS, {"delay": "3000000d"}, "delay"),
    ("POST", JOBS, {"delay": 1e300}, "delay"),
    ("POST", JOBS, {"delay": "1" * 30_000}, "delay"),
    ("POST", JOBS, {"timeout": "99999999999d"}, "timeout"),
    ("POST", JOBS, {"run_at": "0001-01-01T00:00:00+14:00"}, "run_at"),
    ("POST", JOBS, {"expires_at": "9999-12-31T23:59:59-12:00"}, "expires_at"),
    ("POST", JOBS, {"attempts": 2**63}, "attempts"),
    ("POST", JOBS, {"keep_failed": 10**30}, "keep_failed"),
    ("POST", JOBS, {"backoff": {"jitter": "a"}}, "backoff"),
    ("POST", JOBS, {"backoff": {"type": "steps", "steps": 5}}, "backoff"),
    ("POST", JOBS, {"backoff": ["1m"] * 5_000}, "backoff"),
    ("POST", JOBS, {"id": LONG}, "id"),
    ("POST", JOBS, {"id": ".."}, "id"),
    ("POST", "/api/v1/keys", {"name": ".", "scopes": ["send"]}, "name"),
    ("POST", "/api/v1/keys", {"name": "..", "scopes": ["send"]}, "name"),
    ("POST", "/api/v1/campaigns", campaign(campaign_id=".."), "campaign_id"),
    ("POST", "/api/v1/payments", {"amount": "5.00", "id": ".."}, "id"),
    ("POST", EVENTS, event(event_type="lead.created", data={"lead_id": "..", "name": "x"}), "lead_id"),
    ("POST", JOBS, {"name": LONG}, "name"),
    ("POST", JOBS, {"data": "\ud800"}, "data"),
    ("POST", "/api/queues/hello/clean", {"older_than": "3000000d"}, "older_than"),
    ("POST", "/api/queues/hello/remove", {"ids": [LONG]}, "ids"),
    ("PUT", PERSON, {"email": "a@" + "a." * 15_000}, "email"),
    ("PUT", PERSON, {"phone": LONG}, "phone"),
    ("PUT", PERSON, {"telegram_id": 2**70}, "telegram_id"),
    ("PUT", PERSON, {"locale": 5}, "locale"),
    ("PUT", PERSON, {"timezone": "Asia"}, "timezone"),
    ("PUT", PERSON, {"timezone": "x" * 5_000}, "timezone"),
    ("PUT", PERSON, {"attributes": {"a": "x" * 100_000}}, "attributes"),
    ("PUT", PERSON, {"attributes": {"a": 1e999}}, "attributes.a"),
    ("PUT", f"{PERSON}/preferences", {"quiet_hours": {"from": LONG, "until": "08:00"}}, "quiet_hours"),
    ("POST", "/api/v1/rules", {"on": LONG, "notify": {"channel": "email", "template": "x"}}, "on"),
    ("POST", "/api/v1/rules", {"on": "x", "notify": {"channel": "email", "template": "x", "delay": "3000000d"}}, "delay"),
    ("POST", "/api/v1/rules", {"on": "x", "when": "1+" * 30_000 + "1", "notify": {"channel": "email", "template": "x"}}, "when"),
    ("POST", "/api/v1/campaigns", campaign(rate="1/99999999999d"), "rate"),
    ("POST", "/api/v1/campaigns", campaign(rate="9" * 30_000 + "/s"), "rate"),
    ("POST", "/api/v1/campaigns", campaign(locale=LONG), "locale"),
    ("POST", "/api/v1/campaigns", campaign(send_after="0001-01-01T00:00:00+14:00"), "send_after"),
    ("POST", "/api/v1/campaigns", campaign(data={"x": 2**64}), "data.x"),
    ("POST", "/api/v1/suppressions", {"channel": "email", "address": LONG, "reason": "x"}, "address"),
    ("PUT", "/api/v1/templates/" + "x" * 300 + "/email/ru", {"text": "x"}, "code"),
    ("POST", "/api/v1/templates/welcome_email/email/ru/test", {"to": LONG}, "to"),
    ("GET", f"/api/v1/notifications?event_id={LONG}", None, "event_id"),
    ("GET", "/api/v1/notifications?event_id=%00", None, "event_id"),
    ("GET", f"/api/queues/hello/jobs?q={'x' * 300}", None, "q"),
    ("GET", "/api/queues/hello/jobs?page=99999999999999999999", None, "page"),
    ("GET", f"/api/queues/hello/jobs/{'x' * 2_000}", None, "job_id"),
    ("GET", f"/api/queues/{'x' * 2_000}", None, "queue"),
]  # fmt: skip


async def test_each_is_refused_with_the_field_named_and_nothing_is_stored(
    app: TestApp, client: httpx2.AsyncClient
) -> None:
    """One application for all of them: a hundred would take minutes."""
    wrong = []
    for method, path, body, field in REFUSED:
        content = None if body is None else json.dumps(body).encode()
        json_type = {"content-type": "application/json"}
        answer = await client.request(method, path, content=content, headers=json_type)
        said = answer.text[:200] if answer.status_code != 422 else _fault(answer, field)
        if said or await _stored(app):
            wrong.append((method, path[:80], field, answer.status_code, said))
    assert wrong == []


def _fault(answer: httpx2.Response, field: str) -> str | None:
    problem = answer.json()
    named = [problem["detail"], *(one["field"] for one in problem.get("errors", ()))]
    if len(answer.content) > 20_000:
        return f"{len(answer.content)} bytes"
    return None if any(field in one for one in named) else problem["detail"][:200]


async def _stored(app: TestApp) -> int:
    tables = (events, notification_delivery, users, rules, campaigns)
    counts = [select(func.count()).select_from(table) for table in tables]
    kept = await app.database.read(lambda one: [one.execute(count).scalar_one() for count in counts])
    stats = await app.queue("hello").stats()
    return sum(kept) + stats["waiting"] + stats["delayed"]


async def test_every_wrong_field_of_very_many_is_not_repeated(client: httpx2.AsyncClient) -> None:
    body = {**event(), **{f"{'y' * 500}{number}": 1 for number in range(5_000)}}
    answer = await client.post(EVENTS, json=body)
    assert answer.status_code == 422
    assert len(answer.content) < 20_000


MANY = 3_000
WRONG_BY_THE_THOUSAND = [
    {f"k{number}": 1 for number in range(MANY)},
    [1] * MANY,
    [{}] * MANY,
]


async def test_no_document_is_found_faulty_in_more_places_than_can_be_described(app: TestApp) -> None:
    """Describing a fault takes ten times as long as finding it. Every field of every body that the OpenAPI page has is tried."""
    web, found = create_app(app), 0

    async def note(_request: Request, error: Any) -> Response:
        nonlocal found
        found = len(error.errors())
        return Response(status_code=422)

    web.exception_handlers[RequestValidationError] = note
    transport = httpx2.ASGITransport(app=web, raise_app_exceptions=False)
    wrong = {}
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:3030") as client:
        for method, path, names in _bodies(web.openapi()):
            for name, bait in product([None, *names], WRONG_BY_THE_THOUSAND):
                found = 0
                answer = await client.request(method, path, json=bait if name is None else {name: bait})
                if found > MOST_FAULTS or answer.status_code >= 500:
                    wrong[method, path, name] = answer.status_code, found
    assert wrong == {}


def test_data_with_thousands_of_faults_is_refused_without_naming_each() -> None:
    class Strict(BaseModel, extra="forbid"):
        a: int = 0

    async def greet(job: Job[Strict]) -> None: ...

    handler = Handler("greet", greet)
    handler.__dict__["model"] = Strict
    data = {f"k{number}": 1 for number in range(MOST_FAULTS + 1)}
    with pytest.raises(InvalidJob, match=r"2,001 things are wrong with it") as refused:
        handler.encode(data)
    assert len(refused.value.faults) == 1
    with pytest.raises(PoisonMessage, match=r"2,001 things are wrong with it"):
        handler.decode(json.dumps(data).encode())


def _bodies(page: dict[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
    """Method, address and fields of every request that has a JSON document."""
    schemas = page["components"]["schemas"]
    for path, operations in page["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema")
            if schema is not None:
                parts = [schema, *schema.get("anyOf", ())]
                named = [schemas[part["$ref"].rpartition("/")[2]] for part in parts if "$ref" in part]
                names = [name for one in named for name in one.get("properties", ())]
                address = path.replace("{queue}", "hello").replace("{user_id}", USER)
                yield method.upper(), re.sub(r"\{.*?\}", "x", address), names


@pytest.mark.parametrize(
    "body",
    [
        b"{}\n" * 20_000,
        b"\n".join([b"{}"] * 20_000),
        b"[" + b"[]," * MOST_VALUES + b"[]]",
        b'{"a": 12345678901234567890123}',
        b'[{"a": 12345678901234567890123}]',
        b'{"a": 1}\n{"a": "\\ud800"}',
        json.dumps(event(data={"a": [[]] * MOST_VALUES})).encode(),
        json.dumps(event(data={"a": 2**70})).encode(),
        json.dumps(event(data={"a": "\0"})).encode(),
        json.dumps(event(data=deep(200))).encode(),
        json.dumps(event(**{f"k{number}": 1 for number in range(5_000)})).encode(),
    ],
    ids=lambda body: body[:40].decode(),
)
async def test_lines_are_looked_at_as_json_is(app: TestApp, client: httpx2.AsyncClient, body: bytes) -> None:
    for kind in ("application/x-ndjson", "text/plain"):
        answer = await client.post(f"{EVENTS}/batch", content=body, headers={"content-type": kind})
        assert answer.status_code == 422
        assert len(answer.content) < 20_000
    assert await _stored(app) == 0


async def test_a_batch_is_read_up_to_its_first_bad_event(client: httpx2.AsyncClient) -> None:
    answer = await client.post(f"{EVENTS}/batch", json=[event(), event(event_id=5), event(event_id=6)])
    assert (answer.status_code, "1.event_id" in answer.text, "2.event_id" in answer.text) == (
        422,
        True,
        False,
    )
    lines = "\r\n".join(json.dumps(event(event_id=f"e-{number}")) for number in range(3))
    taken = await client.post(f"{EVENTS}/batch", content=f"\n{lines}\n\n")
    assert [one["event_id"] for one in taken.json()] == ["e-0", "e-1", "e-2"]


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b'"\\ud800"', b"nan", b"-", b"1" * 5_000]
)
async def test_what_is_no_json_is_refused(client: httpx2.AsyncClient, body: bytes) -> None:
    answer = await client.post(EVENTS, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422


@pytest.mark.parametrize("body", [b"a=b&" * 1_000_000, b"a=b&" * (MOST_FIELDS + 1)], ids=["bytes", "fields"])
async def test_a_form_has_few_fields(client: httpx2.AsyncClient, body: bytes) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    answer = await client.post("/sign-in", content=body, headers=form)
    assert answer.status_code == (413 if len(body) > FORM_LIMIT else 422)


@pytest.mark.parametrize("levels", [101, 1_000])
async def test_a_long_number_deep_inside_is_refused_by_its_depth(
    client: httpx2.AsyncClient, levels: int
) -> None:
    body = b"[" * levels + b"1234567890123456789" + b"]" * levels
    answer = await client.post(EVENTS, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, "100" in answer.json()["detail"]) == (422, True)


@pytest.mark.parametrize("path", ["/unsubscribe/x", "/act/x"])
async def test_a_page_reads_little_of_the_languages_that_are_asked_for(
    client: httpx2.AsyncClient, path: str
) -> None:
    known = await client.get(path, headers={"accept-language": "de-DE, ru-RU;q=0.9, en"})
    assert '<html lang="ru"' in known.text
    tracemalloc.start()
    try:
        answer = await client.get(path, headers={"accept-language": "aa" + "-bb" * (20_000 + len(path))})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert '<html lang="en"' in answer.text
    assert peak < 2_000_000


def test_of_long_texts_nothing_is_remembered() -> None:
    tracemalloc.start()
    try:
        for number in range(20):
            long = f"{number}" + "x" * 100_000
            assert logging.mask({long: 1}) == {long: 1}
            assert logging.mask({f"{long}token": 1}) == {f"{long}token": logging.MASK}
            assert len(address_of({"client": (long, 0)})) <= 64
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


@pytest.mark.parametrize("path", ["/sign-in", "/api/admin/media/upload-async", "/api/webhooks/tilda"])
async def test_a_body_that_breaks_off_is_no_error_of_ours(app: TestApp, path: str) -> None:
    stream = io.StringIO()
    logging.configure("console", "info", stream)
    kind = b"multipart/form-data; boundary=x" if "upload" in path else b"application/x-www-form-urlencoded"
    headers = [(b"host", b"localhost"), (b"content-type", kind), (b"content-length", b"1000")]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
        "root_path": "",
        "state": {},
    }
    messages = [{"type": "http.request", "body": b"--x", "more_body": True}, {"type": "http.disconnect"}]
    answers = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        answers.append(message)

    try:
        await create_app(app)(scope, receive, send)
    finally:
        logging.configure()
    assert stream.getvalue() == ""
    assert answers[0]["status"] == 400


async def test_a_stored_rule_that_cannot_be_used_stops_no_event(
    app: TestApp, client: httpx2.AsyncClient
) -> None:
    good = Rule.model_validate(
        {"on": "user_registered", "notify": {"channel": "email", "template": "welcome_email"}}
    )
    await app.notifications.rules.put(good, "good")
    old = {"on": "user_registered", "notify": {"channel": "email", "template": "x", "delay": "3000000d"}}
    row = {"rule_id": "old", "position": 9, "body": old, "is_enabled": True, "updated_at": app.clock.now()}
    await app.database.write(lambda connection: connection.execute(rules.insert(), row).rowcount)
    await app.clock.advance("5s")
    answer = await client.post(EVENTS, json=event())
    assert answer.status_code == 202
    assert {job["template_code"] for job in answer.json()["jobs"]} == {"welcome_email"}


CAMPAIGN = {
    "campaign_id": "c", "template_code": "welcome_email", "channel": "email", "audience": {"user_ids": [USER]},
    "send_after": "2036-01-01T00:00:00Z",
}  # fmt: skip
LEAD = {"event_type": "lead.created", "event_id": "l", "data": {"lead_id": "l", "name": "Asel"}}
MADE: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("POST", "/api/v1/campaigns", CAMPAIGN),
    ("POST", "/api/v1/campaigns", {**CAMPAIGN, "campaign_id": "fine"}),
    ("POST", "/api/v1/rules", {"on": "x", "notify": {"channel": "email", "template": "welcome_email"}}),
    ("PUT", "/api/v1/templates/own/email/en", {"subject": "Hi", "body": "<p>Hi</p>"}),
    ("POST", EVENTS, LEAD),
    ("POST", EVENTS, {**LEAD, "event_id": "fine", "data": {"lead_id": "fine", "name": "fine"}}),
    ("PUT", f"/api/v1/users/{USER}", {"email": "a@example.com"}),
    ("POST", EVENTS, event(event_id="before", data={"first_name": "Asel"})),
)
KEPT = (
    ("campaigns", "body", "/api/v1/campaigns", "fine"),
    ("leads", "extra", "/api/v1/leads", "fine"),
    ("leads", "extra", "/api/v1/leads/export.csv", "fine"),
    ("mailbox", "recipients", "/api/v1/mailbox", "Asel"),
    ("rules", "body", "/api/v1/rules", "file"),
    ("scenario_runs", "event", "/api/v1/runs", "fine"),
    ("templates", "version = version + 1, meta", "/api/v1/templates", "welcome_email"),
)


@pytest.mark.parametrize("broken", ["half of {", "[1]", '"text"', "{}"])
async def test_a_row_that_cannot_be_read_hides_no_other_and_stops_nothing(
    app: TestApp, client: httpx2.AsyncClient, broken: str
) -> None:
    """SQLite keeps any text where JSON is to be, whoever wrote it."""
    for method, path, body in MADE:
        answer = await client.request(method, path, json=body)
        assert answer.is_success, answer.text
    await app.drain()
    for table, column, path, beside in KEPT:
        change = text(f"UPDATE {table} SET {column} = :broken WHERE rowid = (SELECT min(rowid) FROM {table})")
        await app.database.write(lambda c, change=change: c.execute(change, {"broken": broken}).rowcount)
        await app.clock.advance("5s")
        shown = await client.get(path)
        assert (shown.status_code, beside in shown.text) == (200, True), f"{path} {shown.text}"
    assert (await client.get("/api/v1/campaigns/c")).status_code == 200
    assert (await client.post(EVENTS, json=event(event_id="after"))).json()["jobs"] != []


async def test_a_job_that_cannot_be_shown_is_a_row_that_says_so(
    app: TestApp, client: httpx2.AsyncClient
) -> None:
    far = NewJob("far", "greet", b"{}", run_at=10**17)
    odd = NewJob("odd", "greet", b"[" * 400 + b"]" * 400)
    await app.queue("hello").engine.add("hello", [far, odd, NewJob("fine", "greet", b"{}")])
    page = await client.get("/api/queues/hello/jobs")
    assert page.status_code == 200
    assert {row["id"] for row in page.json()["jobs"]} == {"far", "odd", "fine"}
    assert "no moment" in (await client.get("/api/queues/hello/jobs/far")).json()["run_at"]
    assert (await client.get("/api/queues/hello/jobs/odd")).json()["data"].startswith("[[[")


def test_a_row_for_whatever_an_engine_brings() -> None:
    record = JobRecord("a", "hello", "greet", b"{}", "waiting", 10**30, 0, JobOptions(), progress=b"{half")
    assert JobRow.of(record).progress == "{half"
    broken: Any = JobRecord("a", "hello", None, b"{}", "waiting", 0, 0)  # type: ignore[arg-type]
    assert "can't be shown" in JobRow.of(broken).preview
    letter = DeadLetter("a", "hello", None, b"{half", "odd", 10**30)
    assert "no moment" in LetterRow.of(letter).failed_at
    assert LetterOut(**to_dict(letter)).body == "{half"


async def test_many_values_do_not_hold_up_the_event_loop() -> None:
    body = json.dumps({"number": 10**19, "pairs": [[n] for n in range(MOST_VALUES // 2 - 10)]}).encode()
    taken = min(_cpu_of(lambda: read_json(body)) for _ in range(3))
    began = time.thread_time()
    assert await _answer_to(body) == 204
    assert time.thread_time() - began < taken / 2


def _cpu_of(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


async def _answer_to(body: bytes) -> int:
    """What a route answers behind the look at what it is sent."""
    checked = StrictContent(Response(status_code=204))
    transport = httpx2.ASGITransport(app=checked)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        sent = await client.post("/", content=body, headers={"content-type": "application/json"})
    return sent.status_code
