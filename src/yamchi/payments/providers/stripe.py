"""Stripe: payment intents, with a signature on every webhook, which is looked up all the same."""

import hmac
from collections.abc import AsyncIterator, Callable, Mapping
from decimal import Decimal
from hashlib import sha256
from typing import Any, TypeVar
from urllib.parse import quote

from yamchi.clock import Millis
from yamchi.errors import InvalidJob
from yamchi.http.limits import read_json
from yamchi.payments.money import Money, digits
from yamchi.payments.providers.base import (
    BadWebhook,
    NewPayment,
    Notice,
    ProviderPayment,
    ProviderRefund,
    RefundStatus,
    Refused,
    Status,
)
from yamchi.payments.providers.calling import Page, ProviderApi

T = TypeVar("T")

PAGE = 100
TOLERANCE: Millis = 300_000
"""How old a signature may be."""

_STATUSES: dict[str, Status] = {
    "requires_capture": "waiting_for_capture",
    "succeeded": "succeeded",
    "canceled": "canceled",
}
_REFUNDS: dict[str, RefundStatus] = {
    "succeeded": "succeeded",
    "failed": "canceled",
    "canceled": "canceled",
}
_DIGITS = {"ISK": 2, "UGX": 2, "MGA": 0}
"""Where Stripe's units are not those of ISO 4217."""

_EXPANDED = {"expand[]": "latest_charge"}


class Stripe:
    """An account at Stripe."""

    name = "stripe"

    def __init__(self, secret: str, webhook_secret: str | None, url: str) -> None:
        self._api = ProviderApi("Stripe", url, (secret, ""))
        self._webhook_secret = webhook_secret

    async def create(self, payment: NewPayment, key: str) -> ProviderPayment:
        metadata = {**payment.metadata, "yamchi_id": payment.id}
        fields = {
            "amount": _units(payment.money),
            "currency": payment.money.currency.lower(),
            "capture_method": "automatic" if payment.capture else "manual",
            "automatic_payment_methods[enabled]": "true",
            **({"description": payment.description} if payment.description else {}),
            **{f"metadata[{name}]": value for name, value in metadata.items()},
            **_EXPANDED,
        }
        return await self._post("/payment_intents", fields, key, _payment)

    async def get(self, payment_id: str) -> ProviderPayment:
        return await self._api.call("GET", _intent(payment_id), _payment, params=_EXPANDED)

    async def capture(self, payment_id: str, money: Money, key: str) -> ProviderPayment:
        fields = {"amount_to_capture": _units(money), **_EXPANDED}
        return await self._post(f"{_intent(payment_id)}/capture", fields, key, _payment)

    async def cancel(self, payment_id: str, key: str) -> ProviderPayment:
        return await self._post(f"{_intent(payment_id)}/cancel", _EXPANDED, key, _payment)

    async def refund(self, payment_id: str, money: Money, key: str) -> ProviderRefund:
        fields = {"payment_intent": payment_id, "amount": _units(money)}
        return await self._post("/refunds", fields, key, _refund)

    async def get_refund(self, refund_id: str) -> ProviderRefund:
        return await self._api.call("GET", f"/refunds/{quote(refund_id, safe='')}", _refund)

    def since(self, moment: Millis) -> AsyncIterator[ProviderPayment]:
        query = {"created[gte]": moment // 1000, "limit": PAGE, "expand[]": "data.latest_charge"}
        return self._api.list_all(
            "/payment_intents", query, cursor="starting_after", read_page=_page, read=_payment
        )

    def read_webhook(self, headers: Mapping[str, str], body: bytes, now: Millis) -> Notice | None:
        self._verify(headers.get("stripe-signature", ""), body, now)
        try:
            event = read_json(body)
            kind, event_id, thing = str(event["type"]), str(event["id"]), event["data"]["object"]
            payment_id = thing["id"] if kind.startswith("payment_intent.") else thing.get("payment_intent")
        except (InvalidJob, KeyError, TypeError, AttributeError):
            raise BadWebhook("This is not an event of Stripe.") from None
        return Notice(event_id, kind, payment_id, is_signed=True) if isinstance(payment_id, str) else None

    def _verify(self, header: str, body: bytes, now: Millis) -> None:
        """`t=…,v1=…[,v1=…]`: any of the signatures may be the one made with our secret."""
        if self._webhook_secret is None:
            raise BadWebhook("STRIPE_WEBHOOK_SECRET is not set, so no webhook of Stripe can be checked.")
        parts = [part.strip().partition("=") for part in header[:2_000].split(",")]
        moment = next((value for name, _, value in parts if name == "t"), "")
        given = [value for name, _, value in parts if name == "v1"]
        expected = hmac.new(self._webhook_secret.encode(), moment.encode() + b"." + body, sha256).hexdigest()
        is_genuine = sum(hmac.compare_digest(expected.encode(), one.encode()) for one in given) > 0
        if not is_genuine:
            raise BadWebhook("The signature is not Stripe's: check STRIPE_WEBHOOK_SECRET.")
        if not (moment.isascii() and moment.isdecimal()) or abs(now - int(moment) * 1000) > TOLERANCE:
            raise BadWebhook("The signature is older than five minutes.")

    async def ping(self) -> str:
        await self._api.call("GET", "/payment_intents", _page, params={"limit": 1})
        return "Stripe knows this account"

    async def close(self) -> None:
        await self._api.close()

    async def _post(
        self, path: str, fields: Mapping[str, Any], key: str, read: Callable[[Mapping[str, Any]], T]
    ) -> T:
        return await self._api.call("POST", path, read, data=fields, headers={"Idempotency-Key": key})


def _page(answer: Mapping[str, Any]) -> Page:
    """The payments of a page, and after which of them the next one begins."""
    items = answer["data"]
    return items, str(items[-1]["id"]) if answer.get("has_more") and items else None


def _intent(payment_id: str) -> str:
    return f"/payment_intents/{quote(payment_id, safe='')}"


def _units(money: Money) -> int:
    """An amount in Stripe's smallest units."""
    units = money.amount.scaleb(_digits(money.currency))
    if units != int(units):
        raise Refused(f"Stripe takes no parts of a {money.currency}: {money} has some.")
    return int(units)


def _money(units: int, currency: str) -> Money:
    return Money.parse(Decimal(units).scaleb(-_digits(currency)), currency)


def _digits(currency: str) -> int:
    return _DIGITS.get(currency, digits(currency))


def _refund(answer: Mapping[str, Any]) -> ProviderRefund:
    status = _REFUNDS.get(str(answer.get("status")), "pending")
    return ProviderRefund(str(answer["id"]), status, answer.get("failure_reason"))


def _payment(answer: Mapping[str, Any]) -> ProviderPayment:
    currency = str(answer["currency"]).upper()
    charge = answer.get("latest_charge")
    refunded = charge.get("amount_refunded", 0) if isinstance(charge, dict) else 0
    return ProviderPayment(
        id=str(answer["id"]),
        status=_STATUSES.get(str(answer["status"]), "pending"),
        money=_money(answer["amount"], currency),
        captured=_money(answer.get("amount_received") or 0, currency),
        refunded=_money(refunded, currency),
        created_at=int(answer["created"]) * 1000,
        client_secret=answer.get("client_secret"),
        reason=answer.get("cancellation_reason"),
        metadata=answer.get("metadata") or {},
        description=answer.get("description"),
    )
