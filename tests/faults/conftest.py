"""What fault tests ask for: a `site` on each engine, and `published` to put their counts in the table."""

from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from tests.faults.harness import Site, Tally
from yamchi.clock import SystemClock
from yamchi.errors import ConfigurationError
from yamchi.queues.engines import EngineContext, make_engine

BROKERS = ("bull", "pgmq", "kafka")
ENGINES = ["sqlite", *(pytest.param(name, marks=pytest.mark.services) for name in BROKERS)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.faults)


@pytest.fixture
async def make_site(tmp_path: Path) -> AsyncIterator[Callable[..., Site]]:
    """Each call makes a site on a URL, with a queue of its own unless one is named; its processes end with the test."""
    sites: list[Site] = []

    def make(url: str, **fields: Any) -> Site:
        require(url)
        folder = tmp_path / f"site-{len(sites)}"
        folder.mkdir()
        sites.append(Site(folder, url, f"faults-{token_hex(6)}", **fields))
        return sites[-1]

    yield make
    for site in sites:
        await site.close()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def engine_url(engine_name: str, request: pytest.FixtureRequest) -> str:
    """The URL of the engine of this name, on the run's server."""
    match engine_name:
        case "bull":
            return str(request.getfixturevalue("redis_url"))
        case "pgmq":
            return str(request.getfixturevalue("postgres_url"))
        case "kafka":
            return f"kafka://{request.getfixturevalue('kafka_bootstrap')}"
    return str(request.getfixturevalue("sqlite_url"))


@pytest.fixture
def published(record_property: Callable[[str, object], None]) -> Callable[[Tally], None]:
    """Puts a tally in the table that the run prints at its end."""
    return lambda tally: record_property("fault", asdict(tally))


def require(url: str) -> None:
    """Skip where the engine of this URL is not there."""
    try:
        make_engine(url, EngineContext(SystemClock()))
    except ConfigurationError as error:
        pytest.skip(str(error))
