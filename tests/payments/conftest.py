from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.payments.shop import Server, Shop, a_shop
from tests.services.stripe import StripeServer
from tests.services.yookassa import YooKassaServer


@pytest.fixture(params=[YooKassaServer, StripeServer], ids=["yookassa", "stripe"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with request.param() as server:
        yield server


@pytest.fixture
async def shop(server: Server, tmp_path: Path) -> AsyncIterator[Shop]:
    async with a_shop(tmp_path, server) as shop:
        yield shop
