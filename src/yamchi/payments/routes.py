"""Payments over HTTP: asking for money, looking, capturing, canceling, refunding, and the providers' webhooks."""

import ipaddress
from collections.abc import Awaitable
from http import HTTPStatus
from typing import Annotated, Any, TypeVar
from uuid import UUID

import structlog
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, HttpUrl
from starlette.exceptions import HTTPException

from yamchi.errors import Outage
from yamchi.fields import few
from yamchi.http.access import TheCaller, seen_by
from yamchi.http.cursors import next_cursor
from yamchi.http.paging import Before, Limit, read_before
from yamchi.http.problems import documented
from yamchi.payments.model import Payment
from yamchi.payments.money import Money
from yamchi.payments.plugin import Payments
from yamchi.payments.providers.base import BadWebhook, UnknownOutcome
from yamchi.payments.refunds import UNPAID_REFUNDS
from yamchi.plugins import Routes, of_request

log = structlog.get_logger("yamchi.payments")

T = TypeVar("T")
PROBLEMS = documented(401, 403, 404, 409, 422, 502, 503)

senders = APIRouter(tags=["payments"], responses=PROBLEMS)
router = APIRouter(tags=["payments"], responses=PROBLEMS)
webhooks = APIRouter(tags=["payments"], responses=documented(400, 403, 404, 429, 503))

ThePayments = Annotated[Payments, Depends(of_request(Payments))]
PaymentId = Annotated[str, Path(max_length=64)]
Amount = Annotated[
    str,
    Field(pattern=r"^[0-9]{1,13}(\.[0-9]{1,4})?$", examples=["100.00"], description="A decimal, as text."),
]
OwnId = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^\.*[A-Za-z0-9_:-][A-Za-z0-9._:-]*$")]


class PaymentIn(BaseModel):
    """Money to ask for."""

    model_config = ConfigDict(extra="forbid")

    amount: Amount
    currency: str = Field(default="RUB", pattern="^[A-Za-z]{3}$")
    provider: str | None = Field(
        default=None, max_length=32, description="yookassa or stripe; the first that is set up."
    )
    id: OwnId | None = Field(default=None, description="Your own id: the same one again is the same payment.")
    description: str | None = Field(default=None, max_length=128)
    order_id: str | None = Field(default=None, max_length=255)
    user_id: UUID | None = Field(default=None, description="Whom `payment_succeeded` is sent to.")
    return_url: HttpUrl | None = Field(default=None, description="Where the customer comes back to.")
    capture: bool = Field(default=True, description="False sets the money aside until it is captured.")
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=32)], Annotated[str, Field(max_length=512)]], few(14)
    ] = Field(default_factory=dict, max_length=14)


class PaymentState(BaseModel):
    """What a customer needs to pay: all that a caller who may only send learns of a payment that was there before."""

    id: str
    status: str = Field(examples=["pending"])
    confirmation_url: str | None = Field(description="Where the customer pays; YooKassa.")
    client_secret: str | None = Field(default=None, description="For the page that pays; Stripe, once.")


class PaymentOut(PaymentState):
    """A payment as it is known here; the provider's word is asked for by `check`."""

    provider: str
    provider_id: str | None
    amount: str
    currency: str
    captured: str
    refunded: str
    description: str | None
    order_id: str | None
    user_id: str | None
    metadata: dict[str, Any]
    reason: str | None
    created_at: str
    updated_at: str
    final_at: str | None


class PaymentsOut(BaseModel):
    items: list[PaymentOut]
    next_before: str | None = Field(description="Give it as `before` to go on; null at the end.")


class PaymentDetail(PaymentOut):
    refunds: list[dict[str, Any]]
    events: list[dict[str, Any]]


class AmountIn(BaseModel):
    """How much; all of it if nothing is said."""

    model_config = ConfigDict(extra="forbid")

    amount: Amount | None = None


class RefundIn(AmountIn):
    """Money to give back."""

    id: OwnId | None = Field(default=None, description="Your own id: the same one again is the same refund.")


@senders.post("/payments", status_code=201, summary="Ask for money")
async def create_payment(
    payments: ThePayments, caller: TheCaller, new: PaymentIn, response: Response
) -> PaymentOut | PaymentState:
    """201 with where the customer pays; 202 if the provider gave no answer yet: the payment is followed up by itself.

    A key that may send and not read is answered with the whole payment once; by the same `id` again it learns only the
    status and where the customer pays.
    """
    asked = await payments.service.create(
        Money.parse(new.amount, new.currency),
        provider=new.provider,
        payment_id=new.id,
        description=new.description,
        order_id=new.order_id,
        user_id=None if new.user_id is None else str(new.user_id),
        return_url=None if new.return_url is None else str(new.return_url),
        capture=new.capture,
        metadata=new.metadata,
    )
    payment = asked.payment
    response.status_code = HTTPStatus.ACCEPTED if payment.status == "new" else HTTPStatus.CREATED
    shape = PaymentOut if asked.is_new or caller.may_look else PaymentState
    return shape(**payment.to_dict(), client_secret=asked.client_secret)


