"""Dramatiq on Redis: one process of threads."""

from collections.abc import Sequence

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.contenders.base import Payload, SyncContender
from bench.contenders.programs import run_program
from bench.hits import hit
from bench.target import THREADS, URL

dramatiq.set_broker(RedisBroker(url=URL))


@dramatiq.actor
def noop(payload: Payload) -> None:
    hit(payload["t"])


class Contender(SyncContender):
    def add(self, payload: Payload) -> None:
        noop.send(payload)

    def add_many(self, payloads: Sequence[Payload]) -> None:
        dramatiq.group([noop.message(payload) for payload in payloads]).run()

    def work(self) -> None:
        run_program("dramatiq", __name__, "-p", "1", "-t", str(THREADS))
