"""The fixtures that give tests real servers.

    redis_url            a database of the run's Redis, this test process's own, emptied before each test
    postgres_url         a fresh database of the run's PostgreSQL for each test module, as superuser
    postgres_database    each call makes a fresh database: `.url`, `.unprivileged_url()`
    kafka_bootstrap      host:port of the run's Kafka, which creates no topic by itself
    private_redis, private_postgres, private_kafka
                         each call starts a server of this test's own, to be stopped, killed and restarted

TEST_REDIS_URL, TEST_POSTGRES_URL and TEST_KAFKA_BOOTSTRAP name servers to use instead of starting the run's own;
in that Redis, the database of the URL and one more for each further test process are emptied.
Where a server can't be had, its tests are skipped and say why; with CI=true they fail.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import pytest

from tests.services.kafka import Kafka
from tests.services.missing import unavailable
from tests.services.postgres import Postgres
from tests.services.redis import Redis
from tests.services.server import Server, ServerMissing
from tests.services.shared import VARIABLES, AskedServers, Door, OwnedServers, UrlSource

if TYPE_CHECKING:
    from tests.services.databases import Database

FIXTURES = {
    *("redis_url", "postgres_url", "postgres_database", "kafka_bootstrap"),
    *("private_redis", "private_postgres", "private_kafka"),
}

S = TypeVar("S", bound=Server)
servers_key = pytest.StashKey[UrlSource]()
door_key = pytest.StashKey[Door]()


def pytest_configure(config: pytest.Config) -> None:
    door = getattr(config, "workerinput", {}).get("door")
    config.stash[servers_key] = AskedServers(Path(door)) if door else OwnedServers()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker process of pytest-xdist where to ask."""
    stash = node.config.stash
    if door_key not in stash:
        stash[door_key] = Door(stash[servers_key])
    node.workerinput["door"] = str(stash[door_key].path)


def pytest_unconfigure(config: pytest.Config) -> None:
    if door := config.stash.get(door_key, None):
        door.close()
    servers = config.stash.get(servers_key, None)
    if isinstance(servers, OwnedServers):
        servers.discard()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a server, so that `-m "not services"` runs the rest."""
    for item in items:
        if FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.services)


@pytest.fixture
def redis_url(pytestconfig: pytest.Config) -> str:
    redis = pytest.importorskip("redis")
    url = urlsplit(_shared_url(pytestconfig, "redis"))
    database = int(url.path.strip("/") or 0) + _process_number()
    own_url = url._replace(path=f"/{database}").geturl()
    with redis.Redis.from_url(own_url) as client:
        client.flushdb()
    return own_url


@pytest.fixture(scope="module")
def postgres_url(pytestconfig: pytest.Config) -> Iterator[str]:
    for make_database in _databases(pytestconfig):
        yield make_database().url


@pytest.fixture
def postgres_database(pytestconfig: pytest.Config) -> Iterator[Callable[[], "Database"]]:
    yield from _databases(pytestconfig)


@pytest.fixture(scope="session")
def kafka_bootstrap(pytestconfig: pytest.Config) -> str:
    return _shared_url(pytestconfig, "kafka")


@pytest.fixture
def private_redis() -> Iterator[Callable[..., Redis]]:
    yield from _private_servers(Redis)


@pytest.fixture
def private_postgres() -> Iterator[Callable[..., Postgres]]:
    yield from _private_servers(Postgres)


@pytest.fixture
def private_kafka() -> Iterator[Callable[..., Kafka]]:
    yield from _private_servers(Kafka)


def _shared_url(config: pytest.Config, name: str) -> str:
    try:
        return os.environ.get(VARIABLES[name]) or config.stash[servers_key].url(name)
    except ServerMissing as missing:
        unavailable(missing)


def _databases(config: pytest.Config) -> Iterator[Callable[[], "Database"]]:
    pytest.importorskip("psycopg")
    from tests.services.databases import fresh_databases

    with fresh_databases(_shared_url(config, "postgres")) as make_database:
        yield make_database


def _private_servers(kind: type[S]) -> Iterator[Callable[..., S]]:
    with ExitStack() as started:

        def start(*options: Any, **settings: Any) -> S:
            try:
                server = kind(*options, **settings)
            except ServerMissing as missing:
                unavailable(missing)
            started.callback(server.discard)
            server.start()
            return server

        yield start


def _process_number() -> int:
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
