"""What a child says to its worker arrives whole, whichever of a handler's threads says it."""

import socket
import struct
from concurrent.futures import ThreadPoolExecutor

import orjson

from yamchi.queues.processes.wire import WorkerConnection

THREADS, MESSAGES = 4, 10
TIMEOUT_SECONDS = 30.0
LINE = "x" * 600_000
"""More than a socket takes at once."""


def test_several_threads_speak_at_once() -> None:
    worker, child = socket.socketpair()
    connection = WorkerConnection(child)
    worker.settimeout(TIMEOUT_SECONDS)
    with worker, child, ThreadPoolExecutor(THREADS) as threads:
        sent = [threads.submit(connection.send, "log", lines=[str(n), LINE]) for n in range(MESSAGES)]
        with worker.makefile("rb") as incoming:
            heard = [orjson.loads(incoming.read(_length(incoming.read(4)))) for _ in sent]
    assert sorted(int(one["lines"][0]) for one in heard) == list(range(MESSAGES))
    assert {one["lines"][1] for one in heard} == {LINE}


def _length(head: bytes) -> int:
    (length,) = struct.unpack(">I", head)
    return int(length)
