"""A shop for tests about payments: an application under a movable clock, and a provider that answers as the real one does."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from sqlalchemy import select

from tests.services import stripe, yookassa
from tests.services.ledger import Entry, Ledger
from yamchi.notifications.tables import events
from yamchi.payments.model import Payment
from yamchi.testing import TestApp
from yamchi.web import create_app

Server = yookassa.YooKassaServer | stripe.StripeServer
USER = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001"


def settings_of(server: Server) -> dict[str, Any]:
    """How an application is told of this provider."""
    if isinstance(server, stripe.StripeServer):
        return {
            "stripe_secret_key": stripe.SECRET,
            "stripe_webhook_secret": stripe.WEBHOOK_SECRET,
            "stripe_url": server.url,
        }
    return {
        "yookassa_shop_id": yookassa.SHOP,
        "yookassa_secret_key": yookassa.SECRET,
        "yookassa_url": server.url,
    }


@dataclass
class Shop:
    app: TestApp
    client: httpx2.AsyncClient
    server: Server

    @property
    def name(self) -> str:
        return "stripe" if isinstance(self.server, stripe.StripeServer) else "yookassa"

    @property
    def ledger(self) -> Ledger:
        return self.server.ledger

    async def create(self, **fields: Any) -> dict[str, Any]:
        asked = {"amount": "100.00", "order_id": "42", "user_id": USER, **fields}
        answer = await self.client.post("/v1/payments", json=asked)
        assert answer.status_code in (201, 202), answer.text
        return dict(answer.json())

    async def webhook(self, entry: Entry, kind: str | None = None) -> httpx2.Response:
        if self.name == "yookassa":
            return await self.client.post("/webhooks/payments/yookassa", json=yookassa.webhook(entry, kind))
        body = json.dumps(stripe.webhook(entry, kind)).encode()
        signed = stripe.signature(body, self.app.clock.now() / 1000)
        return await self.client.post(
            "/webhooks/payments/stripe", content=body, headers={"Stripe-Signature": signed}
        )

    async def told(self) -> list[tuple[str, dict[str, Any]]]:
        """What rules and scenarios heard, in order."""
        query = select(events.c.event_type, events.c.data).order_by(events.c.received_at, events.c.event_id)
        rows = await self.app.database.read(lambda connection: connection.execute(query).all())
        return [(row.event_type, row.data) for row in rows]

    async def kinds(self) -> list[str]:
        return [kind for kind, _ in await self.told()]

    async def agrees(self) -> None:
        """Our books are the provider's."""
        ours = await self.app.payments.store.page(status=None, order_id=None, before=None, limit=500)
        assert {one.provider_id: _books(one) for one in ours} == {
            entry.id: (entry.status, entry.amount, entry.captured, entry.refunded)
            for entry in self.ledger.entries.values()
        }


async def paid(shop: Shop, **fields: Any) -> dict[str, Any]:
    """A payment that its customer has paid, and we know it."""
    payment = await shop.create(**fields)
    shop.ledger.pay(shop.ledger.entries[payment["provider_id"]])
    return dict((await shop.client.post(f"/v1/payments/{payment['id']}/check")).json())


def _books(payment: Payment) -> tuple[str, int, int, int]:
    return payment.status, payment.money.minor, payment.captured.minor, payment.refunded.minor


@asynccontextmanager
async def a_shop(home: Path, server: Server, **settings: Any) -> AsyncIterator[Shop]:
    app = TestApp(home=home, **settings_of(server), **settings)
    app.serve()
    server.ledger.clock = lambda: app.clock.now() / 1000
    transport = httpx2.ASGITransport(create_app(app))
    async with app, httpx2.AsyncClient(transport=transport, base_url="http://localhost/api") as client:
        yield Shop(app, client, server)
