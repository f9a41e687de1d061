"""Keys, scopes, sessions, limits and the audit, over HTTP: what each caller may do, and what each could do before."""

import asyncio
import io
import json
import signal
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from time import thread_time
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from fastapi import APIRouter
from tests.processes import Process

from yamchi.errors import ConfigurationError, Unrecoverable
from yamchi.http.access import Requires
from yamchi.http.apikeys import ApiKeys
from yamchi.http.audit import AuditLog, Entry, short
from yamchi.http.buckets import Buckets
from yamchi.http.failures import OF_ALL
from yamchi.http.limits import BODY_LIMIT, KEYLESS_LIMIT
from yamchi.http.scopes import Caller, check_scopes
from yamchi.observe import logging
from yamchi.queues.job import Job
from yamchi.queues.overview import LOOKED_AT_ONCE, view_queues
from yamchi.queues.queue import Queue
from yamchi.queues.records import NewJob, State
from yamchi.settingtypes import Quota
from yamchi.testing import MovableClock, TestApp
from yamchi.web import create_app

ADMIN, SENDER = "admin-token-of-the-test", "sender-token-of-the-test"
API = "http://localhost:3030"
JOBS = "/api/queues/letters/jobs"
PERSON = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001"
PIXEL = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[TestApp]:
    async with TestApp(home=tmp_path, admin_token=ADMIN, api_tokens=(SENDER,)) as app:
        app.define("letters")
        yield app


