"""PostgreSQL passes the whole contract, several engines on one database standing for several processes."""

from collections.abc import AsyncIterator

import pytest

from yamchi.clock import SystemClock
from yamchi.queues.engines.pgmq import PgmqEngine
from yamchi.testing.conformance import EngineSuite, ManagementSuite, ProcessSuite, WorkerSuite
from yamchi.testing.conformance.base import Connect


class TestPgmq(EngineSuite, ManagementSuite, WorkerSuite, ProcessSuite):
    @pytest.fixture
    async def connect(self, postgres_url: str) -> AsyncIterator[Connect]:
        engines: list[PgmqEngine] = []

        async def connect() -> PgmqEngine:
            engine = PgmqEngine(postgres_url, SystemClock())
            await engine.open()
            engines.append(engine)
            return engine

        yield connect
        for engine in engines:
            await engine.close()
