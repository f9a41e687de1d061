"""SIGKILL at each named point of a payment's way: afterwards there is one payment, one event of each kind, and equal books."""

import asyncio
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.payments.shop import Server, settings_of
from tests.processes import DEADLINE, Process
from tests.services import stripe, yookassa
from tests.services.ledger import Entry
from yamchi.testing import eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(240)]

PAYMENTS = Path(__file__).parents[2] / "src/yamchi/payments"
ORDER = {"amount": "100.00", "id": "order-1", "return_url": "https://shop.example/thanks"}
CREATING = ("payment.stored", "payment.watched", "payment.created")
LEARNING = ("payment.webhook", "payment.applied", "payment.told")
TAKING_IN = ("payment.fetched",)
CAPTURING = ("payment.captured", "payment.applied")
CANCELING = ("payment.canceled", "payment.applied")
REFUNDING = ("refund.stored", "refund.created")
EVENTS = ("payment.succeeded", "payment.canceled", "payment.refunded")

Start = Callable[..., Process]


@pytest.fixture
def start(server: Server, tmp_path: Path) -> Iterator[Start]:
    started: list[Process] = []
    settings = {name.upper(): str(value) for name, value in settings_of(server).items()}

    def start(**environment: str) -> Process:
        started.append(Process(tmp_path, "up", "--port", "0", LEASE="1s", **settings, **environment))
        return started[-1]

    yield start
    for process in started:
        process.process.kill()
        process.process.wait()


async def call(process: Process, method: str, path: str, body: Any = None, **request: Any) -> Any:
    url = await asyncio.to_thread(lambda: process.url)
    async with httpx2.AsyncClient(base_url=f"{url}/api", timeout=DEADLINE) as client:
        answer = await client.request(method, path, json=body, **request)
    assert answer.is_success, answer.text
    return answer.json()


async def notify(process: Process, server: Server) -> None:
    """The provider's webhook about its only payment; it is repeated until it is confirmed."""
    entry = server.ledger.only
    if isinstance(server, yookassa.YooKassaServer):
        await call(process, "POST", "/webhooks/payments/yookassa", yookassa.webhook(entry))
        return
    body = json.dumps(stripe.webhook(entry)).encode()
    headers = {"Stripe-Signature": stripe.signature(body), "Content-Type": "application/json"}
    await call(process, "POST", "/webhooks/payments/stripe", content=body, headers=headers)


async def until_it_dies(process: Process, request: Any) -> None:
    with suppress(httpx2.TransportError):
        await request
    await eventually(lambda: process.process.poll() == -9, DEADLINE)


async def ends_as(process: Process, server: Server, *wanted: str) -> None:
    """Each of these events was told once and nothing else; the tables say what the provider's books say."""

    def is_told() -> bool:
        counted = Counter(row[0] for row in rows_of(process, "SELECT event_type FROM events"))
        return {kind: counted[kind] for kind in EVENTS if counted[kind]} == Counter(wanted)

    await eventually(is_told, DEADLINE)
    query = "SELECT provider_id, status, amount, captured, refunded FROM payments"
    await eventually(lambda: rows_of(process, query) == [books_of(server.ledger.only)], DEADLINE)
    untold = "SELECT count(*) FROM payment_events WHERE is_for_rules AND told_at IS NULL"
    await eventually(lambda: rows_of(process, untold) == [(0,)], DEADLINE)
    assert is_told()


def rows_of(process: Process, query: str) -> list[Any]:
    with closing(sqlite3.connect(process.output.parent / "var" / "data.db")) as database:
        return database.execute(query).fetchall()


def books_of(entry: Entry) -> tuple[str, str, int, int, int]:
    return entry.id, entry.status, entry.amount, entry.captured, entry.refunded