@router.get("/payments", summary="Payments, newest first")
async def list_payments(
    payments: ThePayments,
    caller: TheCaller,
    status: Annotated[str | None, Query(max_length=32)] = None,
    order_id: Annotated[str | None, Query(max_length=255)] = None,
    before: Before = None,
    limit: Limit = 50,
) -> PaymentsOut:
    found = await payments.store.page(
        status=status, order_id=order_id, before=read_before(before), limit=limit
    )
    shown = await seen_by(caller, [one.to_dict() for one in found])
    return PaymentsOut(items=[PaymentOut(**one) for one in shown], next_before=next_cursor(found, limit))


@router.get("/payments/reconciliations", summary="What comparing the books found, newest first")
async def list_reconciliations(payments: ThePayments, limit: Limit = 20) -> list[dict[str, Any]]:
    return await payments.store.reconciliations(limit)


@router.post("/payments/reconcile", summary="Compare the books now")
async def reconcile(
    payments: ThePayments, days: Annotated[int, Query(ge=1, le=90)] = 3
) -> list[dict[str, Any]]:
    return [report.to_dict() for report in await _safely(payments.reconcile(days))]


@router.get("/payments/{payment_id}", summary="A payment, its refunds, and what was learned about it")
async def get_payment(payments: ThePayments, caller: TheCaller, payment_id: PaymentId) -> PaymentDetail:
    payment = await payments.store.get(payment_id)
    found = {
        **payment.to_dict(),
        "refunds": [refund.to_dict() for refund in await payments.store.refunds(payment)],
        "events": await payments.store.events(payment_id),
    }
    return PaymentDetail(**await seen_by(caller, found))


@router.post("/payments/{payment_id}/check", summary="Ask the provider now")
async def check_payment(payments: ThePayments, payment_id: PaymentId) -> PaymentOut:
    return _shown(await _safely(payments.service.refresh(await payments.store.get(payment_id))))


@router.post("/payments/{payment_id}/capture", summary="Take the money that was set aside")
async def capture_payment(
    payments: ThePayments, payment_id: PaymentId, how: AmountIn | None = None
) -> PaymentOut:
    return _shown(await _safely(payments.capture(payment_id, how.amount if how else None)))


@router.post("/payments/{payment_id}/cancel", summary="Give back the money that was set aside")
async def cancel_payment(payments: ThePayments, payment_id: PaymentId) -> PaymentOut:
    return _shown(await _safely(payments.cancel(payment_id)))


@router.post("/payments/{payment_id}/refund", summary="Give money back")
async def refund_payment(
    payments: ThePayments, payment_id: PaymentId, response: Response, how: RefundIn | None = None
) -> dict[str, Any]:
    """200 once it is settled; 202 while it is `new` or `pending`: it is followed up by itself, so don't ask for another.

    Without an `id` each call is a refund of its own.
    """
    wanted = how or RefundIn()
    refund = await payments.refund(payment_id, wanted.amount, refund_id=wanted.id)
    if refund.status in UNPAID_REFUNDS:
        response.status_code = HTTPStatus.ACCEPTED
    return refund.to_dict()


@webhooks.post("/payments/{provider}", summary="For the provider: something happened to a payment")
async def receive_webhook(
    payments: ThePayments, provider: Annotated[str, Path(max_length=32)], request: Request
) -> dict[str, str]:
    """Nothing in the body is believed but that it is worth asking. 200 once that is written down."""
    known = payments.providers.get(provider)
    if known is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, f"There is no payment provider {provider!r} here.")
    _check_origin(payments, provider, request)
    try:
        notice = known.read_webhook(request.headers, await request.body(), payments.app.clock.now())
    except BadWebhook as error:
        log.warning(f"a webhook for {provider} was refused: {error}")
        raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from None
    if notice is not None:
        if not notice.is_signed:
            await _count_unsigned(payments, provider, notice.payment_id)
        await payments.service.receive_webhook(provider, notice)
    return {"status": "ok"}


async def _count_unsigned(payments: Payments, provider: str, payment_id: str) -> None:
    """Anybody can make them up: so many are looked up, and a provider repeats what was not taken."""
    if await payments.store.find(provider, payment_id) is None:
        taken, what = payments.unknown_webhooks.take(provider), "payments that are not known here"
    else:
        taken, what = payments.known_webhooks.take(f"{provider}:{payment_id}"), "this payment"
    if not taken.is_allowed:
        raise HTTPException(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"Too many webhooks came about {what}: repeat it later.",
            {"retry-after": str(taken.wait)},
        )


def _check_origin(payments: Payments, provider: str, request: Request) -> None:
    allowed = payments.settings.yookassa_webhook_from if provider == "yookassa" else ()
    address = request.client.host if request.client else ""
    if allowed and not _is_within(address, allowed):
        log.warning(f"a webhook for {provider} came from {address}, which is none of YOOKASSA_WEBHOOK_FROM")
        raise HTTPException(HTTPStatus.FORBIDDEN, "This address is not the provider's.")


def _is_within(address: str, networks: tuple[str, ...]) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(found in ipaddress.ip_network(network) for network in networks)


async def _safely(work: Awaitable[T]) -> T:
    """A provider that is away is not our error; what was asked may be asked again."""
    try:
        return await work
    except (Outage, UnknownOutcome) as error:
        detail = f"{error}. Ask again: the same call is never done twice."
        raise HTTPException(HTTPStatus.BAD_GATEWAY, detail) from error


def _shown(payment: Payment) -> PaymentOut:
    return PaymentOut(**payment.to_dict())


ROUTES = (
    Routes(senders, access="send"),
    Routes(router),
    Routes(webhooks, prefix="/api/webhooks", access="public"),
)
