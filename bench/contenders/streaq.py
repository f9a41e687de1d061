"""streaq on Redis streams."""

from collections.abc import Sequence

from streaq import Worker

from bench.contenders.base import AsyncContender, Payload
from bench.hits import hit
from bench.target import CONCURRENCY, QUEUE, URL

worker = Worker(redis_url=URL, concurrency=CONCURRENCY, queue_name=QUEUE, anyio_kwargs={"use_uvloop": True})


@worker.task
async def noop(payload: dict) -> None:  # type: ignore[type-arg]
    hit(payload["t"])


class Contender(AsyncContender):
    async def open(self) -> None:
        await worker.__aenter__()

    async def close(self) -> None:
        await worker.__aexit__(None, None, None)

    async def add(self, payload: Payload) -> None:
        await noop.enqueue(payload)

    async def add_many(self, payloads: Sequence[Payload]) -> None:
        await worker.enqueue_many([noop.enqueue(payload) for payload in payloads])

    def work(self) -> None:
        worker.run_sync()
