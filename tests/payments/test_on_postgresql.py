"""The same on PostgreSQL: a payment is followed by one check to its end, and given back once."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from tests.payments.shop import Server, Shop, a_shop
from yamchi.testing import eventually

pytestmark = pytest.mark.services


ANOTHER = """
INSERT INTO payment_refunds
SELECT (jsonb_populate_record(known, '{"id": "refund-1", "provider_id": null}')).* FROM payment_refunds AS known
"""
WAITING = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
def database_url(postgres_database) -> str:
    return str(postgres_database().url)


@pytest.fixture
async def shop(server: Server, tmp_path: Path, database_url: str) -> AsyncIterator[Shop]:
    async with a_shop(tmp_path, server, database_url=database_url) as shop:
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


async def test_an_id_that_a_refund_of_another_payment_takes_at_this_moment(
    shop: Shop, database_url: str
) -> None:
    first, second = (await shop.create())["id"], (await shop.create(order_id="43"))["id"]
    for entry in shop.ledger.entries.values():
        shop.ledger.pay(entry)
    await shop.app.clock.advance(timedelta(minutes=5))
    await refund(shop, first, "refund-0")
    async with (
        await psycopg.AsyncConnection.connect(database_url) as other,
        await psycopg.AsyncConnection.connect(database_url, autocommit=True) as watching,
    ):
        await other.execute(ANOTHER)
        asking = asyncio.create_task(refund(shop, second, "refund-1"))

        async def is_waiting() -> bool:
            return await (await watching.execute(WAITING)).fetchone() is not None

        await eventually(is_waiting)
        await other.commit()
    status, said = await asking
    assert status == 409
    assert "Refund refund-1 is there already" in said


async def refund(shop: Shop, payment: str, refund_id: str) -> tuple[int, str]:
    asked = {"amount": "30.00", "id": refund_id}
    answer = await shop.client.post(f"/v1/payments/{payment}/refund", json=asked)
    return answer.status_code, answer.text
