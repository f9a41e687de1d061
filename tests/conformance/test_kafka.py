"""The Kafka engine passes the whole contract on a real broker, several engines on one ledger standing for processes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from yamchi.clock import SystemClock
from yamchi.testing.conformance import EngineSuite, KeeperSuite, WorkerSuite
from yamchi.testing.conformance.base import Connect

kafka = pytest.importorskip("yamchi.queues.engines.kafka", reason="confluent-kafka is not installed")


class TestKafka(EngineSuite, KeeperSuite, WorkerSuite):
    @pytest.fixture
    async def connect(self, kafka_bootstrap: str, tmp_path: Path) -> AsyncIterator[Connect]:
        engines: list[kafka.KafkaEngine] = []
        address = kafka.Address.parse(f"kafka://{kafka_bootstrap}?partitions=2")

        async def connect() -> kafka.KafkaEngine:
            engine = kafka.KafkaEngine(address, tmp_path / "ledger.db", SystemClock())
            await engine.open()
            engines.append(engine)
            return engine

        yield connect
        for engine in engines:
            await engine.close()
