"""An application of ours and a Node program on one Redis."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.interop.node import Peer, peer
from yamchi.app import Yamchi
from yamchi.clock import SystemClock
from yamchi.queues.engines.bull import BullEngine
from yamchi.settings import Settings


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.interop)


@pytest.fixture
async def node(redis_url: str) -> AsyncIterator[Peer]:
    async with peer(redis_url) as program:
        yield program


@pytest.fixture
async def app(redis_url: str, tmp_path: Path) -> AsyncIterator[Yamchi]:
    settings = Settings(
        home=tmp_path, plugins=(), lease=timedelta(seconds=3), shutdown_timeout=timedelta(seconds=5)
    )
    async with Yamchi(settings, engine=BullEngine(redis_url, SystemClock())) as app:
        yield app
