"""The limit of the Kafka suite: confluent-kafka alone, consuming 500 at a time and committing each batch."""

from collections.abc import Sequence

import orjson
from confluent_kafka import Consumer, Producer

from bench.contenders.base import Payload, SyncContender
from bench.hits import hit
from bench.target import QUEUE, URL

SERVERS = {"bootstrap.servers": URL.removeprefix("kafka://")}
CONSUMER = {"group.id": QUEUE, "auto.offset.reset": "earliest", "enable.auto.commit": False}


class Contender(SyncContender):
    def open(self) -> None:
        self._producer = Producer(SERVERS | {"enable.idempotence": True})

    def add(self, payload: Payload) -> None:
        self._producer.produce(QUEUE, orjson.dumps(payload))
        self._producer.flush()

    def add_many(self, payloads: Sequence[Payload]) -> None:
        for payload in payloads:
            self._producer.produce(QUEUE, orjson.dumps(payload))
        self._producer.flush()

    def work(self) -> None:
        consumer = Consumer(SERVERS | CONSUMER)
        consumer.subscribe([QUEUE])
        while True:
            messages = consumer.consume(500, timeout=0.05)
            for message in messages:
                hit(orjson.loads(message.value())["t"])
            if messages:
                consumer.commit(asynchronous=False)
