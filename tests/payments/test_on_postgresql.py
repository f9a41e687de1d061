"""The same on PostgreSQL: a payment is followed by one check to its end, and given back once."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.payments.shop import Server, Shop, a_shop

pytestmark = pytest.mark.services


@pytest.fixture
async def shop(server: Server, tmp_path: Path, postgres_database) -> AsyncIterator[Shop]:
    async with a_shop(tmp_path, server, database_url=postgres_database().url) as shop:
        yield shop


async def test_a_payment_from_its_creation_to_its_refunds(shop: Shop) -> None:
    service, queue = shop.app.payments.service, shop.app.queue("payment_queue")
    payment = await shop.app.payments.get((await shop.create())["id"])
    await service.recheck(payment, shop.app.clock.now())
    await shop.app.clock.advance(timedelta(minutes=2))
    assert (await queue.stats())["delayed"] == 1
    shop.ledger.pay(shop.ledger.only)
    await shop.app.clock.advance(timedelta(minutes=5))
    shop.server.troubles = [None]
    url = f"/v1/payments/{payment.id}/refund"
    for status in (202, 200):
        answer = await shop.client.post(url, json={"amount": "30.00", "id": "refund-1"})
        assert answer.status_code == status, answer.text
    await shop.app.clock.advance(timedelta(hours=1))
    assert sorted(await shop.kinds()) == ["payment.refunded", "payment.succeeded"]
    assert (await queue.stats())["delayed"] == 0
    await shop.agrees()
