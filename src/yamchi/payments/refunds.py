"""The rows of refunds, and how much of a payment they take."""

from typing import Any

from sqlalchemy import Connection, Row, and_, func, select

from yamchi.errors import WrongState
from yamchi.payments.model import Payment, Refund
from yamchi.payments.money import Money
from yamchi.payments.tables import payment_refunds

UNPAID_REFUNDS = ("new", "pending")


def reserved_for_refunds(connection: Connection, payment_id: str) -> int:
    """What has been given back, or is on its way."""
    going = and_(
        payment_refunds.c.payment_id == payment_id,
        payment_refunds.c.status.in_((*UNPAID_REFUNDS, "succeeded")),
    )
    total = connection.execute(
        select(func.coalesce(func.sum(payment_refunds.c.amount), 0)).where(going)
    ).scalar()
    return int(total or 0)


def same_refund(known: Row[Any], payment: Payment, money: Money | None) -> Refund:
    """The refund that has this id already; an id means one refund of one payment."""
    refund = refund_of(known, payment.money.currency)
    if refund.payment_id != payment.id or (money is not None and money != refund.money):
        raise WrongState(
            f"Refund {refund.id} is there already, of {refund.money} of payment {refund.payment_id}: use another id."
        )
    return refund


def refund_row(refund: Refund) -> dict[str, Any]:
    return {
        "id": refund.id,
        "payment_id": refund.payment_id,
        "provider_id": refund.provider_id,
        "status": refund.status,
        "amount": refund.money.minor,
        "reason": refund.reason,
        "created_at": refund.created_at,
        "updated_at": refund.created_at,
    }


def refund_of(row: Row[Any], currency: str) -> Refund:
    return Refund(
        row.id,
        row.payment_id,
        row.provider_id,
        row.status,
        Money.of_minor(row.amount, currency),
        row.reason,
        row.created_at,
    )
