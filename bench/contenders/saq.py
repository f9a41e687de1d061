"""SAQ on Redis."""

import uvloop
from saq import Queue, Worker

from bench.contenders.base import AsyncContender, Payload
from bench.hits import hit
from bench.target import CONCURRENCY, QUEUE, URL


async def noop(_context: object, *, payload: Payload) -> None:
    hit(payload["t"])


class Contender(AsyncContender):
    has_bulk = False

    async def open(self) -> None:
        self._queue = Queue.from_url(URL, name=QUEUE)
        await self._queue.connect()

    async def close(self) -> None:
        await self._queue.disconnect()

    async def add(self, payload: Payload) -> None:
        await self._queue.enqueue("noop", payload=payload)

    def work(self) -> None:
        uvloop.run(self._work())

    async def _work(self) -> None:
        await self.open()
        await Worker(self._queue, functions=[("noop", noop)], concurrency=CONCURRENCY).start()
