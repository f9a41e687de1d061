"""Celery on Redis with threads."""

from collections.abc import Sequence

from celery import Celery, group

from bench.contenders.base import Payload, SyncContender
from bench.contenders.programs import run_program
from bench.hits import hit
from bench.target import THREADS, URL

app = Celery("bench", broker=URL)
app.conf.broker_connection_retry_on_startup = True


@app.task(name="noop", ignore_result=True)
def noop(payload: Payload) -> None:
    hit(payload["t"])


class Contender(SyncContender):
    def add(self, payload: Payload) -> None:
        noop.delay(payload)

    def add_many(self, payloads: Sequence[Payload]) -> None:
        group([noop.s(payload) for payload in payloads]).apply_async()

    def work(self) -> None:
        quiet = ["--loglevel=ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        run_program("celery", "-A", __name__, "worker", "-P", "threads", "-c", str(THREADS), *quiet)
