"""Huey on SQLite with threads. It acknowledges nothing: a job is gone from the file once it is read."""

from collections.abc import Sequence

from huey import SqliteHuey

from bench.contenders.base import Payload, SyncContender
from bench.contenders.programs import run_program
from bench.hits import hit
from bench.target import QUEUE, THREADS, URL

huey = SqliteHuey(QUEUE, filename=URL.removeprefix("sqlite:///"))


@huey.task()
def noop(payload: Payload) -> None:
    hit(payload["t"])


class Contender(SyncContender):
    def add(self, payload: Payload) -> None:
        noop(payload)

    def add_many(self, payloads: Sequence[Payload]) -> None:
        noop.map(payloads)

    def work(self) -> None:
        run_program("huey_consumer", f"{__name__}.huey", "-w", str(THREADS), "-k", "thread", "-q")
