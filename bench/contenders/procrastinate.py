"""Procrastinate on PostgreSQL."""

from collections.abc import Sequence

import procrastinate
import uvloop

from bench.contenders.base import AsyncContender, Payload
from bench.hits import hit
from bench.target import CONCURRENCY, URL

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL, min_size=4, max_size=10))


@app.task(name="noop")
async def noop(payload: Payload) -> None:
    hit(payload["t"])


class Contender(AsyncContender):
    async def open(self) -> None:
        await app.open_async()
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()

    async def close(self) -> None:
        await app.close_async()

    async def add(self, payload: Payload) -> None:
        await noop.defer_async(payload=payload)

    async def add_many(self, payloads: Sequence[Payload]) -> None:
        await noop.batch_defer_async(*[{"payload": payload} for payload in payloads])

    def work(self) -> None:
        uvloop.run(self._work())

    async def _work(self) -> None:
        async with app.open_async():
            await app.run_worker_async(concurrency=CONCURRENCY)
