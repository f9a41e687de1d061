"""SMS through Apprise and a real gateway: parts, refusals, outages, and answers that never came."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import httpx2
import pytest
import requests

from tests.notifications.conftest import USER
from tests.services.gateway import SECRET, Gateway
from tests.services.webserver import Response, WebService
from yamchi.errors import ConfigurationError, EngineUnavailable, Snooze, WrongState
from yamchi.notifications.channels import apprise, bounded_requests
from yamchi.notifications.channels.apprise import AppriseChannel
from yamchi.notifications.channels.base import AnswerLost, Message, Recipient
from yamchi.notifications.channels.sms_parts import size_of
from yamchi.notifications.people.recipients import User
from yamchi.notifications.schemas.notification_job import NotificationJob
from yamchi.notifications.settings import NotificationSettings
from yamchi.notifications.templates.model import Rendered
from yamchi.queues.job import Job
from yamchi.queues.records import State
from yamchi.settings import Settings
from yamchi.testing import TestApp
from yamchi.web import create_app

PHONE = "+77010000000"


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as gateway:
        yield gateway


@pytest.fixture
async def app(gateway: Gateway, tmp_path: Path) -> AsyncIterator[TestApp]:
    app = TestApp(home=tmp_path, sms_url=gateway.url)
    app.notifications.serve()
    await app.notifications.recipients.put(USER, User(phone="+7 (701) 000-00-00", locale="ru"))
    yield app
    await app.close()


async def send(app: TestApp, **fields: Any) -> dict[str, Any]:
    """Queue one SMS, let it go, and say what became of it."""
    given = {
        "job_id": str(uuid4()),
        "user_id": USER,
        "channel": "sms",
        "template_code": "payment_failed",
        "locale": "ru",
        "data": {"amount": "12990.00"},
        "meta": {"event_type": "payment.canceled", "event_id": "e-1"},
        "created_at": "2025-11-14T12:35:10Z",
    }
    job = NotificationJob.model_validate({**given, **fields})
    await app.notifications.service.send([job])
    await app.drain()
    return await app.notifications.deliveries.get(job.delivery_id)


async def test_an_sms_is_sent_and_its_parts_are_counted(app: TestApp, gateway: Gateway) -> None:
    found = await send(app)
    ((number, text),) = gateway.taken
    assert number == PHONE
    assert "12" in text
    assert found["status"] == "SENT"
    assert found["provider_message_id"] == str(size_of(text))
    assert "UCS-2" in found["provider_message_id"]


async def test_a_lost_answer_is_left_to_a_person(app: TestApp, gateway: Gateway) -> None:
    gateway.answers.append(0)
    found = await send(app)
    await app.clock.advance("24h")
    assert (await app.notifications.deliveries.get(found["job_id"]))["status"] == "UNKNOWN"
    assert len(gateway.taken) == 1
    assert "answer was lost" in found["last_error"]


async def test_what_is_left_to_a_person_is_not_sent_by_a_job_that_comes_again(
    app: TestApp, gateway: Gateway
) -> None:
    """As when its worker was killed after the delivery was written and before the job was settled."""
    gateway.answers.append(0)
    found = await send(app)
    assert await app.queue("notifications").retry([found["job_id"]]) == [found["job_id"]]
    await app.drain()
    assert len(gateway.taken) == 1
    assert (await app.notifications.deliveries.get(found["job_id"]))["status"] == "UNKNOWN"


REFUSE_SENT = """CREATE TRIGGER refuse BEFORE UPDATE ON notification_delivery WHEN NEW.status = 'SENT'
    BEGIN SELECT RAISE(ABORT, 'the table takes no SENT'); END"""


async def execute(app: TestApp, statement: str) -> None:
    await app.database.write(lambda connection: connection.exec_driver_sql(statement).rowcount)


async def test_what_was_taken_but_could_not_be_recorded_is_left_to_a_person(
    app: TestApp, gateway: Gateway
) -> None:
    await execute(app, REFUSE_SENT)
    found = await send(app)
    await app.clock.advance("24h")
    await execute(app, "DROP TRIGGER refuse")
    await app.queue("notifications").retry_all("failed")
    await app.clock.advance("24h")
    found = await app.notifications.deliveries.get(found["job_id"])
    assert len(gateway.taken) == 1
    assert found["status"] == "UNKNOWN"
    assert "may have taken it" in found["last_error"]


async def test_of_two_workers_that_have_the_same_job_one_sends(app: TestApp, gateway: Gateway) -> None:
    """As when the first was taken for dead, and is only slow."""
    second: list[State] = []

    class Slow(apprise.SmsChannel):
        async def send(self, message: Message) -> str | None:
            job = await app.queue("notifications").job(message.job_id)
            with pytest.raises(Snooze, match="another worker"):
                await app.notifications.processor.handle_job(
                    Job(job.queue, job.record, data=NotificationJob.model_validate(job.data))
                )
            second.append(job.state)
            return await super().send(message)

    app.notifications.register(Slow(gateway.url))
    assert (await send(app))["status"] == "SENT"
    assert (second, len(gateway.taken)) == (["active"], 1)


async def test_what_is_cancelled_at_the_last_moment_is_not_sent(app: TestApp, gateway: Gateway) -> None:
    processor = app.notifications.processor
    check = processor._check_again

    async def cancel(context: Any) -> Any:
        over = await check(context)
        await app.notifications.service.cancel(context.job.delivery_id)
        return over

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processor, "_check_again", cancel)
        found = await send(app)
    assert (found["status"], gateway.taken) == ("CANCELLED", [])


async def test_what_is_being_sent_is_not_decided_about(app: TestApp, gateway: Gateway) -> None:
    unknown, refused = app.notifications.unknown_deliveries, []

    class Hasty(apprise.SmsChannel):
        async def send(self, message: Message) -> str | None:
            for decide in (unknown.mark_sent, unknown.send_again):
                with pytest.raises(WrongState, match="being sent") as refusal:
                    await decide(message.job_id)
                refused.append(refusal)
            return await super().send(message)

    app.notifications.register(Hasty(gateway.url))
    assert (await send(app))["status"] == "SENT"
    assert len(refused) == 2


async def test_what_its_channel_puts_off_is_sent_later(app: TestApp, gateway: Gateway) -> None:
    class Busy(apprise.SmsChannel):
        answers: ClassVar = [Snooze("1m", "ten requests wait already")]

        async def send(self, message: Message) -> str | None:
            if self.answers:
                raise self.answers.pop()
            return await super().send(message)

    app.notifications.register(Busy(gateway.url))
    found = await send(app)
    assert (found["status"], found["attempts"]) == ("QUEUED", 0)
    assert found["last_error"] == "ten requests wait already"
    await app.clock.advance("1m")
    assert (await app.notifications.deliveries.get(found["job_id"]))["status"] == "SENT"
    assert len(gateway.taken) == 1


async def test_only_what_became_of_a_message_is_counted(app: TestApp) -> None:
    await send(app)
    assert dict(app.notifications.counters.deliveries) == {("sms", "SENT"): 1}


@pytest.mark.parametrize(("decision", "sent"), [("confirm", 1), ("resend", 2)])
async def test_a_person_decides(app: TestApp, gateway: Gateway, decision: str, sent: int) -> None:
    gateway.answers.append(0)
    found = await send(app)
    transport = httpx2.ASGITransport(create_app(app))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        place = f"/api/v1/notifications/{found['job_id']}/{decision}"
        assert (await client.post(place)).status_code == 204
        await app.drain()
        assert (await client.post(place)).status_code == 409
    assert (await app.notifications.deliveries.get(found["job_id"]))["status"] == "SENT"
    assert len(gateway.taken) == sent


async def test_a_decision_that_did_not_reach_the_queue_can_be_made_again(
    app: TestApp, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_jobs: Any) -> None:
        raise EngineUnavailable("The queue can't be reached.")

    gateway.answers.append(0)
    found = await send(app)
    with monkeypatch.context() as away:
        away.setattr(app.notifications.queue, "add_prepared", refuse)
        with pytest.raises(EngineUnavailable):
            await app.notifications.unknown_deliveries.send_again(found["job_id"])
    await app.notifications.unknown_deliveries.send_again(found["job_id"])
    await app.drain()
    assert (await app.notifications.deliveries.get(found["job_id"]))["status"] == "SENT"
    assert len(gateway.taken) == 2


async def test_what_is_known_is_not_decided_about(app: TestApp) -> None:
    found = await send(app)
    with pytest.raises(WrongState, match="is SENT, not UNKNOWN"):
        await app.notifications.unknown_deliveries.send_again(found["job_id"])


async def test_a_refusal_is_final(app: TestApp, gateway: Gateway) -> None:
    gateway.answers.append(400)
    found = await send(app)
    assert (found["status"], found["attempts"]) == ("FAILED", 1)
    assert "error=400" in found["last_error"]
    assert gateway.taken == []


@pytest.mark.parametrize("status", [401, 429, 503])
async def test_trouble_of_the_gateway_costs_no_attempt(app: TestApp, gateway: Gateway, status: int) -> None:
    gateway.answers.append(status)
    found = await send(app)
    assert (found["status"], found["attempts"]) == ("RETRYING", 0)
    await app.clock.advance("1m")
    found = await app.notifications.deliveries.get(found["job_id"])
    assert (found["status"], found["attempts"]) == ("SENT", 1)


async def test_a_gateway_that_is_away(
    app: TestApp, gateway: Gateway, capfd: pytest.CaptureFixture[str]
) -> None:
    gateway.stop()
    found = await send(app)
    assert found["status"] == "RETRYING"
    assert "can't be reached" in found["last_error"]
    assert SECRET not in found["last_error"] + "".join(capfd.readouterr())
    gateway.start()
    await app.clock.advance("1m")
    assert (await app.notifications.deliveries.get(found["job_id"]))["status"] == "SENT"


@pytest.mark.parametrize("phone", ["call me", "+7", "12345678901234567890"])
async def test_a_number_that_is_none(app: TestApp, gateway: Gateway, phone: str) -> None:
    await app.notifications.recipients.put(USER, User(phone=phone))
    found = await send(app)
    assert found["status"] == "FAILED"
    assert "is not a phone number" in found["last_error"]
    assert gateway.taken == []


async def test_a_url_that_apprise_does_not_know(tmp_path: Path) -> None:
    app = TestApp(home=tmp_path, sms_url="nosuch://secret-token/{to}")
    app.notifications.serve()
    await app.notifications.recipients.put(USER, User(phone=PHONE))
    found = await send(app)
    assert found["status"] == "RETRYING"
    assert "Apprise can't read the nosuch:// URL" in found["last_error"]
    assert "secret-token" not in found["last_error"]
    await app.close()


async def test_anything_that_apprise_knows_is_a_channel(app: TestApp, gateway: Gateway) -> None:
    pager = AppriseChannel("pager", gateway.url, lambda who: who.attributes.get("pager"))
    app.notifications.register(pager)
    assert pager.address(Recipient(attributes={"pager": "room-7"})) == "room-7"
    await pager.send(Message("1", "room-7", Rendered("Hello")))
    await pager.send(Message("2", "room-7", Rendered("Come", title="Fire")))
    assert gateway.taken == [("room-7", "Hello"), ("room-7", "Come")]
    assert gateway.titles == ["", "Fire"]


@pytest.mark.parametrize("url", ["twilio://SID:TOKEN@FROM", "no url {to}"])
def test_a_setting_that_can_not_be(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"SMS_URL.*where the number goes") as refused:
        Settings(sms_url=url).of(NotificationSettings)
    assert "TOKEN" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "encoding", "length", "parts"),
    [
        ("a" * 160, "GSM-7", 160, 1),
        ("a" * 161, "GSM-7", 161, 2),
        ("a" * 306, "GSM-7", 306, 2),
        ("a" * 307, "GSM-7", 307, 3),
        ("€" * 80, "GSM-7", 160, 1),
        ("a" * 152 + "€" * 5, "GSM-7", 162, 2),
        ("a" * 152 + "€" + "a" * 152, "GSM-7", 306, 3),
        ("я" * 70, "UCS-2", 70, 1),
        ("я" * 71, "UCS-2", 71, 2),
        ("я" * 135, "UCS-2", 135, 3),
        ("😀" * 36, "UCS-2", 72, 2),
        ("я" * 66 + "😀" + "я" * 66, "UCS-2", 134, 3),
        ("", "GSM-7", 0, 1),
    ],
)
def test_parts(text: str, encoding: str, length: int, parts: int) -> None:
    size = size_of(text)
    assert (size.encoding, size.length, size.parts) == (encoding, length, parts)


async def test_a_gateway_whose_answer_drips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time; the message's slot is free after the deadline all the same."""
    monkeypatch.setattr(apprise, "DEADLINE_SECONDS", 0.5)
    over = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while not over.is_set():
            writer.write(b"x")
            await asyncio.sleep(0.02)
        writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    channel = apprise.SmsChannel(f"json://127.0.0.1:{server.sockets[0].getsockname()[1]}/{{to}}")
    try:
        with pytest.raises(AnswerLost, match=r"longer than 0\.5 s"):
            await channel.send(Message("j", "+77010000001", Rendered("hello")))
    finally:
        over.set()  # ends the thread, which nobody can stop
        server.close()
        await channel.close()


