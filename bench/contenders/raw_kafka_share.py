"""Kafka's share groups, by confluent-kafka alone: records are accepted one by one, and sent off with each poll."""

import orjson
from confluent_kafka import ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from bench.contenders import raw_kafka
from bench.hits import hit
from bench.target import QUEUE

GROUP = f"{QUEUE}-shared"


class Contender(raw_kafka.Contender):
    def work(self) -> None:
        _begin_at_the_beginning()
        consumer = ShareConsumer(
            raw_kafka.SERVERS | {"group.id": GROUP, "share.acknowledgement.mode": "explicit"}
        )
        consumer.subscribe([QUEUE])
        while True:
            for message in consumer.poll(0.05) or ():
                hit(orjson.loads(message.value())["t"])
                consumer.acknowledge(message)
            consumer.commit_sync()


def _begin_at_the_beginning() -> None:
    """A setting of the group, which lies on the broker."""
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    group = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=[earliest])
    admin = AdminClient(raw_kafka.SERVERS)  # has to outlive its answers
    for done in admin.incremental_alter_configs([group]).values():
        done.result()
