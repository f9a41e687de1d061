"""The embedded engine that keeps nothing passes the whole contract."""

import pytest

from yamchi.clock import SystemClock
from yamchi.queues.engines.memory import MemoryEngine
from yamchi.testing.conformance import EngineSuite, ManagementSuite, ProcessSuite, WorkerSuite
from yamchi.testing.conformance.base import Connect


class TestMemory(EngineSuite, ManagementSuite, WorkerSuite, ProcessSuite):
    @pytest.fixture
    async def connect(self) -> Connect:
        engine = MemoryEngine(SystemClock())

        async def connect() -> MemoryEngine:
            return engine

        return connect