def test_every_point_is_tried() -> None:
    sources = "".join(path.read_text() for path in PAYMENTS.rglob("*.py"))
    named = set(re.findall(r'fault_point\("([a-z.]+)"\)', sources))
    assert named == {*CREATING, *LEARNING, *TAKING_IN, *CAPTURING, *CANCELING, *REFUNDING}


@pytest.mark.parametrize("point", CREATING)
async def test_while_it_is_created(server: Server, start: Start, point: str) -> None:
    process = start(YAMCHI_FAULT=point)
    await until_it_dies(process, call(process, "POST", "/v1/payments", ORDER))
    process = start()
    payment = await call(process, "POST", "/v1/payments", ORDER)
    assert payment["provider_id"] == server.ledger.only.id
    server.ledger.pay(server.ledger.only)
    await notify(process, server)
    await ends_as(process, server, "payment.succeeded")


@pytest.mark.parametrize("point", LEARNING)
async def test_while_it_is_learned_of(server: Server, start: Start, point: str) -> None:
    first = start()
    await call(first, "POST", "/v1/payments", ORDER)
    first.process.kill()
    server.ledger.pay(server.ledger.only)
    process = start(YAMCHI_FAULT=point)
    await until_it_dies(process, notify(process, server))
    process = start()
    await notify(process, server)
    await ends_as(process, server, "payment.succeeded")


@pytest.mark.parametrize("point", TAKING_IN)
async def test_while_a_payment_made_elsewhere_is_taken_in(server: Server, start: Start, point: str) -> None:
    fields = {"currency": "RUB" if isinstance(server, yookassa.YooKassaServer) else "rub", "metadata": {}}
    entry = server.ledger.create(amount=10_000, capture=True, description=None, **fields)
    server.ledger.pay(entry)
    process = start(YAMCHI_FAULT=point)
    await until_it_dies(process, notify(process, server))
    process = start()
    await notify(process, server)
    await ends_as(process, server, "payment.succeeded")


@pytest.mark.parametrize("point", CAPTURING)
async def test_while_money_set_aside_is_taken(server: Server, start: Start, point: str) -> None:
    await set_aside(server, start())
    process = start(YAMCHI_FAULT=point)
    await until_it_dies(process, call(process, "POST", "/v1/payments/order-1/capture", {}))
    process = start()
    await call(process, "POST", "/v1/payments/order-1/capture", {})
    await notify(process, server)
    await ends_as(process, server, "payment.succeeded")


@pytest.mark.parametrize("point", CANCELING)
async def test_while_money_set_aside_is_released(server: Server, start: Start, point: str) -> None:
    await set_aside(server, start())
    process = start(YAMCHI_FAULT=point)
    await until_it_dies(process, call(process, "POST", "/v1/payments/order-1/cancel", {}))
    process = start()
    await call(process, "POST", "/v1/payments/order-1/cancel", {})
    await notify(process, server)
    await ends_as(process, server, "payment.canceled")


@pytest.mark.parametrize("point", REFUNDING)
async def test_while_money_is_given_back(server: Server, start: Start, point: str) -> None:
    first = start()
    await call(first, "POST", "/v1/payments", ORDER)
    server.ledger.pay(server.ledger.only)
    await call(first, "POST", "/v1/payments/order-1/check")
    first.process.kill()
    refund = {"amount": "30.00", "id": "refund-1"}
    process = start(YAMCHI_FAULT=point)
    await until_it_dies(process, call(process, "POST", "/v1/payments/order-1/refund", refund))
    process = start()
    await call(process, "POST", "/v1/payments/order-1/refund", refund)
    await ends_as(process, server, "payment.succeeded", "payment.refunded")
    assert server.ledger.only.refunded == 3_000


async def set_aside(server: Server, process: Process) -> None:
    """A payment whose money waits for a capture, and a process that is gone."""
    await call(process, "POST", "/v1/payments", {**ORDER, "capture": False})
    server.ledger.pay(server.ledger.only)
    await call(process, "POST", "/v1/payments/order-1/check")
    process.process.kill()
    process.process.wait()
