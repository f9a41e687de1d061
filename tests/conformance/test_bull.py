"""The engine on a real Redis passes the whole contract, several engines standing for several processes."""

from collections.abc import AsyncIterator

import pytest

from yamchi.clock import SystemClock
from yamchi.queues.engines.bull import BullEngine
from yamchi.testing.conformance import EngineSuite, ManagementSuite, ProcessSuite, WorkerSuite
from yamchi.testing.conformance.base import Connect


class TestBull(EngineSuite, ManagementSuite, WorkerSuite, ProcessSuite):
    @pytest.fixture
    async def connect(self, redis_url: str) -> AsyncIterator[Connect]:
        engines: list[BullEngine] = []

        async def connect() -> BullEngine:
            engine = BullEngine(redis_url, SystemClock())
            await engine.open()
            engines.append(engine)
            return engine

        yield connect
        for engine in engines:
            await engine.close()