@pytest.fixture
async def client(app: TestApp) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=create_app(app))
    async with httpx2.AsyncClient(transport=transport, base_url=API) as client:
        yield client


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What is logged meanwhile."""
    stream = io.StringIO()
    logging.configure("console", "info", stream)
    yield stream
    logging.configure()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def key(client: httpx2.AsyncClient, *scopes: str, **fields: Any) -> dict[str, str]:
    """The headers of a new key with these scopes."""
    asked = {"name": f"key-{uuid4().hex[:8]}", "scopes": list(scopes), **fields}
    made = await client.post("/api/v1/keys", json=asked, headers=bearer(ADMIN))
    assert made.status_code == 201, made.text
    return bearer(made.json()["key"])


def web_of(client: httpx2.AsyncClient) -> Any:
    """The application that it calls."""
    return client._transport.app  # type: ignore[attr-defined]


async def audit(client: httpx2.AsyncClient, **filters: Any) -> list[dict[str, Any]]:
    answer = await client.get("/api/v1/audit", params=filters, headers=bearer(ADMIN))
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


# ── Scopes ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("scopes", "asked", "may"),
    [
        (("send",), "send:letters", True),
        (("send:letters",), "send:letters", True),
        (("send:letters",), "send:other", False),
        (("send:letters",), "send", False),
        (("send",), "people:token", False),
        (("send",), "read", False),
        (("read",), "admin", False),
        (("read",), "send:letters", False),
        (("admin",), "people:token", True),
        ((), "read", False),
    ],
)
def test_what_a_scope_opens(scopes: tuple[str, ...], asked: str, may: bool) -> None:
    assert Caller("key", "key", frozenset(scopes)).may(asked) is may


@pytest.mark.parametrize(
    "scopes", [[], ["send:"], ["everything"], ["send: letters"], ["admin", "x"], ["send:a/b"]]
)
def test_scopes_that_are_none(scopes: list[str]) -> None:
    with pytest.raises(ConfigurationError):
        check_scopes(scopes)


async def test_a_route_that_says_nothing_of_its_callers_answers_nothing(app: TestApp) -> None:
    web = create_app(app)
    router = APIRouter()
    router.add_api_route("/forgotten", lambda: "secret")
    web.include_router(router, prefix="/api/v1")
    transport = httpx2.ASGITransport(app=web, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url=API) as client:
        answer = await client.get("/api/v1/forgotten", headers=bearer(ADMIN))
        assert (answer.status_code, "secret" in answer.text) == (500, False)


@pytest.mark.parametrize("access", ["everybody", "send+tests", "", "admin "])
def test_an_access_that_is_none(access: str) -> None:
    with pytest.raises(ConfigurationError):
        Requires(access)


# ── What a key that may only send could do before ─────────────────────────────────────────────────────────────────


async def test_a_sender_does_not_read_a_job_by_adding_it_again(client: httpx2.AsyncClient) -> None:
    secret = {"data": {"card": "4242"}, "id": "order-1"}
    whole = await client.post(JOBS, json=secret, headers=bearer(ADMIN))
    assert whole.json()["data"] == {"card": "4242"}
    again = await client.post(JOBS, json={"id": "order-1"}, headers=bearer(SENDER))
    assert (again.status_code, again.json()) == (200, {"id": "order-1", "state": "waiting"})
    fresh = await client.post(JOBS, json={"data": 1, "id": "order-2"}, headers=bearer(SENDER))
    assert (fresh.status_code, fresh.json()) == (201, {"id": "order-2", "state": "waiting"})


async def test_a_page_that_sends_its_token_everywhere_gets_what_everybody_gets(
    client: httpx2.AsyncClient,
) -> None:
    made = await client.post(f"/api/v1/users/{PERSON}/token", headers=bearer(ADMIN))
    page = bearer(made.json()["token"])
    for path in ("/push/key", "/healthz", "/readyz"):
        assert (await client.get(path, headers=page)).text == (await client.get(path)).text, path
    for path in ("/api/queues", "/metrics", "/api/v1/users/00000000-0000-4000-8000-000000000000/inbox"):
        assert (await client.get(path, headers=page)).status_code == 403, path
    assert (await client.get("/", headers=page)).headers["location"] == "/sign-in"


async def test_a_sender_mints_no_token_of_a_person(client: httpx2.AsyncClient) -> None:
    path = f"/api/v1/users/{PERSON}/token"
    assert (await client.post(path, headers=bearer(SENDER))).status_code == 403
    assert (await client.post(path, headers=await key(client, "send", "read"))).status_code == 403
    assert (await client.post(path, headers=await key(client, "people:token"))).status_code == 201


@pytest.mark.parametrize("field", ["keep_failed", "keep_completed"])
async def test_a_sender_does_not_say_what_is_kept(client: httpx2.AsyncClient, field: str) -> None:
    answer = await client.post(JOBS, json={"data": 1, field: 0}, headers=bearer(SENDER))
    assert (answer.status_code, field in answer.json()["detail"]) == (403, True)
    assert (await client.post(JOBS, json={"data": 1, field: 0}, headers=bearer(ADMIN))).status_code == 201


async def test_a_sender_reads_no_metrics(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/metrics", headers=bearer(SENDER))).status_code == 403
    assert (await client.get("/metrics", headers=await key(client, "read"))).status_code == 200


async def test_a_sender_does_not_run_the_applications_own_jobs(
    app: TestApp, client: httpx2.AsyncClient
) -> None:
    @app.cron("0 3 * * *")
    async def sweep() -> None:
        """Nothing."""

    for queue in ("cron", "scenarios"):
        path, body = f"/api/queues/{queue}/jobs", {"data": None}
        refused = await client.post(path, json=body, headers=bearer(SENDER))
        assert (refused.status_code, "the application's own" in refused.json()["detail"]) == (403, True)
        named = await key(client, f"send:{queue}")
        assert (await client.post(path, json=body, headers=named)).status_code in (201, 422)


async def test_a_sender_adds_to_no_queue_of_a_feature_but_those_that_look_at_what_comes_from_outside(
    tmp_path: Path,
) -> None:
    bot = {"telegram_bot_token": "1:x", "telegram_bot": "polling"}
    zoom = {"zoom_account_id": "a", "zoom_client_id": "b", "zoom_client_secret": "c"}
    async with TestApp(home=tmp_path, admin_token=ADMIN, api_tokens=(SENDER,), **bot, **zoom) as app:
        app.serve()
        transport = httpx2.ASGITransport(app=create_app(app))
        async with httpx2.AsyncClient(transport=transport, base_url=API) as client:
            features = {name for plugin in app.plugins for name in app.queues_of(plugin)}
            assert {
                "report_queue",
                "payment_queue",
                "watermark",
                "media-sync",
                "telegram-updates",
                "lessons",
            } < features
            task = {"kind": "deliveries", "format": "csv", "notify": [{"email": "me@example.org"}]}
            is_open = set()
            for queue in features:
                path, body = f"/api/queues/{queue}/jobs", {"data": task}
                answer = await client.post(path, json=body, headers=bearer(SENDER))
                is_open |= {queue} if answer.status_code != 403 else set()
            assert is_open == {"notifications", "email_queue"}
            named = await key(client, "send:report_queue")
            answer = await client.post("/api/queues/report_queue/jobs", json={"data": task}, headers=named)
            assert answer.status_code == 201


async def test_a_sender_does_not_add_to_queues_of_other_programs(
    app: TestApp, client: httpx2.AsyncClient
) -> None:
    engine = app.queue("letters").engine
    await engine.add("theirs", [NewJob("1", "work", b"{}")])
    path = "/api/queues/theirs/jobs"
    assert (await client.post(path, json={"data": 1}, headers=bearer(SENDER))).status_code == 403
    assert (await client.get("/api/queues", headers=bearer(ADMIN))).status_code == 200  # which finds it, too
    assert (await client.post(path, json={"data": 1}, headers=bearer(SENDER))).status_code == 403
    named = await key(client, "send:theirs")
    assert (await client.post(path, json={"data": 1}, headers=named)).status_code == 201


async def test_a_key_for_one_queue_learns_nothing_of_others(client: httpx2.AsyncClient) -> None:
    narrow = await key(client, "send:letters")
    assert (await client.post(JOBS, json={"data": 1}, headers=narrow)).status_code == 201
    for queue in ("notifications", "no-such-queue"):
        answer = await client.post(f"/api/queues/{queue}/jobs", json={"data": 1}, headers=narrow)
        assert (answer.status_code, "letters" in answer.json()["detail"]) == (403, True)
    event = {"event_type": "x", "event_id": "1", "data": {}}
    assert (await client.post("/api/v1/events", json=event, headers=narrow)).status_code == 403
    wide = await key(client, "send:notifications")
    assert (await client.post("/api/v1/events", json=event, headers=wide)).status_code == 202


async def test_readiness_without_a_token_is_a_word(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/readyz")).json() == {"ready": True}
    assert (await client.get("/readyz", headers=bearer(SENDER))).json() == {"ready": True}
    assert "engines" in (await client.get("/readyz", headers=bearer(ADMIN))).json()


# ── Who may only look ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_reader_sees_everything_but_secrets_and_changes_nothing(
    app: TestApp, client: httpx2.AsyncClient
) -> None:
    @app.job("letters")
    async def post(job: Job[Any]) -> None:
        raise Unrecoverable("no")

    nested = {"api_key": "k-123456", "said": '{"token": "k-123456"}'}
    data = {"to": "a@b.kz", "password": "it's hunter2", "nested": nested}
    await client.post(JOBS, json={"data": data, "id": "j"}, headers=bearer(ADMIN))
    await app.drain()
    reader = await key(client, "read")
    for path in (JOBS, f"{JOBS}/j", "/api/queues/letters/dlq", "/api/queues/letters/dlq/j"):
        seen = await client.get(path, headers=reader)
        assert (seen.status_code, "a@b.kz" in seen.text) == (200, True), path
        assert "hunter2" not in seen.text, path
        assert "k-123456" not in seen.text, path
    assert "hunter2" in (await client.get(f"{JOBS}/j", headers=bearer(ADMIN))).text
    for method, path in (
        ("POST", "/api/queues/letters/pause"),
        ("POST", JOBS),
        ("DELETE", f"{JOBS}/j"),
        ("POST", "/api/v1/keys"),
        ("POST", "/api/v1/events"),
        ("PUT", f"/api/v1/users/{PERSON}"),
        ("POST", f"/api/v1/users/{PERSON}/inbox/read-all"),
    ):
        assert (await client.request(method, path, headers=reader)).status_code == 403, path


SECRET = {"password": "it's hunter2", "nested": {"said": '{"token": "k-123456"}'}}
CHECKUP = {
    "name": "password=hunter2", "date": "2026-01-01",
    "results": [{"name": "x", "value": 1, "unit": "g", "low": 0, "high": 2}],
}  # fmt: skip
KEPT: list[tuple[str, str, dict[str, Any]]] = [
    ("PUT", f"/api/v1/users/{PERSON}", {"attributes": SECRET}),
    ("POST", "/api/v1/events", {"event_type": "lead.created", "event_id": "1", "data": {"lead_id": "l", "name": "A"}}),
    ("PATCH", "/api/v1/leads/l", {"extra": SECRET}),
    ("POST", "/api/v1/campaigns", {
        "campaign_id": "c", "template_code": "welcome_email", "channel": "email", "data": SECRET,
        "audience": {"user_ids": [PERSON]}, "send_after": "2036-01-01T00:00:00Z",
    }),
    ("POST", "/api/v1/payments", {"id": "p", "amount": "1.00", "metadata": {"password": "hunter2"}}),
    ("POST", "/api/v1/reports", {"kind": "checkup", "format": "csv", "params": CHECKUP}),
]  # fmt: skip
SHOWN = (
    f"/api/v1/users/{PERSON}", "/api/v1/leads", "/api/v1/leads/l", "/api/v1/campaigns", "/api/v1/campaigns/c",
    "/api/v1/payments", "/api/v1/payments/p", "/api/v1/reports", "/api/admin/media",
)  # fmt: skip


async def test_a_reader_sees_no_secret_in_what_others_fill_in(tmp_path: Path) -> None:
    """Every document of a form that is its sender's own: attributes, fields of a lead, data, metadata, params."""
    shop = {"yookassa_shop_id": "1", "yookassa_secret_key": "x", "yookassa_url": "http://127.0.0.1:9"}
    async with TestApp(home=tmp_path, admin_token=ADMIN, **shop) as app:
        transport = httpx2.ASGITransport(app=create_app(app))
        async with httpx2.AsyncClient(transport=transport, base_url=API, headers=bearer(ADMIN)) as client:
            for method, path, body in KEPT:
                assert (await client.request(method, path, json=body)).is_success, path
            picture = {
                "file": ("a.png", PIXEL),
                "entityType": (None, "default"),
                "metadata": (None, json.dumps(SECRET)),
            }
            accepted = (await client.post("/api/admin/media/upload-async", files=picture)).json()
            (report,) = (await client.get("/api/v1/reports")).json()["items"]
            reader = await key(client, "read")
            for path in (
                *SHOWN,
                f"/api/v1/reports/{report['id']}",
                f"/api/admin/media/{accepted['mediaId']}",
            ):
                seen, whole = await client.get(path, headers=reader), await client.get(path)
                assert (seen.status_code, "***" in seen.text) == (200, True), path
                assert "hunter2" not in seen.text, path
                assert "k-123456" not in seen.text, path
                assert "hunter2" in whole.text, path


