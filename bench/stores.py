"""Where the contenders of a suite work: one server for all of them, and an empty store for each measurement.

The servers are those of the tests (`tests/services`); TEST_REDIS_URL and its like name ones that already run.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tests.services.kafka import Kafka
from tests.services.server import ServerFailed, ServerMissing
from tests.services.shared import KINDS, VARIABLES

from bench.measure import CannotRun, Target

Fresh = Callable[[], Target]
QUEUE = "bench"
PARTITIONS = 4


@contextmanager
def store_of(suite: str) -> Iterator[Fresh]:
    """A function that gives an empty store each time."""
    if suite == "embedded":
        with _files() as fresh:
            yield fresh
        return
    with _server(suite) as url:
        yield {"redis": _redis, "postgres": _postgres, "kafka": _kafka}[suite](url)


@contextmanager
def _server(suite: str) -> Iterator[str]:
    if given := os.environ.get(VARIABLES[suite]):
        yield given
        return
    try:
        server = Kafka(java_options=()) if suite == "kafka" else KINDS[suite]()
        server.start()
    except (ServerMissing, ServerFailed) as error:
        raise CannotRun(str(error)) from error
    try:
        yield server.url
    finally:
        server.discard()


@contextmanager
def _files() -> Iterator[Fresh]:
    numbers = count()
    # Beside the project, not in /tmp, which may be memory: a commit must reach a disk.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path(__file__).parents[1]) as folder:
        yield lambda: Target(f"sqlite:///{folder}/{next(numbers)}.db", QUEUE)


def _redis(url: str) -> Fresh:
    from redis import Redis

    def fresh() -> Target:
        Redis.from_url(url).flushall()
        return Target(url, QUEUE)

    return fresh


def _postgres(url: str) -> Fresh:
    from tests.services.databases import Database

    made: list[Database] = []

    def fresh() -> Target:
        while made:
            made.pop().drop()
        made.append(Database(url))
        return Target(made[0].url, QUEUE)

    return fresh


def _kafka(bootstrap: str) -> Fresh:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin, numbers = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}), count()

    def fresh() -> Target:
        topic = f"{QUEUE}-{os.getpid()}-{next(numbers)}"
        for made in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
            made.result()
        return Target(f"kafka://{bootstrap}", topic)

    return fresh
