"""FastStream on confluent-kafka, one message at a time: its usual consumer."""

from collections.abc import Sequence

import uvloop
from faststream import FastStream
from faststream.confluent import KafkaBroker

from bench.contenders.base import AsyncContender, Payload
from bench.hits import hit
from bench.target import QUEUE, URL

broker = KafkaBroker(URL.removeprefix("kafka://"), logger=None)
app = FastStream(broker, logger=None)


@broker.subscriber(QUEUE, group_id=QUEUE, auto_offset_reset="earliest")
async def noop(payload: dict) -> None:  # type: ignore[type-arg]
    hit(payload["t"])


class Contender(AsyncContender):
    async def open(self) -> None:
        await broker.connect()

    async def close(self) -> None:
        await broker.stop()

    async def add(self, payload: Payload) -> None:
        await broker.publish(payload, QUEUE)

    async def add_many(self, payloads: Sequence[Payload]) -> None:
        await broker.publish_batch(*payloads, topic=QUEUE)

    def work(self) -> None:
        uvloop.run(app.run())