async def test_looking_for_secrets_costs_the_event_loop_little(client: httpx2.AsyncClient) -> None:
    texts = ["token="] * 100_000
    await client.post(JOBS, json={"data": texts, "id": "j"}, headers=bearer(ADMIN))
    reader, admin = await key(client, "read"), bearer(ADMIN)

    async def spent(headers: dict[str, str]) -> float:
        """The least time of this thread, the loop's."""
        costs = []
        for _ in range(3):
            began = thread_time()
            assert (await client.get(f"{JOBS}/j", headers=headers)).status_code == 200
            costs.append(thread_time() - began)
        return min(costs)

    began = thread_time()
    logging.mask(texts)
    whole = thread_time() - began
    assert await spent(reader) < await spent(admin) + whole / 2


async def test_a_reader_signs_in_and_out(client: httpx2.AsyncClient) -> None:
    reader = (await key(client, "read", name="eye"))["authorization"].removeprefix("Bearer ")
    sender = (await key(client, "send"))["authorization"].removeprefix("Bearer ")
    assert (await client.post("/sign-in", data={"token": sender})).status_code == 403
    assert (await client.post("/sign-in", data={"token": reader})).status_code == 303
    assert (await client.get("/")).status_code == 200
    me = (await client.get("/api/v1/me")).json()
    assert me == {
        "name": "key eye",
        "scopes": ["read"],
        "may_change": False,
        "is_test": False,
        "is_session": True,
    }
    assert (await client.post("/api/queues/letters/pause")).status_code == 403


