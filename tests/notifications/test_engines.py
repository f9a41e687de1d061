"""The welcome e-mail, end to end, on every engine: written by a producer that is not ours, read at a real mail server."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.notifications.conftest import USER
from tests.services.mail import MailServer
from yamchi import Yamchi
from yamchi.notifications.people.recipients import User
from yamchi.queues.records import NewJob, new_id
from yamchi.settings import Settings
from yamchi.testing import eventually

Produce = Callable[[bytes], Awaitable[None]]
ADDRESS = "nurzhan@example.com"


def _with_new_id(message: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**message, "job_id": str(uuid4()), **changes}


async def _through_queue(app: Yamchi, payload: bytes) -> None:
    """For engines without a wire format of their own: the payload alone, under an id of the broker's."""
    await app.notifications.queue.engine.add("notifications", [NewJob(new_id(0), "send", payload)])


async def _through_sql(url: str, payload: bytes) -> None:
    import psycopg

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("SELECT pgmq.send('notifications', %s::jsonb)", [payload.decode()])


async def _through_kafka(bootstrap: str, payload: bytes) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("notifications.outbox", payload, key=USER)
    assert await asyncio.to_thread(producer.flush, 20) == 0


ENGINES = ["sqlite", *(pytest.param(name, marks=pytest.mark.services) for name in ("bull", "pgmq", "kafka"))]


@pytest.fixture(params=ENGINES)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    match request.param:
        case "bull":
            url = request.getfixturevalue("redis_url")
        case "pgmq":
            url = request.getfixturevalue("postgres_database")().url
        case "kafka":
            server = await asyncio.to_thread(request.getfixturevalue("private_kafka"))
            url = f"kafka://{server.url}"
        case _:
            url = f"sqlite:///{tmp_path}/jobs.db"
    return request.param, url


@pytest.fixture
async def app(engine: tuple[str, str], mail_server: MailServer, tmp_path: Path) -> AsyncIterator[Yamchi]:
    settings = Settings(
        home=tmp_path,
        default_queue_url=engine[1],
        smtp_host=mail_server.host,
        smtp_port=mail_server.port,
        smtp_security="none",
        lease=timedelta(seconds=5),
    )
    async with Yamchi(settings) as app:
        app.define("notifications", backoff="200ms")
        app.notifications.serve()
        await app.notifications.recipients.put(USER, User(email=ADDRESS, locale="ru"))
        worker = app.worker()
        working = asyncio.create_task(worker.run())
        yield app
        worker.stop()
        await working


@pytest.fixture
async def produce(app: Yamchi, engine: tuple[str, str]) -> Produce:
    name, url = engine
    await app.notifications.queue.stats()  # the queue exists
    if name == "pgmq":
        return lambda payload: _through_sql(url, payload)
    if name == "kafka":
        return lambda payload: _through_kafka(url.removeprefix("kafka://"), payload)
    return lambda payload: _through_queue(app, payload)


async def test_the_whole_contract(
    app: Yamchi, produce: Produce, mail_server: MailServer, welcome: dict[str, Any], engine: tuple[str, str]
) -> None:
    async def send(message: dict[str, Any]) -> None:
        await produce(json.dumps(message).encode())

    async def reaches(message: dict[str, Any], status: str) -> None:
        async def is_there() -> bool:
            return await app.notifications.deliveries.status(message["job_id"]) == status

        await eventually(is_there, within=30)

    await send(welcome)
    await reaches(welcome, "SENT")
    assert mail_server.by_recipient() == {ADDRESS: 1}

    for _ in range(2):
        await send(welcome)
    marker = _with_new_id(welcome)
    await send(marker)
    await reaches(marker, "SENT")
    await eventually(lambda: _is_quiet(app))
    assert len([1 for _, letter in mail_server.letters if welcome["job_id"] in letter["Message-ID"]]) == 1

    homeless = _with_new_id(welcome, user_id=str(uuid4()))
    expired = _with_new_id(welcome, expires_at="2025-11-14T12:35:11Z")
    send_after = datetime.now(UTC) + timedelta(seconds=3)
    later = _with_new_id(welcome, send_after=send_after.isoformat())
    for message in (homeless, expired, later):
        await send(message)
    await reaches(homeless, "FAILED")
    await reaches(expired, "EXPIRED")
    status = await app.notifications.deliveries.status(later["job_id"])
    assert status != "SENT" or datetime.now(UTC) >= send_after, "a busy machine may take longer to come here"
    await reaches(later, "SENT")
    sent = await app.notifications.deliveries.get(later["job_id"])
    assert datetime.fromisoformat(sent["sent_at"]) >= send_after

    mail_server.answers.extend(["451 later", "451 later"])
    stubborn = _with_new_id(welcome)
    await send(stubborn)
    await reaches(stubborn, "SENT")
    timeline = (await app.notifications.deliveries.get(stubborn["job_id"]))["timeline"]
    assert [step["what"] for step in timeline] == ["queued", "retryable", "retryable", "sent"]

    mail_server.refusals[ADDRESS] = "550 no such user"
    refused = _with_new_id(welcome)
    await send(refused)
    await reaches(refused, "FAILED")

    if engine[0] != "pgmq":  # whose column takes nothing but JSON
        await produce(b"{...invalid json...}")

    async def buried() -> bool:
        return (await app.notifications.dead_letters.list())["total"] == (2 if engine[0] == "pgmq" else 3)

    await eventually(buried, within=30)
    found = (await app.notifications.dead_letters.list())["letters"]
    errors = {letter["error_message"] for letter in found}
    assert {"User has no email", "550 no such user"} <= errors
    if engine[0] != "pgmq":
        (broken,) = [letter for letter in found if "raw_value" in letter]
        assert broken["raw_value"] == "{...invalid json...}"
        assert broken["error_message"] == "Invalid JSON in Kafka message"


async def _is_quiet(app: Yamchi) -> bool:
    stats = await app.notifications.queue.stats()
    return stats["waiting"] == stats["delayed"] == stats["active"] == 0
