"""Another program on the same topics: kcat and a plain client write and read, and neither knows of Yamchi."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from tests.services.missing import required
from yamchi.app import Yamchi
from yamchi.clock import SystemClock
from yamchi.errors import Unrecoverable
from yamchi.queues.job import Job
from yamchi.queues.records import new_id
from yamchi.settings import Settings
from yamchi.testing import eventually
from yamchi.testing.conformance.worker import working

confluent_kafka = pytest.importorskip("confluent_kafka")
kafka = pytest.importorskip("yamchi.queues.engines.kafka")

pytestmark = pytest.mark.interop

SEED = {
    "job_id": "b7b6d21e-6d7e-4d2b-9c53-0f6f3c8e2a11",
    "user_id": "0c9c2f5e-0d3a-4c6b-8a44-0f7a0c1d2e33",
    "channel": "email",
    "template_code": "new_film_recommendation",
    "locale": "ru",
    "data": {"film_title": "Интерстеллар", "rating": 8.6},
    "meta": {"event_type": "new_film", "event_id": "e-1", "campaign_id": None, "priority": "normal"},
    "created_at": "2025-11-21T12:00:00Z",
    "send_after": None,
    "expires_at": None,
}


class Letter(BaseModel):
    to: str


@pytest.fixture
async def app(kafka_bootstrap: str, tmp_path: Path) -> AsyncIterator[Yamchi]:
    topic = "topic.notifications=notifications.outbox"
    address = kafka.Address.parse(f"kafka://{kafka_bootstrap}?group=g-{new_id(0)[-12:]}&{topic}")
    app = Yamchi(
        Settings(home=tmp_path, plugins=()),
        engine=kafka.KafkaEngine(address, tmp_path / "state.db", SystemClock()),
    )
    yield app
    await app.close()


@pytest.fixture
def queue() -> str:
    return f"letters-{new_id(0)[-16:]}"


@pytest.fixture
def read_topic(kafka_bootstrap: str) -> Callable[[str, int], Any]:
    """So many messages of a topic from its beginning, by a client that has nothing to do with Yamchi."""

    def read(topic: str, count: int) -> list[Any]:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": kafka_bootstrap, "group.id": new_id(0), "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([topic])
        try:
            return list(consumer.consume(count, timeout=20))
        finally:
            consumer.close()

    return read


async def kcat(bootstrap: str, topic: str, *lines: bytes) -> None:
    process = await asyncio.create_subprocess_exec(
        required("kcat"), "-P", "-b", bootstrap, "-t", topic, stdin=asyncio.subprocess.PIPE
    )
    await process.communicate(b"\n".join(lines) + b"\n")
    assert process.returncode == 0


async def test_the_seeds_message_written_by_kcat_is_a_notification(app: Yamchi, kafka_bootstrap: str) -> None:
    seen: dict[str, Any] = {}

    @app.job("notifications")
    async def send(job: Job[dict[str, Any]]) -> str:
        seen[job.id] = job.data
        return job.data["channel"]

    target = app.queue("notifications")
    await target.stats()  # makes the topics
    await kcat(kafka_bootstrap, "notifications.outbox", orjson.dumps(SEED))
    async with working(app):
        await eventually(lambda: seen)
        done = await eventually(lambda: _finished(target, SEED["job_id"]))
    assert seen == {SEED["job_id"]: SEED}
    assert (done.state, done.returned) == ("completed", "email")


async def test_what_is_not_json_lands_among_the_dead_letters_and_blocks_nobody(
    app: Yamchi, queue: str, kafka_bootstrap: str, read_topic: Callable[[str, int], Any]
) -> None:
    seen: list[str] = []

    @app.job(queue)
    async def post(job: Job[Letter]) -> None:
        seen.append(job.data.to)

    target = app.queue(queue)
    await target.stats()
    await kcat(
        kafka_bootstrap, queue, b'{"to":"first"}', b'{"to": broken', b'{"from":"nobody"}', b'{"to":"last"}'
    )
    async with working(app):
        await eventually(lambda: sorted(seen) == ["first", "last"])
        await eventually(lambda: _letters(target, 2))
    bodies = [
        orjson.loads(message.value()) for message in await asyncio.to_thread(read_topic, f"{queue}.dlq", 2)
    ]
    unparseable = next(body for body in bodies if body["raw_value"] == '{"to": broken')
    assert unparseable.keys() == {"raw_value", "error_message", "failed_at"}
    assert unparseable["error_message"] == "Invalid JSON in Kafka message"
    assert unparseable["failed_at"].endswith("Z")
    (misshapen,) = [body for body in bodies if body is not unparseable]
    assert misshapen["raw_value"] == '{"from":"nobody"}'


async def test_a_used_up_job_lands_on_the_dead_letter_topic_whole(
    app: Yamchi, queue: str, read_topic: Callable[[str, int], Any]
) -> None:
    @app.job(queue)
    async def post(job: Job[dict[str, Any]]) -> None:
        raise Unrecoverable("User has no email")

    await app.queue(queue).add(SEED, id="u-1")
    async with working(app):
        await eventually(lambda: _letters(app.queue(queue), 1))
        (message,) = await asyncio.to_thread(read_topic, f"{queue}.dlq", 1)
    body = orjson.loads(message.value())
    assert (body["job"], body["error_message"]) == (SEED, "User has no email")
    assert message.key() == b"u-1"


async def test_what_yamchi_writes_is_plain_json_with_the_user_as_key(
    app: Yamchi, queue: str, read_topic: Callable[[str, int], Any]
) -> None:
    app.define(queue)
    await app.queue(queue).add(SEED, id="j-1", name="post")
    (message,) = await asyncio.to_thread(read_topic, queue, 1)
    assert orjson.loads(message.value()) == SEED
    assert message.key() == SEED["user_id"].encode()  # type: ignore[attr-defined]
    assert dict(message.headers())["yamchi-id"] == b"j-1"


async def test_messages_of_others_count_as_waiting_before_anybody_reads_them(
    app: Yamchi, queue: str, kafka_bootstrap: str
) -> None:
    app.define(queue)
    target = app.queue(queue)
    await target.add({"n": 0})
    await kcat(kafka_bootstrap, queue, b'{"n":1}', b'{"n":2}')

    async def all_wait() -> bool:
        return (await target.stats())["waiting"] == 3

    await eventually(all_wait)


async def test_the_same_job_id_sent_twice_runs_once(app: Yamchi, queue: str, kafka_bootstrap: str) -> None:
    runs: list[str] = []

    @app.job(queue)
    async def post(job: Job[dict[str, Any]]) -> None:
        runs.append(job.id)

    target = app.queue(queue)
    await target.stats()
    twice = b'{"job_id":"twice"}'
    await kcat(kafka_bootstrap, queue, twice, twice, b'{"job_id":"once"}')
    async with working(app):
        await eventually(lambda: _drained(target, 2))
    assert sorted(runs) == ["once", "twice"]


async def _finished(target: Any, job_id: Any) -> Job[Any] | None:
    job = await target.job(job_id)
    return job if job.state == "completed" else None


async def _letters(target: Any, count: int) -> bool:
    return bool((await target.dead_letters.list()).total == count)


async def _drained(target: Any, completed: int) -> bool:
    stats = await target.stats()
    return bool(stats["completed"] == completed and stats["waiting"] == 0)