async def test_signing_out_ends_the_session_on_the_server(app: TestApp, client: httpx2.AsyncClient) -> None:
    await client.post("/sign-in", data={"token": ADMIN})
    stolen = {"cookie": f"yamchi_session={client.cookies['yamchi_session']}"}
    elsewhere = httpx2.ASGITransport(app=create_app(app))
    async with httpx2.AsyncClient(transport=elsewhere, base_url=API) as other:
        assert (await other.get("/api/queues", headers=stolen)).status_code == 200
        await client.post("/sign-out")
        client.cookies.clear()
        assert (await client.get("/api/queues", headers=stolen)).status_code == 401
        await app.clock.advance("3s")
        assert (await other.get("/api/queues", headers=stolen)).status_code == 401


async def test_a_session_ends_with_its_key(app: TestApp, client: httpx2.AsyncClient) -> None:
    reader = (await key(client, "read", name="eye"))["authorization"].removeprefix("Bearer ")
    await client.post("/sign-in", data={"token": reader})
    assert (await client.get("/api/queues")).status_code == 200
    await client.delete("/api/v1/keys/eye", headers=bearer(ADMIN))
    assert (await client.get("/api/queues")).status_code == 401


async def test_rotating_a_key_ends_its_sessions(app: TestApp, client: httpx2.AsyncClient) -> None:
    old = (await key(client, "read", name="eye"))["authorization"].removeprefix("Bearer ")
    await client.post("/sign-in", data={"token": old})
    assert (await client.get("/api/queues")).status_code == 200
    asked = {"grace": "1h"}
    rotated = await client.post("/api/v1/keys/eye/rotate", json=asked, headers=bearer(ADMIN))
    await app.clock.advance("3s")
    assert (await client.get("/api/queues")).status_code == 401
    assert (await client.get("/api/queues", headers=bearer(old))).status_code == 200
    assert (await client.post("/sign-in", data={"token": old})).status_code == 401
    assert (await client.post("/sign-in", data={"token": rotated.json()["key"]})).status_code == 303
    assert (await client.get("/api/queues")).status_code == 200


# ── Keys ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_key_is_shown_once_and_kept_as_a_digest(app: TestApp, client: httpx2.AsyncClient) -> None:
    made = await client.post("/api/v1/keys", json={"name": "shop", "scopes": ["send"]}, headers=bearer(ADMIN))
    text = made.json()["key"]
    secret = text.rpartition("_")[2]
    listed = await client.get("/api/v1/keys", headers=bearer(ADMIN))
    assert [(row["name"], row["state"], row["created_by"]) for row in listed.json()] == [
        ("shop", "in use", "admin")
    ]
    assert secret not in listed.text
    await app.database.close()
    kept = b"".join(path.read_bytes() for path in (app.settings.var).iterdir())
    assert secret.encode() not in kept


async def test_the_last_use_of_a_key_is_noted(app: TestApp, client: httpx2.AsyncClient) -> None:
    shop = await key(client, "send", name="shop")
    await client.post(JOBS, json={"data": 1}, headers=shop)
    (row,) = (await client.get("/api/v1/keys", headers=bearer(ADMIN))).json()
    assert row["last_used_at"] is not None


async def test_a_key_ends_when_it_expires_or_is_revoked(app: TestApp, client: httpx2.AsyncClient) -> None:
    short_lived = await key(client, "read", expires_in="1h")
    revoked = await key(client, "read", name="gone")
    for headers in (short_lived, revoked):
        assert (await client.get("/api/queues", headers=headers)).status_code == 200
    await client.delete("/api/v1/keys/gone", headers=bearer(ADMIN))
    assert (await client.get("/api/queues", headers=revoked)).status_code == 401
    await app.clock.advance("61m")
    assert (await client.get("/api/queues", headers=short_lived)).status_code == 401
    again = await client.post(
        "/api/v1/keys", json={"name": "gone", "scopes": ["read"]}, headers=bearer(ADMIN)
    )
    assert again.status_code == 201, "the name of a revoked key is free"


