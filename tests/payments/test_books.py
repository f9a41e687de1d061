"""The books as a whole: lists, comparing them with several providers, and how often what is left unpaid is asked after."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.dialects import sqlite
from typer.testing import CliRunner

from tests.payments.shop import Shop, a_shop, paid, settings_of
from tests.services.stripe import StripeServer
from tests.services.yookassa import YooKassaServer
from yamchi.cli import cli
from yamchi.errors import Outage
from yamchi.payments.providers.base import ProviderRefund, RefundStatus
from yamchi.payments.store import latest_reconciliations

one_provider = pytest.mark.parametrize("server", [StripeServer], indirect=True)


@one_provider
async def test_pages_lose_no_payment_of_the_same_moment(shop: Shop) -> None:
    made = {(await shop.create(id=f"order-{n}"))["id"] for n in range(5)}
    listed: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while query:
        page = (await shop.client.get("/v1/payments", params=query)).json()
        listed += [one["id"] for one in page["items"]]
        query = {"limit": 2, "before": page["next_before"]} if page["next_before"] else {}
    assert (len(listed), set(listed)) == (5, made)


@one_provider
async def test_what_is_left_unpaid_is_asked_after_once_a_day(shop: Shop) -> None:
    await shop.create()
    await shop.app.clock.advance(timedelta(days=4))
    asked = shop.ledger.only.gets
    await shop.app.clock.advance(timedelta(days=3))
    assert shop.ledger.only.gets - asked <= 3
    shop.ledger.pay(shop.ledger.only)
    await shop.app.clock.advance(timedelta(days=1, minutes=1))
    assert await shop.kinds() == ["payment.succeeded"]


async def test_a_provider_that_is_down_keeps_no_other_from_being_compared(tmp_path: Path) -> None:
    down, up = YooKassaServer(), StripeServer()
    up.start()
    try:
        async with a_shop(tmp_path, up, **settings_of(down)) as shop:
            entry = up.ledger.create(
                amount=5_000, currency="RUB", capture=True, metadata={}, description=None
            )
            up.ledger.pay(entry)
            assert list(shop.app.payments.providers) == ["yookassa", "stripe"]
            with pytest.raises(Outage, match="YooKassa can't be reached"):
                await shop.app.payments.reconcile()
            await shop.agrees()
            (report,) = (await shop.client.get("/v1/payments/reconciliations")).json()
            assert (report["provider"], report["adopted"]) == ("stripe", 1)
    finally:
        up.stop()


async def test_a_payment_that_can_not_be_read_keeps_no_other_from_being_compared(shop: Shop) -> None:
    known = await paid(shop, id="known")
    for currency in ("RUB", "not a currency"):
        entry = shop.ledger.create(amount=100, currency=currency, capture=True, metadata={}, description=None)
        shop.ledger.pay(entry)
    shop.ledger.entries[known["provider_id"]].currency = "nor this"
    await shop.app.clock.advance(timedelta(hours=2))
    (report,) = await shop.app.payments.reconcile()
    assert (report.compared, report.adopted, report.missing) == (1, 1, [])


@one_provider
@pytest.mark.parametrize(
    ("late", "kept"), [("pending", "succeeded"), ("succeeded", "succeeded"), ("canceled", "canceled")]
)
async def test_a_late_answer_does_not_undo_a_refund(shop: Shop, late: RefundStatus, kept: str) -> None:
    payment = await paid(shop)
    await shop.client.post(f"/v1/payments/{payment['id']}/refund", json={"id": "r-1"})
    store = shop.app.payments.store
    await store.settle_refund("r-1", ProviderRefund("re_1", late))
    (refund,) = await store.refunds(await store.get(payment["id"]))
    assert refund.status == kept
    if kept == "canceled":
        await store.settle_refund("r-1", ProviderRefund("re_1", "succeeded"))
        (refund,) = await store.refunds(await store.get(payment["id"]))
        assert refund.status == "canceled"


@one_provider
async def test_comparisons_are_found_by_an_index(shop: Shop) -> None:
    query = latest_reconciliations(20).compile(
        dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}
    )
    explained = text(f"EXPLAIN QUERY PLAN {query}")
    plan = str(await shop.app.database.read(lambda connection: connection.execute(explained).all()))
    assert "event_of_payment" in plan
    assert "SCAN" not in plan
    assert "TEMP B-TREE" not in plan


@one_provider
async def test_one_payment_is_one_object_on_a_terminal_too(
    shop: Shop, server: StripeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    payment_id = (await shop.create())["id"]
    for name, value in {"yamchi_home": str(shop.app.settings.home), **settings_of(server)}.items():
        monkeypatch.setenv(name.upper(), str(value))
    for command in ("show", "check"):
        arguments = ["payment", command, payment_id, "--json"]
        told = await asyncio.to_thread(CliRunner().invoke, cli, arguments)
        assert json.loads(told.output)["id"] == payment_id
