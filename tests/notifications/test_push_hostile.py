"""Endpoints that people chose badly, or on purpose: what they do is theirs alone."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.notifications.conftest import USER
from tests.notifications.test_push import KEY, SUBJECT, app, channel, delivery, job, put, service, subscribe
from tests.processes import Process
from tests.services.push import PushService
from tests.services.webserver import Response
from yamchi.clock import to_millis
from yamchi.notifications.channels.base import AnswerLost
from yamchi.notifications.channels.circuits import SOURCES_TO_OPEN
from yamchi.notifications.channels.push import client as push_client
from yamchi.notifications.channels.push import endpoints
from yamchi.notifications.channels.push.client import MAX_ANSWER_BYTES, BadEndpoint, PushClient
from yamchi.notifications.channels.push.endpoints import NotFound, NotPublic, is_public
from yamchi.notifications.channels.push.subscriptions import BrowserSubscription
from yamchi.testing import MovableClock, TestApp, eventually

__all__ = ["app", "service"]

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    """Something that listens and says what it likes; its address."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield f"http://{host}:{port}/push"
    finally:
        server.close()


@asynccontextmanager
async def push_client_for_tests() -> AsyncIterator[PushClient]:
    client = PushClient(MovableClock(), allows_private=True)
    try:
        yield client
    finally:
        await client.close()


