"""A payment's row within a transaction: what a provider says is applied to it, together with what is to be told of that.

A payment only goes forward: an answer that is older than what is known, or comes twice, changes nothing.
"""

from typing import Any

from sqlalchemy import Connection, Select, and_, select, update

from yamchi.clock import Millis
from yamchi.errors import UnknownJob
from yamchi.payments.model import Payment
from yamchi.payments.money import Money
from yamchi.payments.providers.base import RANK, ProviderPayment
from yamchi.payments.tables import payment_events, payments
from yamchi.storage.upsert import insert_new

FIRST_CHECK: Millis = 15_000
"""How long after its creation a payment is first asked after; a webhook usually comes sooner."""


class UnknownPayment(UnknownJob):
    """There is no such payment."""


EMPTY: dict[str, Any] = {
    "provider_id": None,
    "status": "new",
    "captured": 0,
    "refunded": 0,
    "capture": True,
    "description": None,
    "order_id": None,
    "user_id": None,
    "return_url": None,
    "confirmation_url": None,
    "metadata": {},
    "reason": None,
    "checks": 0,
    "final_at": None,
    "reconciled_at": None,
}


def is_known_as(provider: str, provider_id: str) -> Any:
    return and_(payments.c.provider == provider, payments.c.provider_id == provider_id)


def _by_id(payment_id: str) -> Select[Any]:
    return select(payments).where(payments.c.id == payment_id)


def locked(connection: Connection, payment_id: str) -> Payment:
    """The payment, with everybody else who would change it waiting; SQLite has one writer anyway."""
    row = connection.execute(_by_id(payment_id).with_for_update()).first()
    if row is None:
        raise UnknownPayment(f"There is no payment {payment_id!r}.")
    return Payment.of(row)


def id_of(connection: Connection, provider: str, provider_id: str) -> str:
    """The id of the payment that has this one at the provider."""
    query = select(payments.c.id).where(is_known_as(provider, provider_id))
    return str(connection.execute(query).scalar_one())


def adopted(provider: str, found: ProviderPayment, now: Millis) -> dict[str, Any]:
    order_id = found.metadata.get("order_id")
    return {
        **EMPTY,
        "id": f"{provider}-{found.id}",
        "provider": provider,
        "provider_id": found.id,
        "status": "pending",
        "currency": found.money.currency,
        "amount": found.money.minor,
        "description": found.description,
        "order_id": None if order_id is None else str(order_id)[:255],
        "metadata": dict(found.metadata),
        "created_at": found.created_at,
        "updated_at": now,
        "due_at": now + FIRST_CHECK,
    }


def apply(
    connection: Connection,
    payment_id: str,
    found: ProviderPayment,
    now: Millis,
    asked_at: Millis | None = None,
) -> Payment:
    kept = locked(connection, payment_id)
    is_newer = asked_at is not None and asked_at > kept.updated_at
    if changes := _changes(kept, found, now, is_newer):
        change = update(payments).where(payments.c.id == payment_id)
        connection.execute(change.values(updated_at=now, **changes))
    news = Payment.of(connection.execute(_by_id(payment_id)).one())
    insert_new(connection, payment_events, _events_of(kept, news, now))
    return news


def _changes(kept: Payment, found: ProviderPayment, now: Millis, is_newer: bool) -> dict[str, Any]:
    """The columns that change. Status and amounts only ever go up, but for a refund that failed after all."""
    changes: dict[str, Any] = {}
    if kept.provider_id is None:
        changes |= {"provider_id": found.id}
    if found.confirmation_url and kept.confirmation_url is None:
        changes |= {"confirmation_url": found.confirmation_url}
    if RANK[found.status] > RANK[kept.status]:
        changes |= {"status": found.status, "reason": found.reason, "checks": 0}
        is_over = found.status in ("succeeded", "canceled")
        changes |= {"final_at": now if is_over else None}
        if kept.status == "refused" and not is_over:  # its check had ended
            changes |= {"due_at": now + FIRST_CHECK}
    if found.captured.minor > kept.captured.minor:
        changes |= {"captured": found.captured.minor}
    if found.refunded.minor > kept.refunded.minor or (is_newer and found.refunded != kept.refunded):
        changes |= {"refunded": found.refunded.minor}
    return changes


def _events_of(before: Payment, after: Payment, now: Millis) -> list[dict[str, Any]]:
    """What rules and scenarios are to hear; ids are derived, so that nothing is told twice."""
    name = f"{after.provider}:{after.provider_id}"
    news: list[tuple[str, str, dict[str, Any]]] = []
    if after.status != before.status and after.status in ("succeeded", "canceled"):
        news.append((f"{name}:{after.status}", f"payment.{after.status}", {}))
    if after.refunded.minor > before.refunded.minor:
        given = Money.of_minor(after.refunded.minor - before.refunded.minor, after.money.currency)
        step = f"{after.refunded.minor}:{before.updated_at}"  # the same sum is reached again if a refund came back
        news.append((f"{name}:refunded:{step}", "payment.refunded", {"refund_amount": given.value}))
    return [
        {
            "event_id": event_id,
            "payment_id": after.id,
            "kind": kind,
            "data": {**_event_data(after), **more},
            "created_at": now,
            "told_at": None,
            "is_for_rules": True,
        }
        for event_id, kind, more in news
    ]


def _event_data(payment: Payment) -> dict[str, Any]:
    shown = payment.to_dict()
    names = ("provider", "provider_id", "status", "amount", "currency", "captured", "refunded")
    others = ("description", "order_id", "reason", "metadata")
    return {"payment_id": payment.id, **{name: shown[name] for name in (*names, *others)}}
