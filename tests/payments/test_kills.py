"""SIGKILL at each named point of a payment's way: afterwards there is one payment, one `payment.succeeded`, and equal books."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.payments.shop import settings_of
from tests.processes import DEADLINE, Process
from tests.services.yookassa import YooKassaServer, webhook
from yamchi.testing import eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(240)]

ORDER = {"amount": "100.00", "id": "order-1", "return_url": "https://shop.example/thanks"}
CREATING = ("payment.stored", "payment.watched", "payment.created")
LEARNING = ("payment.webhook", "payment.applied", "payment.told")
REFUNDING = ("refund.stored", "refund.created")

Start = Callable[..., Process]


@pytest.fixture
def provider() -> Iterator[YooKassaServer]:
    server = YooKassaServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def start(provider: YooKassaServer, tmp_path: Path) -> Iterator[Start]:
    started: list[Process] = []
    settings = {name.upper(): str(value) for name, value in settings_of(provider).items()}

    def start(**environment: str) -> Process:
        started.append(Process(tmp_path, "up", "--port", "0", LEASE="1s", **settings, **environment))
        return started[-1]

    yield start
    for process in started:
        process.process.kill()
        process.process.wait()


async def ask(process: Process, method: str, path: str, body: Any = None) -> Any:
    url = await asyncio.to_thread(lambda: process.url)
    async with httpx2.AsyncClient(base_url=f"{url}/api", timeout=DEADLINE) as client:
        answer = await client.request(method, path, json=body)
    assert answer.is_success, answer.text
    return answer.json()


async def until_it_dies(process: Process, *request: Any) -> None:
    with suppress(httpx2.TransportError):
        await ask(process, *request)
    await eventually(lambda: process.process.poll() == -9, DEADLINE)


async def notified(process: Process, provider: YooKassaServer) -> None:
    await ask(process, "POST", "/webhooks/payments/yookassa", webhook(provider.ledger.only))


async def paid_once(process: Process, provider: YooKassaServer, refunded: str = "0.00") -> None:
    async def is_done() -> bool:
        payment = await ask(process, "GET", "/v1/payments/order-1")
        kinds = sorted(event["kind"] for event in payment["events"])
        wanted = ["payment.refunded"] * (refunded != "0.00") + ["payment.succeeded"]
        is_told = all(event["told_at"] for event in payment["events"])
        return is_told and (payment["status"], payment["refunded"], kinds) == ("succeeded", refunded, wanted)

    await eventually(is_done, DEADLINE)
    with closing(sqlite3.connect(process.output.parent / "var" / "data.db")) as database:
        told = database.execute("SELECT count(*) FROM events WHERE event_type = 'payment.succeeded'")
        assert told.fetchone() == (1,)
    assert (provider.ledger.only.captured, len(provider.ledger.entries)) == (10_000, 1)


@pytest.mark.parametrize("point", CREATING)
async def test_while_it_is_created(provider: YooKassaServer, start: Start, point: str) -> None:
    await until_it_dies(start(YAMCHI_FAULT=point), "POST", "/v1/payments", ORDER)
    process = start()
    payment = await ask(process, "POST", "/v1/payments", ORDER)
    assert payment["provider_id"] == provider.ledger.only.id
    provider.ledger.pay(provider.ledger.only)
    await notified(process, provider)
    await paid_once(process, provider)


@pytest.mark.parametrize("point", LEARNING)
async def test_while_it_is_learned_of(provider: YooKassaServer, start: Start, point: str) -> None:
    first = start()
    await ask(first, "POST", "/v1/payments", ORDER)
    first.process.kill()
    provider.ledger.pay(provider.ledger.only)
    await until_it_dies(
        start(YAMCHI_FAULT=point), "POST", "/webhooks/payments/yookassa", webhook(provider.ledger.only)
    )
    process = start()
    await notified(process, provider)  # YooKassa repeats what was not confirmed
    await paid_once(process, provider)


@pytest.mark.parametrize("point", REFUNDING)
async def test_while_money_is_given_back(provider: YooKassaServer, start: Start, point: str) -> None:
    first = start()
    await ask(first, "POST", "/v1/payments", ORDER)
    provider.ledger.pay(provider.ledger.only)
    await ask(first, "POST", "/v1/payments/order-1/check")
    first.process.kill()
    refund = {"amount": "30.00", "id": "refund-1"}
    await until_it_dies(start(YAMCHI_FAULT=point), "POST", "/v1/payments/order-1/refund", refund)
    process = start()
    await ask(process, "POST", "/v1/payments/order-1/refund", refund)
    await paid_once(process, provider, refunded="30.00")
    assert provider.ledger.only.refunded == 3_000
