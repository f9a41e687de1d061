"""What the suites that run workers share: applications on the engine, their workers, and waiting for a job's state."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from yamchi.app import Yamchi
from yamchi.queues.engines.base import Engine
from yamchi.queues.job import Job
from yamchi.queues.worker import Worker
from yamchi.settings import Settings
from yamchi.testing.conformance.base import Suite

MakeApp = Callable[..., Yamchi]


class Order(BaseModel):
    number: int


class AppSuite(Suite):
    """Gives each test an `app` on its engine, and `make_app` for more of them."""

    @pytest.fixture
    def make_app(self, tmp_path: Any) -> Callable[..., Yamchi]:
        def make(engine: Engine, **settings: Any) -> Yamchi:
            settings = {"lease": timedelta(seconds=3), "shutdown_timeout": timedelta(seconds=5), **settings}
            return Yamchi(Settings(home=tmp_path, plugins=(), **settings), engine=engine)

        return make

    @pytest.fixture
    def app(self, engine: Engine, make_app: MakeApp) -> Yamchi:
        return make_app(engine)


@asynccontextmanager
async def working(*apps: Yamchi) -> AsyncIterator[list[Worker]]:
    """Workers of these applications, stopped gracefully at the end."""
    workers = [app.worker() for app in apps]
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*tasks)


async def in_state(job: Job[Any], state: str) -> Job[Any] | None:
    current = await job.refresh()
    return current if current.state == state else None
