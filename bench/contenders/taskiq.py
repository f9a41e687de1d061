"""taskiq on Redis streams, its broker that acknowledges."""

from taskiq_redis import RedisStreamBroker

from bench.contenders.base import AsyncContender, Payload
from bench.contenders.programs import run_program
from bench.hits import hit
from bench.target import CONCURRENCY, URL

broker = RedisStreamBroker(URL)


@broker.task
async def noop(payload: Payload) -> None:
    hit(payload["t"])


class Contender(AsyncContender):
    has_bulk = False

    async def open(self) -> None:
        await broker.startup()

    async def close(self) -> None:
        await broker.shutdown()

    async def add(self, payload: Payload) -> None:
        await noop.kiq(payload)

    def work(self) -> None:
        options = ["--workers", "1", "--max-async-tasks", str(CONCURRENCY), "--log-level", "WARNING"]
        run_program("taskiq", "worker", f"{__name__}:broker", *options)
