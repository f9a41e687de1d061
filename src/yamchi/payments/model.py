"""A payment as we keep it, and what is to be told of it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID

from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from sqlalchemy import Row

from yamchi.clock import Millis, isoformat, isoformat_or_none
from yamchi.errors import InvalidJob
from yamchi.payments.money import Money
from yamchi.payments.providers.base import FINAL, NewPayment, Status


@dataclass(frozen=True, slots=True)
class Payment:
    """A row of `payments`."""

    id: str
    provider: str
    provider_id: str | None
    status: Status
    money: Money
    captured: Money
    refunded: Money
    capture: bool
    description: str | None
    order_id: str | None
    user_id: str | None
    return_url: str | None
    confirmation_url: str | None
    metadata: Mapping[str, str]
    reason: str | None
    checks: int
    created_at: Millis
    updated_at: Millis
    final_at: Millis | None
    due_at: Millis | None

    @classmethod
    def of(cls, row: Row[Any]) -> "Payment":
        amounts = (row.amount, row.captured, row.refunded)
        money, captured, refunded = (Money.of_minor(units, row.currency) for units in amounts)
        plain: dict[str, Any] = {name: getattr(row, name) for name in _PLAIN}
        return cls(money=money, captured=captured, refunded=refunded, **plain)

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def request(self) -> NewPayment:
        """What was, or is to be, asked of the provider."""
        metadata = {**self.metadata, **({"order_id": self.order_id} if self.order_id else {})}
        return NewPayment(self.id, self.money, self.capture, self.description, self.return_url, metadata)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can carry it: amounts as text, times in UTC."""
        return {
            "id": self.id,
            "provider": self.provider,
            "provider_id": self.provider_id,
            "status": self.status,
            "amount": self.money.value,
            "currency": self.money.currency,
            "captured": self.captured.value,
            "refunded": self.refunded.value,
            "description": self.description,
            "order_id": self.order_id,
            "user_id": self.user_id,
            "confirmation_url": self.confirmation_url,
            "metadata": dict(self.metadata),
            "reason": self.reason,
            "created_at": isoformat(self.created_at),
            "updated_at": isoformat(self.updated_at),
            "final_at": isoformat_or_none(self.final_at),
        }


_PLAIN = [field.name for field in fields(Payment) if field.name not in ("money", "captured", "refunded")]


@dataclass(frozen=True, slots=True)
class Refund:
    """A row of `payment_refunds`."""

    id: str
    payment_id: str
    provider_id: str | None
    status: str
    money: Money
    reason: str | None
    created_at: Millis

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "payment_id": self.payment_id,
            "provider_id": self.provider_id,
            "status": self.status,
            "amount": self.money.value,
            "currency": self.money.currency,
            "reason": self.reason,
            "created_at": isoformat(self.created_at),
        }


@dataclass(frozen=True, slots=True)
class PaymentEvent:
    """Something that rules and scenarios are to be told of, once."""

    event_id: str
    payment_id: str
    kind: str
    data: Mapping[str, Any]
    user_id: str | None


def read_user_id(given: object) -> str:
    """A person's id, as events have it."""
    try:
        return str(UUID(str(given)))
    except ValueError:
        raise InvalidJob(f"user_id: {str(given)[:64]!r} is no UUID, as people's ids are.") from None


class CheckData(BaseModel):
    """`{paymentId}`, or `{provider, providerId}` where only the provider's id is known."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    payment_id: str | None = Field(
        default=None,
        max_length=64,
        validation_alias=AliasChoices("paymentId", "payment_id"),
        serialization_alias="paymentId",
    )
    provider: str | None = Field(default=None, max_length=32)
    webhook: str | None = Field(
        default=None, max_length=64, description="What the webhook claimed that led to this check."
    )
    provider_id: str | None = Field(
        default=None,
        max_length=128,
        validation_alias=AliasChoices("providerId", "provider_id"),
        serialization_alias="providerId",
    )