async def test_a_key_revoked_elsewhere_is_refused_within_seconds(
    app: TestApp, client: httpx2.AsyncClient
) -> None:
    shop = await key(client, "read", name="shop")
    assert (await client.get("/api/queues", headers=shop)).status_code == 200
    await ApiKeys(app.database, app.clock).revoke("shop")
    await app.clock.advance("2s")
    assert (await client.get("/api/queues", headers=shop)).status_code == 401


async def test_a_key_made_elsewhere_is_good_at_once(app: TestApp, client: httpx2.AsyncClient) -> None:
    assert (await client.get("/api/queues", headers=await key(client, "read"))).status_code == 200
    await app.clock.advance("300ms")
    _, text = await ApiKeys(app.database, app.clock).create("other", ["read"], by="test")
    assert (await client.get("/api/queues", headers=bearer(text))).status_code == 200


async def test_a_rotated_key_has_a_grace(app: TestApp, client: httpx2.AsyncClient) -> None:
    old = await key(client, "read", name="shop")
    rotated = await client.post("/api/v1/keys/shop/rotate", json={"grace": "1h"}, headers=bearer(ADMIN))
    new = bearer(rotated.json()["key"])
    for headers in (old, new):
        assert (await client.get("/api/queues", headers=headers)).status_code == 200
    await app.clock.advance("61m")
    assert (await client.get("/api/queues", headers=old)).status_code == 401
    assert (await client.get("/api/queues", headers=new)).status_code == 200
    await client.post("/api/v1/keys/shop/rotate", headers=bearer(ADMIN))
    assert (await client.get("/api/queues", headers=new)).status_code == 401


async def test_requests_do_not_ask_the_database_for_their_key(
    app: TestApp, client: httpx2.AsyncClient
) -> None:
    shop = await key(client, "read")
    await client.get("/api/queues", headers=shop)
    asked = []
    read = app.database.read

    async def counted(op: Any) -> Any:
        asked.append(op)
        return await read(op)

    app.database.read = counted  # type: ignore[method-assign]
    for _ in range(20):
        assert (await client.get("/api/v1/me", headers=shop)).status_code == 200
    assert asked == []


@pytest.mark.parametrize("name", ["", "a/b", " shop", "x" * 101, "a\nb"])
async def test_names_that_keys_can_not_have(client: httpx2.AsyncClient, name: str) -> None:
    answer = await client.post("/api/v1/keys", json={"name": name, "scopes": ["read"]}, headers=bearer(ADMIN))
    assert answer.status_code == 422


async def test_two_keys_have_two_names(client: httpx2.AsyncClient) -> None:
    body = {"name": "shop", "scopes": ["send"]}
    first, second = [await client.post("/api/v1/keys", json=body, headers=bearer(ADMIN)) for _ in range(2)]
    assert (first.status_code, second.status_code) == (201, 422)
    assert "already" in second.json()["detail"]


@pytest.mark.parametrize("text", ["yk_", "yk_x", "yk__", "yk_test_a_b", "yk_0123456789_zz", "yk_é_é"])
async def test_a_made_up_key_opens_nothing(client: httpx2.AsyncClient, text: str) -> None:
    headers = {"authorization": f"Bearer {text}".encode()}
    assert (await client.get("/api/queues", headers=headers)).status_code == 401


async def test_a_key_counts_even_where_nobody_needs_one(tmp_path: Path) -> None:
    async with TestApp(home=tmp_path) as app:
        transport = httpx2.ASGITransport(app=create_app(app))
        async with httpx2.AsyncClient(transport=transport, base_url=API) as client:
            shop = await key(client, "send")
            assert (await client.get("/api/queues", headers=shop)).status_code == 403
            assert (await client.get("/api/queues", headers=bearer("yk_a_b"))).status_code == 401
            assert (await client.get("/api/queues")).status_code == 200


# ── Guessing ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_wrong_tokens_are_throttled_over_all_connections(
    app: TestApp, client: httpx2.AsyncClient, logged: io.StringIO
) -> None:
    assert (
        await client.get("/api/queues", headers=bearer(SENDER))
    ).status_code == 403  # right, if not enough
    answers = []
    for number in range(12):
        async with httpx2.AsyncClient(transport=client._transport, base_url=API) as stranger:
            answers.append(await stranger.get("/api/queues", headers=bearer(f"guess-{number}")))
    assert [answer.status_code for answer in answers] == [401] * 10 + [429] * 2
    assert int(answers[-1].headers["retry-after"]) > 0
    assert logged.getvalue().count("refused a token") == 10
    signed_in = await client.post("/sign-in", data={"token": ADMIN})
    assert signed_in.status_code == 429, "not even compared"
    assert (await client.get("/api/queues", headers=bearer(ADMIN))).status_code == 429
    assert (await client.get("/api/queues", headers=bearer(SENDER))).status_code == 403, "at work before"
    await app.clock.advance("1m")
    assert (await client.get("/api/queues", headers=bearer(ADMIN))).status_code == 200


async def test_failed_sign_ins_are_throttled_and_logged(
    client: httpx2.AsyncClient, logged: io.StringIO
) -> None:
    codes = [(await client.post("/sign-in", data={"token": f"x{n}"})).status_code for n in range(12)]
    assert codes == [401] * 10 + [429] * 2
    assert logged.getvalue().count("refused a sign-in") == 10