# ── Addresses ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("142.250.74.42", True),
        ("8.8.8.8", True),
        ("0.0.0.0", False),
        ("0.1.2.3", False),
        ("10.0.0.8", False),
        ("100.64.0.1", False),
        ("100.127.255.255", False),
        ("100.128.0.1", True),
        ("127.0.0.1", False),
        ("127.255.0.1", False),
        ("169.254.169.254", False),
        ("172.16.0.1", False),
        ("172.31.255.255", False),
        ("172.32.0.1", True),
        ("192.0.0.8", False),
        ("192.0.0.170", False),
        ("192.0.2.1", False),
        ("192.88.99.1", False),
        ("192.168.1.1", False),
        ("198.18.0.1", False),
        ("198.51.100.1", False),
        ("203.0.113.1", False),
        ("224.0.0.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("2a00:1450:400f:80d::200a", True),
        ("2606:4700::1111", True),
        ("::", False),
        ("::1", False),
        ("::127.0.0.1", False),
        ("::8.8.8.8", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("::ffff:0:127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("64:ff9b::808:808", True),
        ("64:ff9b:1::1", False),
        ("64:ff9b:1:ffff::808:808", False),
        ("100::1", False),
        ("2001::1", False),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", False),
        ("2001:2::1", False),
        ("2001:10::1", False),
        ("2001:20::1", False),
        ("2001:db8::1", False),
        ("2002:7f00:1::", False),
        ("2002:c0a8:101::1", False),
        ("2002:808:808::1", True),
        ("3fff::1", False),
        ("4000::1", False),
        ("5f00::1", False),
        ("fc00::1", False),
        ("fd12:3456::1", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
        ("fec0::1", False),
        ("feff::1", False),
        ("ff02::1", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public


async def test_a_slow_name_server_delays_only_who_chose_it(
    service: PushService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, asked = threading.Event(), []

    def ask(host: str, _port: int) -> list[str]:
        if host.endswith("slow.example"):
            asked.append(host)
            answers.wait(60)
        return ["127.0.0.1"]

    monkeypatch.setattr(endpoints, "_ask_name_server", ask)
    monkeypatch.setattr(endpoints, "LOOKUP_SECONDS", 0.2)
    keys = {"vapid_private_key": KEY.private_text, "vapid_subject": SUBJECT}
    async with TestApp(home=tmp_path, **keys) as app:
        push = channel(app)
        given = service.subscribe(push.public_key).as_json()

        def browser(host: str) -> BrowserSubscription:
            return BrowserSubscription.model_validate({**given, "endpoint": f"https://{host}/push"})

        slow = [push.subscribe(USER, browser(f"{number}.slow.example")) for number in range(20)]
        refused = await asyncio.gather(*slow, return_exceptions=True)
        assert {type(error) for error in refused} == {NotFound}
        assert len(asked) == 1, "one thread"
        with pytest.raises(NotPublic, match="not public"):
            await push.subscribe(str(uuid4()), browser("inside.example"))
        others = [push.subscribe(str(uuid4()), browser(f"{number}.slow.example")) for number in range(20)]
        await asyncio.gather(*others, return_exceptions=True)
        with pytest.raises(BadEndpoint, match="not public"):  # those who send have threads of their own
            await push._client.send("https://inside.example/push", {}, b"", "inside.example")
        answers.set()
        async with asyncio.timeout(60):
            while push._lookups._under_way:
                await asyncio.wait(push._lookups._under_way.values())
        with pytest.raises(NotPublic, match="not public"):
            await push.subscribe(USER, browser("1.slow.example"))


# ── Answers ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_endless_answer_is_read_for_a_kilobyte() -> None:
    sent, gone = 0, asyncio.Event()

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 410 Gone\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while sent < 600_000_000:
                writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
                await writer.drain()
                sent += 65_536
        except ConnectionError:
            gone.set()

    async with serving(pour) as url, push_client_for_tests() as client:
        reply = await client.send(url, {}, b"sealed", "here")
        async with asyncio.timeout(10):
            await gone.wait()
    assert reply.status == 410
    assert len(reply.text) <= MAX_ANSWER_BYTES
    assert sent < 20_000_000, "more was taken than a socket's buffers hold"


async def test_a_status_counts_though_the_rest_drips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_client, "BODY_DEADLINE_SECONDS", 0.3)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 1000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.02)

    async with serving(drip) as url, push_client_for_tests() as client, asyncio.timeout(10):
        assert (await client.send(url, {}, b"sealed", "here")).status == 201


@pytest.mark.parametrize(
    "piece", [b"HTTP/1.1 201 Created\r\nX-Slow: ", b"HTTP/1.1 102 Processing\r\n\r\n", b""]
)
async def test_an_answer_that_never_comes_has_a_deadline(
    piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time; only all of them together do not."""
    monkeypatch.setattr(push_client, "DEADLINE_SECONDS", 0.5)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(piece or b"x")
            piece_again = b"y" if piece.startswith(b"HTTP/1.1 201") else piece
            await asyncio.sleep(0.02)
            writer.write(piece_again)

    async with serving(drip) as url, push_client_for_tests() as client, asyncio.timeout(10):
        with pytest.raises(AnswerLost):
            await client.send(url, {}, b"sealed", "here")


@pytest.mark.parametrize(
    "retry_after", ["9" * 5_000, "999999999999", "Fri, 31 Dec 9999 23:59:59 GMT", "soon", "-1", "٣"]
)
async def test_a_retry_after_is_bounded(service: PushService, retry_after: str) -> None:
    async with push_client_for_tests() as client:
        service.answers.append(Response(503, b"", {"Retry-After": retry_after.encode().decode("latin-1")}))
        reply = await client.send(f"{service.origin}/push/x", {}, b"", "here")
    assert reply.status == 503
    assert to_millis(reply.retry_after or 0) <= 15 * 60_000


# ── Whose trouble it is ───────────────────────────────────────────────────────────────────────────────────────────


async def open_circuits(app: TestApp) -> list[str]:
    return [one.name for one in await app.notifications.circuits.all() if one.is_open]


async def test_an_endpoint_that_can_not_be_written_to_is_forgotten_and_hurts_nobody(
    app: TestApp, service: PushService
) -> None:
    """As one that was remembered before endpoints were looked at."""
    bad = service.subscribe(channel(app).public_key)
    good = BrowserSubscription.model_validate(bad.as_json())
    broken = good.model_copy(update={"endpoint": f"{service.origin}/push/a b"})
    await channel(app).subscriptions.add(USER, broken)
    neighbor = str(uuid4())
    reached = await subscribe(app, service, neighbor)
    first, second = job(), job(user_id=neighbor)
    await put(app, first, second)
    assert (await delivery(app, first))["status"] == "FAILED"
    assert (await delivery(app, second))["status"] == "SENT"
    assert len(service.to(reached)) == 1
    assert await open_circuits(app) == []
    assert list(await channel(app).subscriptions.of(USER)) == []


async def test_one_browser_in_trouble_waits_alone(app: TestApp, service: PushService) -> None:
    await subscribe(app, service)
    messages = [job() for _ in range(5)]
    for message in messages:
        service.answers.append(Response(503, b"only for you"))
        await put(app, message)
    found = await delivery(app, messages[0])
    assert (found["status"], found["attempts"]) == ("RETRYING", 0)
    assert service.asked == 1, "its other messages wait without being tried"
    assert await open_circuits(app) == []
    service.answers.clear()
    neighbor = str(uuid4())
    reached = await subscribe(app, service, neighbor)
    await put(app, job(user_id=neighbor))
    assert len(service.to(reached)) == 1
    await app.clock.advance("10m")
    assert {(await delivery(app, message))["status"] for message in messages} == {"SENT"}


async def test_several_in_trouble_are_an_outage(app: TestApp, service: PushService) -> None:
    people = [str(uuid4()) for _ in range(SOURCES_TO_OPEN)]
    for person in people:
        await subscribe(app, service, person)
        assert await open_circuits(app) == []
        service.answers.append(Response(503, b"down"))
        await put(app, job(user_id=person))
    assert await open_circuits(app) == [f"push:127.0.0.1:{service.port}"]
    await app.clock.advance("10m")
    assert await open_circuits(app) == []
    assert len(service.log) == SOURCES_TO_OPEN


async def test_a_success_in_between_clears_the_service(app: TestApp, service: PushService) -> None:
    neighbor = str(uuid4())
    await subscribe(app, service, neighbor)
    for person in [str(uuid4()) for _ in range(SOURCES_TO_OPEN + 1)]:
        await subscribe(app, service, person)
        service.answers.append(Response(500, b"only for you"))
        await put(app, job(user_id=person))
        await put(app, job(user_id=neighbor))
    assert await open_circuits(app) == []
    assert len(service.log) == SOURCES_TO_OPEN + 1


async def test_a_name_server_that_is_away_costs_nobody_their_subscription(
    service: PushService, tmp_path: Any
) -> None:
    app = TestApp(home=tmp_path, vapid_private_key=KEY.private_text, vapid_subject=SUBJECT)
    app.notifications.serve()
    browser = service.subscribe(KEY.public_text, host="no-such-host.invalid")
    await channel(app).subscriptions.add(USER, BrowserSubscription.model_validate(browser.as_json()))
    message = job()
    await put(app, message)
    found = await delivery(app, message)
    assert (found["status"], found["attempts"]) == ("RETRYING", 0)
    assert len(await channel(app).subscriptions.of(USER)) == 1
    await app.close()


# ── In a running process ──────────────────────────────────────────────────────────────────────────────────────────

SLOTS = 10
"""Of the queue `notifications`."""


async def test_dripping_endpoints_keep_no_letter_waiting(own_home: Path) -> None:
    """Twice as many messages as there are slots go to endpoints that answer a byte at a time; then comes a letter."""
    open_now = 0

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now
        open_now += 1
        writer.write(b"HTTP/1.1 201 Created\r\nX-Slow: ")
        with suppress(ConnectionError):
            while True:
                writer.write(b"y")
                await writer.drain()
                await asyncio.sleep(0.05)
        open_now -= 1

    settings = {"VAPID_PRIVATE_KEY": KEY.private_text, "VAPID_SUBJECT": SUBJECT, "PUSH_ALLOW_PRIVATE": "true"}
    process = Process(own_home, "up", "--port", "0", **settings)
    try:
        async with serving(drip) as endpoint:
            base = f"{await asyncio.to_thread(lambda: process.url)}/api/v1"
            async with httpx2.AsyncClient(base_url=base, timeout=60) as client:
                people = [str(uuid4()) for _ in range(2 * SLOTS)]
                for number, person in enumerate(people):
                    keys = PushService().subscribe(KEY.public_text).as_json()["keys"]
                    browser = {"endpoint": f"{endpoint}/{number}", "keys": keys}
                    made = await client.post(f"/users/{person}/push", json=browser)
                    assert made.status_code == 201, made.text
                    sent = await client.post("/notifications", json=job(user_id=person))
                    assert sent.status_code == 202, sent.text
                await eventually(lambda: open_now >= SLOTS, 60)
                reader = str(uuid4())
                await client.put(f"/users/{reader}", json={"email": "a@example.com", "locale": "en"})
                letter = job(user_id=reader, channel="email")
                await client.post("/notifications", json=letter)

                async def is_sent() -> bool:
                    found = (await client.get(f"/notifications/{letter['job_id']}")).json()
                    return bool(found["status"] == "SENT")

                await eventually(is_sent, 15)
                assert open_now >= SLOTS, "the letter went while they were dripping"
    finally:
        process.process.kill()
        process.process.wait()
