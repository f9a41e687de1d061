"""What holds for every test: it sees none of the developer's own settings and writes only into its own folder."""

import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from yamchi.envfile import all_settings

# How long an example takes depends on what else the machine does: no time is a test.
hypothesis.settings.register_profile("yamchi", deadline=None)
hypothesis.settings.load_profile("yamchi")

pytest_plugins = ["tests.services.plugin", "tests.faults.report", "tests.smalldisk", "tests.schemas"]

_PER_QUEUE = ("QUEUE_URL_", "CONCURRENCY_")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two more than there are cores: of so many tests of real processes some always wait."""
    return (os.cpu_count() or 1) + 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose tests may take longest begin first, so that none of them is alone at the end."""
    longest: dict[Path, float] = defaultdict(float)
    for item in items:
        marker = item.get_closest_marker("timeout")
        longest[item.path] = max(longest[item.path], marker.args[0] if marker else 0)
    items.sort(key=lambda item: -longest[item.path])


@pytest.fixture(autouse=True)
def own_path() -> Iterator[None]:
    """What `--app` finds in a test's folder is not found there by later tests, nor by processes that they start."""
    before = sys.path.copy()
    yield
    sys.path[:] = before


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home of Yamchi, and an environment without its variables."""
    known = {name.upper() for kind in all_settings() for name in kind.model_fields} - {"HOME"} | {"QUEUE_URL"}
    for variable in os.environ:
        if variable in known or variable.startswith(_PER_QUEUE):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("YAMCHI_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database for tables, on either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/data.db"
    return str(request.getfixturevalue("postgres_database")().url)
