"""What can go wrong with Kafka's client in this process, and how work goes on, or ends, after it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from yamchi.clock import SystemClock
from yamchi.errors import EngineUnavailable
from yamchi.queues.engines import statestore
from yamchi.queues.records import DeadLetter, Failed, JobOptions, new_id
from yamchi.testing import eventually
from yamchi.testing.conformance.base import claim_all, complete, new_job, settle

pytest.importorskip("confluent_kafka")
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from yamchi.queues.engines.kafka import Address, KafkaEngine
from yamchi.queues.engines.kafka.cluster import Cluster
from yamchi.queues.engines.kafka.producer import MessageProducer


@pytest.fixture
def queue() -> str:
    return f"t-{new_id(0)[-16:]}"


@pytest.fixture
async def engine(kafka_bootstrap: str, tmp_path: Path) -> AsyncIterator[KafkaEngine]:
    engine = KafkaEngine(Address.parse(f"kafka://{kafka_bootstrap}"), tmp_path / "state.db", SystemClock())
    yield engine
    await engine.close()


async def test_a_client_that_can_not_be_made_is_made_later(
    engine: KafkaEngine, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the process has no thread or file descriptor left: its queues must be read once it has."""
    refused: list[str] = []

    def make(settings: dict[str, Any]) -> Any:
        if settings["group.id"] not in refused:
            refused.append(settings["group.id"])
            raise KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE, "no thread left"))
        return Consumer(settings)

    monkeypatch.setattr("yamchi.queues.engines.kafka.consumer.Consumer", make)
    monkeypatch.setattr("yamchi.queues.engines.kafka.control.Consumer", make)
    await engine.open()
    await engine.add(queue, [new_job("a")])
    (held,) = await claim_all(engine, queue, 1)
    assert held.job.id == "a"
    assert len(refused) == 2
    command = {"origin": "another", "do": "pause", "queue": queue, "ids": []}
    await engine._producer.send(engine._address.control_topic, [(b"key", orjson.dumps(command), [])])
    await eventually(lambda: engine.paused(queue))


async def test_a_producer_that_is_closed_answers_whoever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is there to take the message, and nobody will tell what became of it later on."""
    monkeypatch.setattr("yamchi.queues.engines.kafka.producer.DELIVERY_TIMEOUT", 100)
    producer = MessageProducer(Address.parse("kafka://127.0.0.1:1?delivery.timeout.ms=600000"))
    producer.open()
    sending = asyncio.create_task(producer.send("orders", [(b"key", b"{}", [])]))
    await asyncio.sleep(0)
    await asyncio.to_thread(producer.close)
    await eventually(sending.done)
    assert isinstance(producer.first_error(sending.result()), EngineUnavailable)


async def test_what_kafka_refuses_for_good_keeps_nothing_else_from_its_way(
    engine: KafkaEngine, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead letter is larger than its job was. This process has no workers: what waits here must go to Kafka."""
    monkeypatch.setattr("yamchi.queues.engines.kafka.SEND_AGAIN_AFTER", 0)
    await engine.open()
    large, other, why = f"{queue}-a", f"{queue}-b", "too much " * 200
    await engine.add(large, [new_job("a", orjson.dumps("x" * 999_000), options=JobOptions(attempts=1))])
    (held,) = await claim_all(engine, large, 1)
    failed = Failed(held, why, DeadLetter.of_job(held.job, why, SystemClock().now()))
    assert await settle(engine, large, [failed]) == ["a"]
    await engine.add(other, [new_job("b", run_at=SystemClock().now() + 200)])

    async def is_on_kafka() -> bool:
        return await engine._file.read(lambda db: statestore.sent(db, other)) == 1

    await eventually(is_on_kafka)


@pytest.mark.timeout(120)
async def test_a_topic_that_was_deleted_is_made_anew(
    engine: KafkaEngine, queue: str, kafka_bootstrap: str
) -> None:
    await engine.open()
    await engine.add(queue, [new_job("before")])
    (before,) = await claim_all(engine, queue, 1)
    await complete(engine, queue, [before])
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    await asyncio.to_thread(admin.delete_topics([queue])[queue].result)

    async def is_added() -> bool:
        with suppress(EngineUnavailable):
            return await engine.add(queue, [new_job("after")]) == [True]
        return False

    await eventually(is_added, within=60)
    (after,) = await claim_all(engine, queue, 1)
    assert after.job.id == "after"


async def test_an_opening_that_fails_leaves_nothing_behind(
    engine: KafkaEngine, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for Kafka to come back tries again and again."""
    before = set(threading.enumerate())

    def refuse(cluster: Cluster) -> None:
        raise EngineUnavailable("there is no controller yet")

    with monkeypatch.context() as patch:
        patch.setattr(Cluster, "prepare_control_topic", refuse)
        for _ in range(3):
            with pytest.raises(EngineUnavailable, match="no controller yet"):
                await engine.open()
            await eventually(lambda: not set(threading.enumerate()) - before)
    await engine.open()
    assert await engine.add(queue, [new_job()]) == [True]
