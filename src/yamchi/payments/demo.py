"""The part of payments in `yamchi demo`: a provider that lives in this process, a payment that takes a while, a refund."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

from yamchi.clock import Millis
from yamchi.notifications.demo import PEOPLE, person
from yamchi.notifications.plugin import Notifications
from yamchi.payments.money import Money
from yamchi.payments.plugin import Payments
from yamchi.payments.providers.base import (
    BadWebhook,
    NewPayment,
    NotFound,
    Notice,
    ProviderPayment,
    ProviderRefund,
)
from yamchi.plugins import Stage

LOOKS = 3
"""The customer pays after the provider was asked so often."""


class DemoProvider:
    """Keeps its books in memory, and takes no money from anybody."""

    name = "demo"

    def __init__(self) -> None:
        self._books: dict[str, ProviderPayment] = {}
        self._looks = 0

    async def create(self, payment: NewPayment, key: str) -> ProviderPayment:
        nothing = Money.of_minor(0, payment.money.currency)
        made = ProviderPayment(key, "pending", payment.money, nothing, nothing, created_at=0)
        return self._books.setdefault(key, replace(made, confirmation_url="https://pay.example/demo"))

    async def get(self, payment_id: str) -> ProviderPayment:
        if payment_id not in self._books:
            raise NotFound("The demo's provider knows no such payment.")
        self._looks += 1
        if self._looks == LOOKS:
            paid = self._books[payment_id]
            self._books[payment_id] = replace(paid, status="succeeded", captured=paid.money)
        return self._books[payment_id]

    async def capture(self, payment_id: str, money: Money, key: str) -> ProviderPayment:
        return self._books[payment_id]

    async def cancel(self, payment_id: str, key: str) -> ProviderPayment:
        self._books[payment_id] = replace(self._books[payment_id], status="canceled")
        return self._books[payment_id]

    async def refund(self, payment_id: str, money: Money, key: str) -> ProviderRefund:
        self._books[payment_id] = replace(self._books[payment_id], refunded=money)
        return ProviderRefund(key, "succeeded")

    async def get_refund(self, refund_id: str) -> ProviderRefund:
        return ProviderRefund(refund_id, "succeeded")

    async def since(self, moment: Millis) -> AsyncIterator[ProviderPayment]:
        for payment in self._books.values():
            yield payment

    def read_webhook(self, headers: Mapping[str, str], body: bytes, now: Millis) -> Notice | None:
        raise BadWebhook("The demo's provider sends no webhooks.")

    async def ping(self) -> str:
        return "the demo's provider is in this process"

    async def close(self) -> None:
        return


async def play(payments: Payments, stage: Stage) -> None:
    payments.register(DemoProvider())
    payment = await payments.create(
        "4500.00",
        "KZT",
        provider="demo",
        payment_id="demo-order-1",
        user_id=await _customer(payments),
        description="Повторный анализ",
        order_id="1",
    )
    stage.say(f"asked for {payment.money}; the customer is sent to {payment.confirmation_url}")
    await stage.wait("10m")
    payment = await payments.get(payment.id)
    stage.say(f"no webhook came; the checks found out: it is {payment.status}, and the customer has a letter")
    await payments.refund(payment.id, "500.00", refund_id="demo-refund-1")
    await stage.wait("10m")
    stage.say(f"{(await payments.get(payment.id)).refunded} were given back")


async def _customer(payments: Payments) -> str:
    """Somebody of the demo who has an address."""
    name, user = next(iter(PEOPLE.items()))
    await payments.app.plugin(Notifications).recipients.put(str(person(name)), user)
    return str(person(name))
