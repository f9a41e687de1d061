"""arq, in an environment of its own: it wants an older Redis client."""

import uvloop
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

from bench.contenders.base import AsyncContender, Payload
from bench.hits import hit
from bench.target import CONCURRENCY, URL

SETTINGS = RedisSettings.from_dsn(URL)


async def noop(_context: object, payload: Payload) -> None:
    hit(payload["t"])


class Contender(AsyncContender):
    has_bulk = False

    async def open(self) -> None:
        self._pool = await create_pool(SETTINGS)

    async def close(self) -> None:
        await self._pool.aclose()

    async def add(self, payload: Payload) -> None:
        await self._pool.enqueue_job("noop", payload)

    def work(self) -> None:
        uvloop.run(self._work())

    async def _work(self) -> None:
        await Worker(functions=[noop], redis_settings=SETTINGS, max_jobs=CONCURRENCY).async_run()
