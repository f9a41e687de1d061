"""What can go wrong with Kafka's client in this process, and how work goes on, or ends, after it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from yamchi.clock import SystemClock
from yamchi.queues.records import new_id
from yamchi.testing import eventually
from yamchi.testing.conformance.base import claim_all, new_job

pytest.importorskip("confluent_kafka")
from confluent_kafka import Consumer, KafkaError, KafkaException

from yamchi.queues.engines.kafka import Address, KafkaEngine


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
