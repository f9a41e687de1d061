"""Who is measured, on what, and with how many jobs. One small module each, imported only in its own processes."""

from dataclasses import dataclass
from typing import Literal

Suite = Literal["embedded", "redis", "postgres", "kafka"]
Role = Literal["us", "peer", "limit"]
SUITES: tuple[Suite, ...] = ("embedded", "redis", "postgres", "kafka")


@dataclass(frozen=True, slots=True)
class Entry:
    """A contender of a suite. `jobs` is how many it drains in a quick run: two or three seconds' work."""

    suite: Suite
    name: str
    label: str
    jobs: int
    role: Role = "peer"
    runtime: Literal["python", "arq", "node"] = "python"
    acks: bool = True
    """Whether a job survives the worker that took it."""
    measures_latency: bool = True
    note: str = ""
    module: str = ""
    """Where it is, if not in the module of its name."""
    threads: int = 8
    """For workers that run jobs in threads."""
    tuned: bool = False
    """Set up better than its documentation shows: in the table, but not the peer that goals speak of."""


ENTRIES = (
    Entry("embedded", "yamchi", "Yamchi on SQLite", 30_000, "us"),
    Entry("embedded", "huey_sqlite", "Huey on SQLite, 8 threads", 3_000, acks=False),
    Entry("embedded", "huey_sqlite_one", "Huey on SQLite, 1 thread", 3_000, acks=False, module="huey_sqlite", threads=1),
    Entry("embedded", "raw_sqlite", "raw SQLite loop", 50_000, "limit", measures_latency=False, note="claim 100 + ack in one transaction"),
    Entry("redis", "yamchi", "Yamchi on Redis", 20_000, "us"),
    Entry("redis", "bullmq_node", "BullMQ (Node)", 15_000, runtime="node"),
    Entry("redis", "bullmq_python", "bullmq-python", 2_000),
    Entry("redis", "bullmq_python_pool", "bullmq-python, own pool", 2_000, module="bullmq_python", tuned=True, note="given a client with 200 connections; from a URL it makes one, behind a lock"),
    Entry("redis", "dramatiq", "Dramatiq", 3_000, note="8 threads"),
    Entry("redis", "taskiq", "taskiq (streams)", 3_000),
    Entry("redis", "huey_redis", "Huey, 8 threads", 3_000, acks=False),
    Entry("redis", "huey_redis_one", "Huey, 1 thread", 3_000, acks=False, module="huey_redis", threads=1),
    Entry("redis", "saq", "SAQ", 1_500),
    Entry("redis", "arq", "arq", 1_500, runtime="arq"),
    Entry("redis", "celery", "Celery", 1_500, note="8 threads"),
    Entry("redis", "streaq", "streaq", 1_500),
    Entry("redis", "rq", "RQ", 400, note="SimpleWorker"),
    Entry("redis", "raw_redis", "raw pipelined Lua", 20_000, "limit", measures_latency=False, note="BullMQ's scripts, two connections x 100"),
    Entry("postgres", "yamchi", "Yamchi on PostgreSQL", 15_000, "us"),
    Entry("postgres", "procrastinate", "Procrastinate", 1_000),
    Entry("postgres", "raw_pgmq", "raw pgmq loop", 20_000, "limit", note="read 100 + archive 100"),
    Entry("kafka", "yamchi", "Yamchi on Kafka", 20_000, "us"),
    Entry("kafka", "faststream", "FastStream", 5_000),
    Entry("kafka", "raw_kafka", "raw confluent-kafka", 40_000, "limit", note="consume 500 + commit"),
    Entry("kafka", "raw_kafka_share", "raw share group", 40_000, "limit", note="poll, accept each, commit"),
)  # fmt: skip


def entries_of(suite: str) -> list[Entry]:
    return [entry for entry in ENTRIES if entry.suite == suite]