async def test_a_stranger_who_guesses_shuts_out_nobody_whose_token_cannot_be_guessed(
    app: TestApp, client: httpx2.AsyncClient
) -> None:
    shop, eyes = await key(client, "read"), await key(client, "read")
    minted = await client.post(f"/api/v1/users/{PERSON}/token", headers=bearer(ADMIN))
    page = bearer(minted.json()["token"])
    failures = web_of(client).state.access.failures
    for number in range(OF_ALL.count):
        failures.wrong(f"10.0.{number // 250}.{number % 250}", "a token", "/api/queues")
    elsewhere = httpx2.ASGITransport(app=web_of(client), client=("192.0.2.7", 1))
    async with httpx2.AsyncClient(transport=elsewhere, base_url=API) as anew:

        async def status(path: str, headers: dict[str, str]) -> int:
            return (await anew.get(path, headers=headers)).status_code

        inbox = f"/api/v1/users/{PERSON}/inbox"
        assert await status("/api/queues", shop) == 200
        assert await status(inbox, page) == 200
        assert (await anew.post("/sign-in", data={"token": eyes["authorization"][7:]})).status_code == 303
        anew.cookies.clear()
        assert await status("/api/queues", bearer(ADMIN)) == 429, "somebody may have chosen a short one"
        assert await status("/api/queues", bearer(f"{shop['authorization'][7:]}0")) == 429
        assert await status(inbox, bearer(f"{minted.json()['token']}0")) == 429
    assert (await client.get("/api/queues", headers=bearer(ADMIN))).status_code == 200, "at work before"