@pytest.mark.parametrize("pause", [0.0, 0.02])
async def test_a_gateway_whose_answer_has_no_end(pause: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fast or slow: the status counts, the body is cut, and the connection is closed."""
    monkeypatch.setattr(bounded_requests, "BODY_DEADLINE_SECONDS", 0.5)
    is_closed, written = asyncio.Event(), 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 1_024)
                await writer.drain()
                written += 1_024
                await asyncio.sleep(pause)
        except ConnectionError:
            is_closed.set()

    server = await asyncio.start_server(pour, "127.0.0.1", 0)
    channel = apprise.SmsChannel(f"json://127.0.0.1:{server.sockets[0].getsockname()[1]}/{{to}}")
    try:
        await channel.send(Message("j", "+77010000001", Rendered("hello")))
        await asyncio.wait_for(is_closed.wait(), 20)
        assert written < 64 * bounded_requests.MAX_BODY_BYTES, (
            "what the buffers of the system take, and no more"
        )
    finally:
        server.close()
        await channel.close()


def test_other_users_of_requests_read_whole_answers() -> None:
    class Large(WebService):
        def respond(self, path: str, headers: dict[str, str], body: bytes) -> Response:
            return Response(200, b"x" * 300_000, {})

    with Large() as service:
        with bounded_requests.bounded_answers():
            assert len(requests.post(service.origin, timeout=10).content) == bounded_requests.MAX_BODY_BYTES
        assert len(requests.post(service.origin, timeout=10).content) == 300_000
