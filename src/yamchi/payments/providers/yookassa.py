"""YooKassa, API v3. It signs no webhook: what one says is looked up, and may first be checked by where it came from."""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

from yamchi.clock import Millis, isoformat, to_moment
from yamchi.errors import InvalidJob
from yamchi.http.limits import read_json
from yamchi.payments.money import Money
from yamchi.payments.providers.base import (
    BadWebhook,
    NewPayment,
    NotFound,
    Notice,
    ProviderPayment,
    ProviderRefund,
    RefundStatus,
    Status,
)
from yamchi.payments.providers.calling import Page, ProviderApi

T = TypeVar("T")

PAGE = 100
_STATUSES: dict[str, Status] = {
    "pending": "pending",
    "waiting_for_capture": "waiting_for_capture",
    "succeeded": "succeeded",
    "canceled": "canceled",
}
_REFUNDS: dict[str, RefundStatus] = {"succeeded": "succeeded", "canceled": "canceled"}
_EVENTS = (
    "payment.succeeded",
    "payment.waiting_for_capture",
    "payment.canceled",
    "refund.succeeded",
)
_ID = re.compile(r"[0-9A-Za-z-]{1,64}")
_NOBODY = "00000000-0000-5000-8000-000000000000"


class YooKassa:
    """A shop at YooKassa."""

    name = "yookassa"

    def __init__(self, shop_id: str, secret: str, url: str) -> None:
        self._api = ProviderApi("YooKassa", url, (shop_id, secret))

    async def create(self, payment: NewPayment, key: str) -> ProviderPayment:
        confirmation = {"type": "redirect", "return_url": payment.return_url} if payment.return_url else None
        body = {
            "amount": _amount(payment.money),
            "capture": payment.capture,
            "confirmation": confirmation,
            "description": payment.description,
            "metadata": {**payment.metadata, "yamchi_id": payment.id},
        }
        return await self._post("/payments", _given(body), key, _payment)

    async def get(self, payment_id: str) -> ProviderPayment:
        return await self._api.call("GET", f"/payments/{quote(payment_id, safe='')}", _payment)

    async def capture(self, payment_id: str, money: Money, key: str) -> ProviderPayment:
        path = f"/payments/{quote(payment_id, safe='')}/capture"
        return await self._post(path, {"amount": _amount(money)}, key, _payment)

    async def cancel(self, payment_id: str, key: str) -> ProviderPayment:
        return await self._post(f"/payments/{quote(payment_id, safe='')}/cancel", {}, key, _payment)

    async def refund(self, payment_id: str, money: Money, key: str) -> ProviderRefund:
        body = {"payment_id": payment_id, "amount": _amount(money)}
        return await self._post("/refunds", body, key, _refund)

    async def get_refund(self, refund_id: str) -> ProviderRefund:
        return await self._api.call("GET", f"/refunds/{quote(refund_id, safe='')}", _refund)

    def since(self, moment: Millis) -> AsyncIterator[ProviderPayment]:
        query = {"created_at.gte": isoformat(moment), "limit": PAGE}
        return self._api.list_all("/payments", query, cursor="cursor", read_page=_page, read=_payment)

    def read_webhook(self, headers: Mapping[str, str], body: bytes, now: Millis) -> Notice | None:
        try:
            notification = read_json(body)
            kind, thing = str(notification["event"]), notification["object"]
            is_refund = kind.startswith("refund.")
            payment_id, own_id = str(thing["payment_id" if is_refund else "id"]), str(thing["id"])
        except (InvalidJob, KeyError, TypeError):
            raise BadWebhook("This is not a notification of YooKassa.") from None
        if kind not in _EVENTS:
            return None
        if not (_ID.fullmatch(payment_id) and _ID.fullmatch(own_id)):
            raise BadWebhook("This is not a notification of YooKassa: its ids are not theirs.")
        return Notice(f"{kind}-{own_id}", kind, payment_id)

    async def ping(self) -> str:
        with suppress(NotFound):  # it let us in and looked
            await self.get(_NOBODY)
        return "YooKassa knows this shop"

    async def close(self) -> None:
        await self._api.close()

    async def _post(
        self, path: str, body: Mapping[str, Any], key: str, read: Callable[[Mapping[str, Any]], T]
    ) -> T:
        return await self._api.call("POST", path, read, json=body, headers={"Idempotence-Key": key})


def _page(answer: Mapping[str, Any]) -> Page:
    return answer["items"], answer.get("next_cursor")


def _payment(answer: Mapping[str, Any]) -> ProviderPayment:
    money = _money(answer["amount"])
    status = _STATUSES.get(str(answer["status"]), "pending")
    nothing = Money.of_minor(0, money.currency)
    refunded = answer.get("refunded_amount")
    return ProviderPayment(
        id=str(answer["id"]),
        status=status,
        money=money,
        captured=money if status == "succeeded" else nothing,
        refunded=_money(refunded) if refunded else nothing,
        created_at=to_moment(datetime.fromisoformat(str(answer["created_at"]))),
        confirmation_url=(answer.get("confirmation") or {}).get("confirmation_url"),
        reason=_reason(answer),
        metadata=answer.get("metadata") or {},
        description=answer.get("description"),
    )


def _refund(answer: Mapping[str, Any]) -> ProviderRefund:
    return ProviderRefund(str(answer["id"]), _REFUNDS.get(str(answer["status"]), "pending"), _reason(answer))


def _reason(answer: Mapping[str, Any]) -> str | None:
    details = answer.get("cancellation_details")
    return f"{details.get('reason')} ({details.get('party')})" if details else None


def _amount(money: Money) -> dict[str, str]:
    return {"value": money.value, "currency": money.currency}


def _money(amount: Mapping[str, str]) -> Money:
    return Money.parse(amount["value"], amount["currency"])


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
