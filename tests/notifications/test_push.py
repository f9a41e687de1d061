"""Web Push with a push service that checks the VAPID token and opens what is sealed, and endpoints that must be refused."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from tests.notifications.conftest import USER
from tests.services.push import Browser, PushService, decode, encode
from tests.services.webserver import Response
from yamchi.cli import cli
from yamchi.clock import isoformat
from yamchi.errors import ConfigurationError
from yamchi.notifications.channels.base import Message
from yamchi.notifications.channels.parts import Parts
from yamchi.notifications.channels.push.channel import WebPushChannel
from yamchi.notifications.channels.push.client import PushClient
from yamchi.notifications.channels.push.encryption import MAX_MESSAGE_BYTES, encrypt
from yamchi.notifications.channels.push.endpoints import Lookups, NotPublic, check_endpoint
from yamchi.notifications.channels.push.subscriptions import MOST_BROWSERS, BrowserSubscription, Subscriptions
from yamchi.notifications.channels.push.vapid import VapidKey
from yamchi.notifications.plugin import Notifications
from yamchi.notifications.templates.model import Button, Rendered
from yamchi.queues.records import NewJob
from yamchi.storage.database import Database
from yamchi.testing import MovableClock, TestApp
from yamchi.web import create_app

KEY = VapidKey.make()
SUBJECT = "mailto:ops@example.com"


@pytest.fixture
def service() -> Iterator[PushService]:
    with PushService() as service:
        yield service


@pytest.fixture
async def app(service: PushService, tmp_path: Path) -> AsyncIterator[TestApp]:
    app = TestApp(
        home=tmp_path, vapid_private_key=KEY.private_text, vapid_subject=SUBJECT, push_allow_private=True
    )
    service.clock = lambda: app.clock.now() / 1000
    app.notifications.serve()
    yield app
    await app.close()


@pytest.fixture
async def client(app: TestApp) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(create_app(app))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def channel(app: TestApp) -> WebPushChannel:
    found = app.notifications.channels["push"]
    assert isinstance(found, WebPushChannel)
    return found


async def subscribe(app: TestApp, service: PushService, user: str = USER, **options: Any) -> Browser:
    browser = service.subscribe(channel(app).public_key, **options)
    await channel(app).subscribe(user, BrowserSubscription.model_validate(browser.as_json()))
    return browser


def job(**fields: Any) -> dict[str, Any]:
    given = {
        "job_id": str(uuid4()),
        "user_id": USER,
        "channel": "push",
        "template_code": "payment_failed",
        "locale": "en",
        "data": {"amount": "12990.00", "retry_url": "https://example.com/42"},
        "meta": {"event_type": "payment.canceled", "event_id": "e-1"},
        "created_at": "2025-11-14T12:35:10Z",
    }
    return {**given, **fields}


async def put(app: TestApp, *messages: dict[str, Any]) -> None:
    new = [NewJob(message["job_id"], "send", orjson.dumps(message)) for message in messages]
    await app.notifications.queue.engine.add("notifications", new)
    await app.drain()


async def delivery(app: TestApp, message: dict[str, Any]) -> dict[str, Any]:
    return await app.notifications.deliveries.get(message["job_id"])


# ── Sealing and signing ───────────────────────────────────────────────────────────────────────────────────────────


def test_sealing_gives_the_bytes_of_the_rfc() -> None:
    """RFC 8291, appendix A."""
    ours = ec.derive_private_key(
        int.from_bytes(decode("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"), "big"), ec.SECP256R1()
    )
    body = encrypt(
        b"When I grow up, I want to be a watermelon",
        decode("BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"),
        decode("BTBZMqHH6r4Tts7J_aSIgg"),
        ours=ours,
        salt=decode("DGv6ra1nlYgDCS1FRnbzlw"),
    )
    assert encode(body) == (
        "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_"
        "yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
    )


@pytest.mark.parametrize(
    "text", ["", "short", "_" * 43, "-----BEGIN PRIVATE KEY-----\nnonsense\n-----END PRIVATE KEY-----"]
)
def test_a_key_that_is_none(text: str) -> None:
    with pytest.raises(ConfigurationError, match="yamchi doctor --make-vapid"):
        VapidKey.read(text)


def test_a_key_is_read_as_it_was_written() -> None:
    assert VapidKey.read(KEY.private_text).public_text == KEY.public_text
    assert len(decode(KEY.public_text)) == 65


def test_the_doctor_makes_a_key(own_home: Path) -> None:
    said = CliRunner().invoke(cli, ["doctor", "--make-vapid"]).stdout
    made = next(line for line in said.splitlines() if line.startswith("VAPID_PRIVATE_KEY=")).partition("=")[2]
    assert VapidKey.read(made).public_text in said


async def test_a_key_without_a_subject_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^VAPID_SUBJECT must be set$"):
        TestApp(home=tmp_path, vapid_private_key=KEY.private_text)


# ── Sending ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_browser_reads_what_was_sent(app: TestApp, service: PushService) -> None:
    browser = await subscribe(app, service)
    message = job(
        channel="browser",
        expires_at=isoformat(app.clock.now() + 3_600_000),
        meta={"event_type": "e", "event_id": "e", "priority": "high"},
    )
    await put(app, message)
    assert (await delivery(app, message))["status"] == "SENT"
    (pushed,) = service.to(browser)
    assert pushed.message["title"] == "Payment failed"
    assert "12,990" in pushed.message["body"]
    assert pushed.message["url"] == "https://example.com/42"
    assert pushed.claims["sub"] == SUBJECT
    assert (pushed.headers["ttl"], pushed.headers["urgency"]) == ("3600", "high")
    assert pushed.headers["topic"] == pushed.message["tag"]


async def test_every_browser_gets_it_once_whatever_happens_to_another(
    app: TestApp, service: PushService
) -> None:
    first, second = await subscribe(app, service), await subscribe(app, service)
    gone = await subscribe(app, service)
    gone.is_gone = True
    refused = await subscribe(app, service)
    refused.server_key = "another"  # as if it had subscribed with another key
    message = job()
    service.answers.append(Response(503, b"down", {"Retry-After": "120"}))
    await put(app, message)
    found = await delivery(app, message)
    assert (found["status"], found["attempts"]) == ("RETRYING", 0)
    assert "503 down" in found["last_error"]
    assert "VAPID" in str(found) or "503" in str(found)
    await app.clock.advance("119s")
    before = service.asked
    await app.clock.advance("5m")
    assert before <= 4
    assert [len(service.to(browser)) for browser in (first, second)] == [1, 1]
    left = {browser.endpoint for browser in await channel(app).subscriptions.of(USER)}
    assert left == {first.endpoint, second.endpoint, refused.endpoint}


@pytest.mark.parametrize("status", [404, 410])
async def test_a_browser_that_unsubscribed_is_forgotten(
    app: TestApp, service: PushService, status: int
) -> None:
    await subscribe(app, service)
    service.answers.append(Response(status, b"gone"))
    message = job()
    await put(app, message)
    found = await delivery(app, message)
    assert found["status"] == "FAILED"
    assert "unsubscribed" in found["last_error"]
    assert list(await channel(app).subscriptions.of(USER)) == []
    again = job()
    await put(app, again)
    assert (await delivery(app, again))["last_error"] == "User has no push"
    assert service.asked == 1


async def test_another_subscription_makes_the_next_message_go(app: TestApp, service: PushService) -> None:
    await put(app, job())
    await subscribe(app, service)
    message = job()
    await put(app, message)
    assert (await delivery(app, message))["status"] == "SENT"


@pytest.mark.parametrize(("status", "text"), [(403, '{"reason":"BadJwtToken"}'), (401, "Unauthorized")])
async def test_our_own_configuration_is_named(
    app: TestApp, service: PushService, status: int, text: str
) -> None:
    await subscribe(app, service)
    service.answers.append(Response(status, text.encode()))
    message = job()
    await put(app, message)
    found = await delivery(app, message)
    assert (found["status"], found["attempts"]) == ("RETRYING", 0)
    assert "check VAPID_PRIVATE_KEY, VAPID_SUBJECT and this machine's clock" in found["last_error"]
    await app.clock.advance("1m")
    assert (await delivery(app, message))["status"] == "SENT"


async def test_a_service_that_is_away_keeps_nobody_from_another(app: TestApp, service: PushService) -> None:
    other = PushService()
    people = [USER, str(uuid4()), str(uuid4())]
    for person in people:
        await subscribe(app, other, person, host="localhost")  # nobody listens there
    waiting, *more = [job(user_id=person) for person in people]
    await put(app, waiting, *more)
    neighbor = str(uuid4())
    reached = await subscribe(app, service, neighbor)
    message = job(user_id=neighbor)
    await put(app, message)
    assert len(service.to(reached)) == 1
    (circuit,) = [one for one in await app.notifications.circuits.all() if one.is_open]
    assert circuit.name == f"push:localhost:{other.port}"
    why = (await delivery(app, waiting))["last_error"]
    assert why == f"The push service localhost:{other.port} can't be reached: All connection attempts failed"
    other.start()
    other.clock = service.clock
    await app.clock.advance("1m")
    found = await delivery(app, waiting)
    assert (found["status"], found["attempts"]) == ("SENT", 1)
    other.stop()


async def test_a_lost_answer_is_sent_again_and_replaces_the_first(app: TestApp, service: PushService) -> None:
    browser = await subscribe(app, service)
    service.hang_ups = 1
    message = job()
    await put(app, message)
    found = await delivery(app, message)
    assert found["status"] == "UNKNOWN"
    assert "its answer was lost: Server disconnected" in found["last_error"]
    await app.clock.advance("1m")
    assert (await delivery(app, message))["status"] == "SENT"
    assert len({pushed.headers["topic"] for pushed in service.to(browser)}) == 1


async def test_a_long_text_is_shortened_and_that_is_said(app: TestApp, service: PushService) -> None:
    browser = await subscribe(app, service)
    buttons = ((Button("Смотреть", url="https://example.com/1"), Button("no address", callback="x")),)
    rendered = Rendered("слово " * 2_000, title="Заголовок", topic="film-1", buttons=buttons)
    said = await channel(app).send(Message("j", USER, rendered))
    assert said == "1 of 1 browsers, text shortened"
    (pushed,) = service.to(browser)
    assert pushed.size <= 4096
    assert pushed.size > 4096 - 20
    assert pushed.message["body"].endswith("…")
    assert pushed.message["buttons"] == [{"text": "Смотреть", "url": "https://example.com/1"}]
    assert MAX_MESSAGE_BYTES == 3993


async def test_connections_are_used_again(app: TestApp, service: PushService) -> None:
    await subscribe(app, service)
    for _ in range(10):
        await put(app, job())
    assert len(service.log) == 10
    assert service.connections == 1


# ── Endpoints ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://example.com/push",
        "https://127.0.0.1/push",
        "https://localhost/push",
        "https://10.0.0.8:8443/push",
        "https://192.168.1.1/",
        "https://169.254.169.254/latest/meta-data/",
        "https://[::1]/push",
        "https://[::ffff:127.0.0.1]/push",
        "https://[64:ff9b::7f00:1]/push",
        "https://[fe80::1]/push",
        "https://0.0.0.0/",
        "https://2130706433/push",
        "https://user:secret@example.com/push",
        "https://no-such-host.invalid/push",
        "https://[broken/push",
        "ftp://example.com/",
        "https:///push",
        "https://example.com/pu sh",
        "https://example.com/pu\tsh",
        " https://example.com/push",
        "https://example.com/пуш",
        "https://exam ple.com/push",
        "https://example..com/push",
        "https://example.com:0/push",
        "https://example.com:99999/push",
        "https://example.com/" + "a" * 2_000,
        "",
    ],
)
async def test_endpoints_inside_are_refused(endpoint: str) -> None:
    lookups = Lookups(1, "test")
    with pytest.raises(NotPublic):
        await check_endpoint(endpoint, USER, lookups)
    lookups.close()


async def test_a_name_that_leads_inside_later_is_not_connected_to(
    service: PushService, tmp_path: Path
) -> None:
    """It was allowed when it subscribed; what counts is where it leads at the moment of sending."""
    app = TestApp(home=tmp_path, vapid_private_key=KEY.private_text, vapid_subject=SUBJECT)
    app.notifications.serve()
    browser = service.subscribe(KEY.public_text, host="localhost")
    await channel(app).subscriptions.add(USER, BrowserSubscription.model_validate(browser.as_json()))
    message = job()
    await put(app, message)
    found = await delivery(app, message)
    assert found["status"] == "FAILED"
    assert "is not public" in found["last_error"]
    assert (service.asked, service.connections) == (0, 0)
    assert list(await channel(app).subscriptions.of(USER)) == []
    await app.close()


async def test_redirects_are_not_followed(app: TestApp, service: PushService) -> None:
    await subscribe(app, service)
    service.answers.append(Response(307, headers={"Location": f"{service.origin}/elsewhere"}))
    message = job()
    await put(app, message)
    found = await delivery(app, message)
    assert (found["status"], service.asked) == ("FAILED", 1)
    assert "refused the message: 307" in found["last_error"]


async def test_a_retry_after_may_be_a_date(app: TestApp, service: PushService) -> None:
    post = PushClient(app.clock, allows_private=True)
    service.answers.append(Response(429, b"slow down", {"Retry-After": "Thu, 01 Jan 2026 00:01:00 GMT"}))
    reply = await post.send(f"{service.origin}/push/x", {}, b"", "here")
    assert reply.retry_after is not None
    assert reply.retry_after.total_seconds() == 60
    await post.close()


# ── Over HTTP ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_page_subscribes_and_unsubscribes(
    app: TestApp, service: PushService, client: httpx2.AsyncClient
) -> None:
    key = (await client.get("/push/key")).json()["public_key"]
    assert key == KEY.public_text
    browser = service.subscribe(key)
    token = (await client.post(f"/api/v1/users/{USER}/token")).json()["token"]
    headers = {"Authorization": f"Bearer {token}"}
    place = f"/api/v1/users/{USER}/push"
    made = await client.post(place, json={**browser.as_json(), "device": "Firefox"}, headers=headers)
    assert made.status_code == 201, made.text
    again = await client.post(place, json=browser.as_json(), headers=headers)
    assert again.json()["id"] == made.json()["id"]
    listed = (await client.get(place, headers=headers)).json()
    assert [one["service"] for one in listed] == ["127.0.0.1"]
    assert "auth" not in str(listed)
    stranger = f"/api/v1/users/{uuid4()}/push"
    assert (await client.get(stranger, headers=headers)).status_code == 403
    gone = await client.delete(f"{place}/{made.json()['id']}", headers=headers)
    assert gone.status_code == 204
    assert (await client.delete(f"{place}/{made.json()['id']}", headers=headers)).status_code == 404


async def test_a_browser_belongs_to_whoever_signed_in_last(app: TestApp, service: PushService) -> None:
    browser = await subscribe(app, service)
    other = str(uuid4())
    await channel(app).subscribe(other, BrowserSubscription.model_validate(browser.as_json()))
    assert list(await channel(app).subscriptions.of(USER)) == []
    for _ in range(MOST_BROWSERS + 5):
        await subscribe(app, service)
    assert len(await channel(app).subscriptions.of(USER)) == MOST_BROWSERS


async def test_browsers_and_parts_are_kept_in_postgresql_too(
    postgres_database: Callable[[], Any], service: PushService
) -> None:
    database = Database(postgres_database().url, [Notifications.schema()])
    await database.migrate()
    clock = MovableClock()
    subscriptions, parts = Subscriptions(database, clock), Parts(database, clock)
    for _ in range(MOST_BROWSERS + 2):
        browser = service.subscribe(KEY.public_text)
        made = await subscriptions.add(USER, BrowserSubscription.model_validate(browser.as_json()))
        await clock.advance("1s")
    again = await subscriptions.add(USER, BrowserSubscription.model_validate(browser.as_json()))
    assert again.subscription_id == made.subscription_id
    assert len(await subscriptions.of(USER)) == MOST_BROWSERS
    assert await subscriptions.remove(made.subscription_id, user_id=USER)
    assert not await subscriptions.remove(made.subscription_id)
    await parts.note("job", made.subscription_id, "201")
    await parts.note("job", made.subscription_id, "201 again")
    assert await parts.arrived("job") == {made.subscription_id: "201"}
    await database.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"endpoint": "https://127.0.0.1/push"}, "not public"),
        ({"endpoint": "http://example.com/"}, "https"),
        ({"endpoint": "https://example.com/a b"}, "endpoint"),
        ({"endpoint": "https://example.com/пуш"}, "endpoint"),
        ({"keys": {"p256dh": encode(b"\x04" + b"\x01" * 64), "auth": encode(b"a" * 16)}}, "p256dh"),
        ({"keys": {"p256dh": KEY.public_text, "auth": encode(b"a" * 15)}}, "auth"),
        ({"keys": {"p256dh": "!!!", "auth": "?"}}, "base64url"),
        ({"keys": None}, "keys"),
    ],
)
async def test_a_subscription_that_can_not_be(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    app = TestApp(home=tmp_path, vapid_private_key=KEY.private_text, vapid_subject=SUBJECT)
    keys = {"p256dh": KEY.public_text, "auth": encode(b"a" * 16)}
    body = {"endpoint": "https://127.0.0.1/push", "keys": keys, **change}
    transport = httpx2.ASGITransport(create_app(app))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.post(f"/api/v1/users/{USER}/push", json=body)
    assert answer.status_code == 422
    assert said in answer.text
    await app.close()


async def test_without_a_key_the_page_is_told_what_is_missing(tmp_path: Path) -> None:
    app = TestApp(home=tmp_path)
    transport = httpx2.ASGITransport(create_app(app))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get("/push/key")
    assert answer.status_code == 404
    assert "yamchi doctor --make-vapid" in answer.json()["detail"]
    await app.close()
