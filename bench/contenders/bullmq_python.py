"""BullMQ's own Python package: as documented, by a URL; tuned, with a client of many connections."""

from collections.abc import Sequence
from typing import Any

import uvloop
from bullmq import Queue, Worker
from redis.asyncio import Redis

from bench.contenders.base import AsyncContender, Payload
from bench.hits import hit
from bench.target import CONCURRENCY, KEEP_COMPLETED, KEEP_FAILED, QUEUE, TUNED, URL

RETENTION = {"removeOnComplete": {"count": KEEP_COMPLETED}, "removeOnFail": {"count": KEEP_FAILED}}


async def noop(job: Any, _token: str) -> None:
    hit(job.data["t"])


def connection() -> dict[str, Any]:
    if not TUNED:
        return {"connection": URL}
    return {"connection": Redis.from_url(URL, decode_responses=True, max_connections=2 * CONCURRENCY)}


class Contender(AsyncContender):
    async def open(self) -> None:
        self._queue = Queue(QUEUE, connection())

    async def close(self) -> None:
        await self._queue.close()

    async def add(self, payload: Payload) -> None:
        await self._queue.add("noop", payload, RETENTION)

    async def add_many(self, payloads: Sequence[Payload]) -> None:
        await self._queue.addBulk(
            [{"name": "noop", "data": payload, "opts": RETENTION} for payload in payloads]
        )

    def work(self) -> None:
        uvloop.run(self._work())

    async def _work(self) -> None:
        options = {**connection(), "concurrency": CONCURRENCY, "autorun": False}
        await Worker(QUEUE, noop, options).run()
