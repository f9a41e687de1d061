"""What every provider does for us, whatever it calls its things."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from yamchi.clock import Millis
from yamchi.errors import Retryable, WrongState, YamchiError
from yamchi.payments.money import Money

Status = Literal["new", "pending", "waiting_for_capture", "succeeded", "canceled", "refused"]
"""`new`: not known to have reached the provider; `refused`: the provider did not take it."""

RefundStatus = Literal["pending", "succeeded", "canceled"]

FINAL: tuple[Status, ...] = ("succeeded", "canceled", "refused")
RANK: dict[Status, int] = {
    "new": 0,
    "refused": 0,
    "pending": 1,
    "waiting_for_capture": 2,
    "succeeded": 3,
    "canceled": 3,
}
"""A payment only ever goes up; a late answer that says less than is known changes nothing. `refused` is our own word for a
payment that is not known to be there: whatever the provider says of it counts for more."""


class Refused(WrongState):
    """The provider understood and said no: asking again with the same key would give the same answer."""


class NotFound(Refused):
    """The provider knows no such payment."""


class UnknownOutcome(Retryable):
    """The provider may have done it: only the same call with the same key tells."""


class Unreadable(UnknownOutcome):
    """The provider answered, in a shape that is not known here."""


@dataclass(frozen=True, slots=True)
class NewPayment:
    """What we ask a provider for."""

    id: str
    money: Money
    capture: bool = True
    description: str | None = None
    return_url: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProviderPayment:
    """A payment as its provider has it now."""

    id: str
    status: Status
    money: Money
    captured: Money
    refunded: Money
    created_at: Millis
    confirmation_url: str | None = None
    client_secret: str | None = None
    reason: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    description: str | None = None


@dataclass(frozen=True, slots=True)
class ProviderRefund:
    """A refund as its provider has it now."""

    id: str
    status: RefundStatus
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """What a webhook claims: that something happened to a payment. Nothing else of it is believed."""

    id: str
    kind: str
    payment_id: str
    is_signed: bool = False
    """Whether it is sure that the provider sent it; else it may be anybody's."""


class BadWebhook(YamchiError):
    """This did not come from the provider, or is not what it sends."""


class Provider(Protocol):
    """One account at one provider. Every call that moves money takes a key: the same key again is the same act."""

    name: str

    async def create(self, payment: NewPayment, key: str) -> ProviderPayment: ...

    async def get(self, payment_id: str) -> ProviderPayment:
        """The truth; `NotFound` if there is no such payment."""

    async def capture(self, payment_id: str, money: Money, key: str) -> ProviderPayment: ...

    async def cancel(self, payment_id: str, key: str) -> ProviderPayment: ...

    async def refund(self, payment_id: str, money: Money, key: str) -> ProviderRefund: ...

    async def get_refund(self, refund_id: str) -> ProviderRefund:
        """What became of a refund, by the provider's own id."""

    def since(self, moment: Millis) -> AsyncIterator[ProviderPayment]:
        """Every payment made since then, page by page."""

    def read_webhook(self, headers: Mapping[str, str], body: bytes, now: Millis) -> Notice | None:
        """What a webhook claims; None for what concerns no payment. `BadWebhook` for what is not from the provider."""

    async def ping(self) -> str:
        """Whether the provider knows us, in words."""

    async def close(self) -> None: ...
