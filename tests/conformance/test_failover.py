"""Failover is an engine too: the whole contract holds with the broker there, and with the broker away."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from yamchi.clock import SystemClock
from yamchi.errors import EngineUnavailable
from yamchi.queues.engines.base import Capabilities, Engine
from yamchi.queues.engines.sqlite import SqliteEngine
from yamchi.queues.engines.sqlite.spool import SqliteSpool
from yamchi.queues.failover import with_failover
from yamchi.testing.conformance import EngineSuite, ManagementSuite, WorkerSuite
from yamchi.testing.conformance.base import Connect


class AbsentBroker(SqliteEngine):
    """An engine whose server is not there."""

    type = "absent"
    can = Capabilities(events=False)

    async def open(self) -> None:
        raise EngineUnavailable("Nobody answers.")

    async def ping(self) -> None:
        raise EngineUnavailable("Nobody answers.")


class FailoverSuite(EngineSuite, ManagementSuite, WorkerSuite):
    broker: type[SqliteEngine]

    @pytest.fixture
    async def connect(self, tmp_path: Path) -> AsyncIterator[Connect]:
        engines: list[Engine] = []

        async def connect() -> Engine:
            broker = self.broker(tmp_path / "broker.db", SystemClock())
            spool = SqliteSpool(tmp_path / "spool.db", SystemClock())
            engine = with_failover(broker, spool, lambda origin, target: None, lambda queue: True)
            await engine.open()
            engines.extend((engine, spool))
            return engine

        yield connect
        for engine in engines:
            await engine.close()


class TestWithTheBroker(FailoverSuite):
    broker = SqliteEngine


class TestWithoutTheBroker(FailoverSuite):
    broker = AbsentBroker
