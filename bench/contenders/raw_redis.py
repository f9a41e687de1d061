"""The limit of the Redis suite: BullMQ's own scripts, packed once and pipelined, on two overlapped connections.

While Redis runs the scripts of one connection, Python reads the jobs of the other. No handler tasks, no leases kept.
"""

import socket
from time import sleep, time
from typing import Any
from urllib.parse import urlsplit

import hiredis
import msgpack
import orjson
from bullmq.redis_connection import SCRIPT_DEFINITIONS, RedisConnection, loadScript
from bullmq.scripts import Scripts
from redis import Redis

from bench.contenders import bullmq_python
from bench.hits import hit
from bench.target import KEEP_COMPLETED, QUEUE, URL

BATCH = 100
LOCK = {"token": "raw", "lockDuration": 30_000, "limiter": None}
ENDING = LOCK | {
    "keepJobs": {"count": KEEP_COMPLETED},
    "attempts": 0,
    "attemptsMade": 0,
    "maxMetricsSize": "",
    "fpof": False,
    "cpof": False,
    "idof": False,
    "rdof": False,
}


class Contender(bullmq_python.Contender):
    """Filled by bullmq-python, emptied by hand."""

    times_adds = False

    def work(self) -> None:
        commands = Commands()
        connections = [BatchConnection(), BatchConnection()]
        for connection in connections:
            connection.send(commands.claim(BATCH))
        while True:
            for connection in connections:
                jobs = connection.receive()
                for _, payload in jobs:
                    hit(payload["t"])
                if not jobs:
                    sleep(0.01)
                connection.send(commands.finish([job for job, _ in jobs]) or commands.claim(BATCH))


class Commands:
    """The scripts' calls as bytes."""

    def __init__(self) -> None:
        scripts = Scripts("bull", QUEUE, RedisConnection(URL))
        redis = Redis.from_url(URL)
        self._claim_sha, self._finish_sha = (
            redis.script_load(loadScript(SCRIPT_DEFINITIONS[name])).encode()
            for name in ("moveToActive", "moveToFinished")
        )
        shared = [
            "wait",
            "active",
            "prioritized",
            "events",
            "stalled",
            "limiter",
            "delayed",
            "paused",
            "meta",
            "pc",
        ]
        self._claim_keys = [key.encode() for key in scripts.getKeys([*shared, "marker"])]
        self._finish_keys = [key.encode() for key in scripts.getKeys([*shared, "completed"])]
        self._metrics = scripts.toKey("metrics:completed").encode()
        self._marker = scripts.keys["marker"].encode()
        self._prefix = scripts.keys[""].encode()
        self._lock, self._ending = msgpack.packb(LOCK), msgpack.packb(ENDING)

    def claim(self, jobs: int) -> list[bytes]:
        call = (b"EVALSHA", self._claim_sha, b"11", *self._claim_keys, self._prefix, _now(), self._lock)
        return [hiredis.pack_command(call)] * jobs

    def finish(self, job_ids: list[bytes]) -> list[bytes]:
        """Finish each job and fetch the next one in its place."""
        now = _now()
        return [
            hiredis.pack_command(
                (b"EVALSHA", self._finish_sha, b"14", *self._finish_keys, self._prefix + job_id, self._metrics,
                 self._marker, job_id, now, b"returnvalue", b"null", b"completed", b"1", self._prefix, self._ending)
            )
            for job_id in job_ids
        ]  # fmt: skip


class BatchConnection:
    """One connection with a batch on its way."""

    def __init__(self) -> None:
        address = urlsplit(URL)
        self._socket = socket.create_connection((address.hostname, address.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()
        self._pending = 0

    def send(self, commands: list[bytes]) -> None:
        self._pending = len(commands)
        self._socket.sendall(b"".join(commands))

    def receive(self) -> list[tuple[bytes, Any]]:
        """The jobs that came: id and data."""
        replies: list[Any] = []
        while len(replies) < self._pending:
            reply = self._reader.gets()
            if reply is False:
                self._reader.feed(self._socket.recv(1 << 20))
            elif isinstance(reply, Exception):
                raise reply
            else:
                replies.append(reply)
        return [_job(reply) for reply in replies if isinstance(reply, list) and reply[0]]


def _job(reply: list[Any]) -> tuple[bytes, Any]:
    fields = reply[0]
    return reply[1], orjson.loads(fields[fields.index(b"data") + 1])


def _now() -> bytes:
    return b"%d" % (time() * 1000)