async def test_many_unknown_keys_at_once_are_one_look_at_the_database(
    app: TestApp, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, read = 0, app.database.read

    async def counted(*given: Any) -> Any:
        nonlocal looks
        looks += 1
        return await read(*given)

    keys = web_of(client).state.access.keys
    monkeypatch.setattr(app.database, "read", counted)
    assert await asyncio.gather(*(keys.find(f"yk_{number}_x") for number in range(100))) == [None] * 100
    assert looks == 1


# ── Bodies ────────────────────────────────────────────────────────────────────────────────────────────────────────

PIECE = b" " * 65_536
JSON, CSV, PLAIN = (("content-type", kind) for kind in ("application/json", "text/csv", "text/plain"))
LIST = ("PUT", "/api/v1/campaigns/x/audience")


@pytest.mark.parametrize(
    ("who", "route", "kinds", "status", "most"),
    [
        ("sender", LIST, [JSON], 413, BODY_LIMIT),
        ("sender", LIST, [JSON, CSV], 413, BODY_LIMIT),
        ("sender", LIST, [CSV, JSON], 403, 0),
        ("sender", LIST, [CSV], 403, 0),
        ("sender", ("POST", "/api/admin/media/upload-async"), [JSON], 413, BODY_LIMIT),
        ("person", ("POST", f"/api/v1/users/{PERSON}/media"), [JSON], 413, KEYLESS_LIMIT),
        ("person", ("PUT", f"/api/v1/users/{PERSON}/preferences"), [JSON], 413, KEYLESS_LIMIT),
        ("stranger", ("POST", "/api/webhooks/tilda"), [JSON], 413, KEYLESS_LIMIT),
        ("stranger", ("POST", "/api/webhooks/tilda"), [PLAIN], 413, KEYLESS_LIMIT),
        ("stranger", ("POST", "/sign-in"), [JSON], 413, KEYLESS_LIMIT),
        ("stranger", ("POST", "/sign-in"), [PLAIN], 413, KEYLESS_LIMIT),
    ],
)
async def test_little_is_read_of_a_body_before_its_sender_is_refused(
    client: httpx2.AsyncClient,
    who: str,
    route: tuple[str, str],
    kinds: list[tuple[str, str]],
    status: int,
    most: int,
) -> None:
    headers = {"sender": bearer(SENDER), "person": {}, "stranger": {}}[who]
    if who == "person":
        made = await client.post(f"/api/v1/users/{PERSON}/token", headers=bearer(ADMIN))
        headers = bearer(made.json()["token"])
    taken = 0

    async def without_end() -> AsyncIterator[bytes]:
        nonlocal taken
        while taken < 2 * BODY_LIMIT:
            taken += len(PIECE)
            yield PIECE

    method, path = route
    answer = await client.request(method, path, content=without_end(), headers=[*headers.items(), *kinds])
    assert answer.status_code == status, answer.text
    assert taken <= most + len(PIECE)


async def test_a_key_sends_more_than_a_stranger(client: httpx2.AsyncClient) -> None:
    data = {"data": "x" * 2 * KEYLESS_LIMIT}
    assert (await client.post(JOBS, json=data, headers=bearer(SENDER))).status_code == 201
    refused = await client.post(JOBS, json={"data": "x" * BODY_LIMIT}, headers=bearer(SENDER))
    assert refused.status_code == 413
    assert (await client.post("/api/webhooks/tilda", json=data)).status_code == 413


# ── Limits ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_caller_that_asks_for_too_much_waits(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rate_limit_send": "3/s", "rate_limit_read": "1/m"}
    async with TestApp(
        home=tmp_path, admin_token=ADMIN, api_tokens=(SENDER, "another-sender"), **settings
    ) as app:
        app.define("letters")
        transport = httpx2.ASGITransport(app=create_app(app))
        async with httpx2.AsyncClient(transport=transport, base_url=API) as client:
            answers = [await client.post(JOBS, json={"data": n}, headers=bearer(SENDER)) for n in range(4)]
            assert [answer.status_code for answer in answers] == [201, 201, 201, 429]
            first, last = answers[0].headers, answers[-1].headers
            assert (first["ratelimit-policy"], first["ratelimit"]) == ('"send";q=3;w=1', '"send";r=2;t=1')
            assert (last["retry-after"], last["ratelimit"]) == ("1", '"send";r=0;t=1')
            assert answers[-1].headers["content-type"] == "application/problem+json"
            other = await client.post(JOBS, json={"data": 1}, headers=bearer("another-sender"))
            assert other.status_code == 201
            await app.clock.advance("1s")
            assert (await client.post(JOBS, json={"data": 1}, headers=bearer(SENDER))).status_code == 201
            looks = [await client.get("/api/queues", headers=bearer(ADMIN)) for _ in range(2)]
            assert [look.status_code for look in looks] == [200, 429]
            assert looks[1].headers["retry-after"] == "60"


def test_buckets_take_no_more_memory_than_they_may() -> None:
    buckets = Buckets(Quota(2, 1_000), MovableClock(), most=100)
    for number in range(10_000):
        assert buckets.take(f"key {number}").is_allowed
    assert len(buckets._kept) == 100


# ── Audit ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_changes_are_in_the_audit_and_secrets_are_not(client: httpx2.AsyncClient) -> None:
    shop = await key(client, "admin", name="shop")
    await client.post("/api/queues/letters/pause", headers=shop)
    data = {"to": "nurzhan@example.com", "phone": "+77011234567", "password": "hunter2"}
    await client.post(JOBS, json={"data": data, "id": "j"}, headers=shop)
    await client.patch(f"{JOBS}/j", json={"data": data | {"n": 2}}, headers=shop)
    await client.delete("/api/queues/letters/jobs/nobody", headers=shop)
    rows = await audit(client, who="key shop")
    assert [(row["action"], row["outcome"]) for row in rows] == [
        ("DELETE /api/queues/{queue}/jobs/{job_id}", "404"),
        ("PATCH /api/queues/{queue}/jobs/{job_id}", "200"),
        ("POST /api/queues/{queue}/pause", "200"),
    ]
    edited = rows[1]
    assert (edited["target"], edited["address"]) == ("/api/queues/letters/jobs/j", "127.0.0.1")
    assert '"n":2' not in edited["before"]
    assert '"n":2' in edited["after"]
    everything = str(await audit(client))
    for secret in ("hunter2", "nurzhan@", "7011234567", shop["authorization"].rpartition("_")[2]):
        assert secret not in everything
    assert "n***@example.com" in edited["after"]


async def test_the_audit_says_what_was_before(client: httpx2.AsyncClient) -> None:
    await key(client, "read", "send", name="shop")
    await client.post(JOBS, json={"data": 1, "id": "j", "name": "post"}, headers=bearer(ADMIN))
    rule = {"on": "paid", "notify": {"channel": "email", "template": "receipt"}}
    kept = (await client.post("/api/v1/rules", json=rule, headers=bearer(ADMIN))).json()["rule_id"]
    for method, path in (
        ("POST", "/api/queues/letters/pause"),
        ("DELETE", f"{JOBS}/j"),
        ("DELETE", f"/api/v1/rules/{kept}"),
        ("DELETE", "/api/v1/keys/shop"),
        ("POST", "/api/queues/letters/drain"),
    ):
        assert (await client.request(method, path, headers=bearer(ADMIN))).status_code < 300, path
    drained, revoked, unruled, removed, paused, *_ = await audit(client)
    assert (drained["outcome"], revoked["before"], removed["before"]) == (
        "200, 0 changed",
        "read, send",
        "post, waiting",
    )
    assert (paused["before"], paused["after"]) == ("running", "paused")
    assert '"receipt"' in unruled["before"]


async def test_the_audit_has_pages_and_filters(app: TestApp, client: httpx2.AsyncClient) -> None:
    for number in range(5):
        await client.post(f"/api/queues/letters/{'pause' if number % 2 else 'resume'}", headers=bearer(ADMIN))
        await app.clock.advance("1h")
    assert len(await audit(client, action="pause")) == 2
    assert len(await audit(client, target="letters", since="2026-01-01T01:30:00Z")) < 5
    assert await audit(client, who="nobody") == []
    seen: list[int] = []
    cursor: str | None = None
    while True:
        page = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        answer = (await client.get("/api/v1/audit", params=page, headers=bearer(ADMIN))).json()
        seen += [row["id"] for row in answer["items"]]
        if (cursor := answer["next_cursor"]) is None:
            break
    assert seen == sorted(set(seen), reverse=True)
    assert len(seen) == 5


async def test_a_change_that_was_cut_short_leaves_a_trace(app: TestApp) -> None:
    log = AuditLog(app.database, app.clock, app.settings.audit_keep)
    await log.begin(Entry("admin", "POST /x"))
    (row,) = await log.page()
    assert (row["action"], row["outcome"]) == ("POST /x", None)


async def test_old_changes_are_forgotten(app: TestApp) -> None:
    log = AuditLog(app.database, app.clock, app.settings.audit_keep)
    await log.begin(Entry("admin", "old"))
    await app.clock.advance("366d")
    await log.begin(Entry("admin", "new"))
    assert [row["action"] for row in await log.page()] == ["new"]


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (None, None),
        (b"", None),
        (b'{"token": "abc", "a": 1}', '{"token":"***","a":1}'),
        (b"not json", "not json"),
        ("Bearer abcdef123456", "Bearer ***"),
        ({"url": "redis://u:secret@h"}, '{"url":"redis://u:***@h"}'),
        ({"to": "nurzhan@mail.example.com"}, '{"to":"n***@mail.example.com"}'),
        ("call +77010001122 now", "call +77***22 now"),
    ],
)
def test_what_the_audit_keeps(value: Any, kept: str | None) -> None:
    assert short(value) == kept


