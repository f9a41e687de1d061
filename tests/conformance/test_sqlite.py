"""The embedded durable engine passes the whole contract, several connections to one file standing for several processes."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from yamchi.clock import SystemClock
from yamchi.queues.engines.base import KEPT_PERMITS, RateLimit, WorkerInfo
from yamchi.queues.engines.sqlite import SqliteEngine
from yamchi.testing.conformance import EngineSuite, ManagementSuite, ProcessSuite, WorkerSuite
from yamchi.testing.conformance.base import Connect


class TestSqlite(EngineSuite, ManagementSuite, WorkerSuite, ProcessSuite):
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

    async def test_keys_of_a_rate_limit_are_forgotten_in_time(self, connect: Connect, tmp_path: Path) -> None:
        engine, now = await connect(), SystemClock().now()
        await engine.reserve("mail", RateLimit.parse("1/s"), [f"chat-{n}" for n in range(100)])
        later = now + KEPT_PERMITS + 60_000
        await engine.heartbeat(WorkerInfo("w", "host", 1, ("mail",), (), now, later))
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
            assert db.execute("SELECT count(*) FROM turns").fetchone() == (0,)
