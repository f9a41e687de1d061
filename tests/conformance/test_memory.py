"""The embedded engine that keeps nothing passes the whole contract."""

from collections.abc import AsyncIterator

import pytest

from yamchi.clock import SystemClock
from yamchi.queues.engines.memory import MemoryEngine
from yamchi.testing.conformance import EngineSuite, KeeperSuite, WorkerSuite
from yamchi.testing.conformance.base import Connect


class TestMemory(EngineSuite, KeeperSuite, WorkerSuite):
    @pytest.fixture
    async def connect(self) -> AsyncIterator[Connect]:
        engine = MemoryEngine(SystemClock())

        async def connect() -> MemoryEngine:
            return engine

        yield connect