def test_the_audit_keeps_things_short_and_does_not_read_large_ones_whole() -> None:
    assert len(short("x" * 10_000) or "") == 500
    large = b'{"password": "hunter2hunter2", "rows": [' + b"[" * 2_000_000
    assert "hunter2" not in (short(large) or "")
    assert "hunter2" not in (short({"password": "hunter2" * 10_000}) or "")
    assert "hunter2" not in (short({"rows": ["x"] * 100_000, "password": "hunter2"}) or "")


@pytest.mark.parametrize(
    "data", [b"{", b"", b"[" * 300 + b"]" * 300, b"1e999", b'{"password": "it\'s hunter2"}']
)
async def test_a_job_that_another_program_wrote_is_mended(
    app: TestApp, client: httpx2.AsyncClient, data: bytes
) -> None:
    """What it was before goes into the audit as far as it can be read."""
    engine = app.queue("letters").engine
    await engine.add("letters", [NewJob("odd", "letters", data)])
    answer = await client.patch(f"{JOBS}/odd", json={"data": {"a": 1}}, headers=bearer(ADMIN))
    assert (answer.status_code, answer.json().get("data")) == (200, {"a": 1}), answer.text
    (row,) = await audit(client, action="PATCH")
    assert (row["after"], row["outcome"]) == ('{"a":1}', "200")
    assert "hunter2" not in str(row)


@pytest.mark.parametrize("value", [b"[" * 900 + b"]" * 900, {"number": 10**30}, [2**70]])
def test_the_audit_keeps_what_no_json_has(value: Any) -> None:
    assert short(value)


async def test_signing_in_and_out_is_in_the_audit(client: httpx2.AsyncClient) -> None:
    await client.post("/sign-in", data={"token": ADMIN})
    await client.post("/sign-out")
    assert [row["action"] for row in await audit(client)] == ["sign out", "sign in"]


# ── On a running server ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_key_from_the_command_line_opens_a_running_server(tmp_path: Path) -> None:
    server = Process(tmp_path, "up", "--port", "0", ADMIN_TOKEN=ADMIN)
    try:
        making = Process(tmp_path, "keys", "create", "--name", "shop", "--scope", "send:hello")
        making.end()
        text = making.said.splitlines()[0]
        assert text.startswith("yk_"), making.said
        with httpx2.Client(base_url=server.url, headers=bearer(text)) as shop:
            job = {"data": {"name": "you"}}
            assert shop.post("/api/queues/hello/jobs", json=job).status_code == 201
            assert shop.get("/api/queues").status_code == 403
            Process(tmp_path, "keys", "revoke", "shop").end()
            server.wait_for(
                lambda: shop.post("/api/queues/hello/jobs", json=job).status_code == 401, "the refusal"
            )
        listing = Process(tmp_path, "audit", "--json")
        listing.end()
        assert '"yamchi keys revoke"' in listing.said
        assert text not in listing.said
    finally:
        server.end(signal.SIGTERM)


async def test_who_may_only_send_is_not_told_what_other_queues_there_are(client: httpx2.AsyncClient) -> None:
    path = "/api/queues/nope/jobs"
    for scope, is_told in (("send", False), ("send:nope", False), ("admin", True)):
        answer = await client.post(path, json={"data": 1}, headers=await key(client, scope))
        assert answer.status_code == 404
        assert ("notifications" in answer.json()["detail"]) is is_told, answer.text


async def test_thousands_of_queues_are_looked_at_some_at_a_time(
    app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once began with a task for each, which held the event loop for a second."""
    for number in range(1_000):
        app.define(f"tenant-{number}")
    under_way, most, really = 0, 0, Queue.counts

    async def counts(queue: Queue) -> dict[State, int]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return await really(queue)

    monkeypatch.setattr(Queue, "counts", counts)
    views = await view_queues(app.queues, 1)
    assert [view.queue.name for view in views] == [queue.name for queue in app.queues]
    assert LOOKED_AT_ONCE / 2 < most <= LOOKED_AT_ONCE
