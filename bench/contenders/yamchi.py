"""Yamchi with everything on: leases, renewal, validation, retention; the engine is the URL's."""

from collections.abc import Sequence

import uvloop
from pydantic import BaseModel

from bench.contenders.base import AsyncContender, Payload
from bench.hits import hit
from bench.target import CONCURRENCY, QUEUE, URL
from yamchi import Job, Yamchi
from yamchi.settings import Settings

app = Yamchi(Settings(default_queue_url=URL))


class Welcome(BaseModel):
    id: int
    t: float
    email: str
    kind: str
    tags: list[str]
    pad: str


@app.job(QUEUE, concurrency=CONCURRENCY)
async def noop(job: Job[Welcome]) -> None:
    hit(job.data.t)


class Contender(AsyncContender):
    async def open(self) -> None:
        self._queue = app.queue(QUEUE)

    async def close(self) -> None:
        await app.close()

    async def add(self, payload: Payload) -> None:
        await self._queue.add(payload)

    async def add_many(self, payloads: Sequence[Payload]) -> None:
        await self._queue.add_many(payloads)

    def work(self) -> None:
        uvloop.run(app.work())
