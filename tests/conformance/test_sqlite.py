"""The embedded durable engine passes the whole contract, several connections to one file standing for several processes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from yamchi.clock import SystemClock
from yamchi.queues.engines.sqlite import SqliteEngine
from yamchi.testing.conformance import EngineSuite, KeeperSuite, WorkerSuite
from yamchi.testing.conformance.base import Connect


class TestSqlite(EngineSuite, KeeperSuite, WorkerSuite):
    @pytest.fixture
    async def connect(self, tmp_path: Path) -> AsyncIterator[Connect]:
        engines: list[SqliteEngine] = []

        async def connect() -> SqliteEngine:
            engine = SqliteEngine(tmp_path / "jobs.db", SystemClock())
            await engine.open()
            engines.append(engine)
            return engine

        yield connect
        for engine in engines:
            await engine.close()
