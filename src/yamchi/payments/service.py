"""Asking providers for money, and learning what became of it.

The row is written before the provider hears of a payment, under the key that makes a repeated call the same payment. So
whatever is interrupted, the check that follows repeats the call or asks, and arrives at what the provider's books say.
"""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import structlog

from yamchi.clock import Clock, Millis
from yamchi.errors import ConfigurationError, EngineError, Outage, WrongState, YamchiError
from yamchi.faultpoints import fault_point
from yamchi.notifications.schemas.notification_job import derived_id
from yamchi.payments.applying import FIRST_CHECK
from yamchi.payments.model import CheckData, Payment, Refund, read_user_id
from yamchi.payments.money import Money
from yamchi.payments.providers.base import (
    NotFound,
    Notice,
    Provider,
    ProviderPayment,
    Refused,
    UnknownOutcome,
)
from yamchi.payments.publishing import EventPublisher
from yamchi.payments.refunds import UNPAID_REFUNDS
from yamchi.payments.store import PaymentStore
from yamchi.queues.queue import Queue

log = structlog.get_logger("yamchi.payments")

KEY_LIFETIME: Millis = 23 * 3_600_000
"""Providers remember a key for 24 hours; later the same call might be a second payment."""

HOW_TO_SET_UP = "set YOOKASSA_SHOP_ID and YOOKASSA_SECRET_KEY, or STRIPE_SECRET_KEY"
UNANSWERED = "The provider gave no clear answer within a day: look it up there before asking for it again."

RECHECK_EVERY: Millis = 3_600_000

CHECK = "check"
NOT_YET_ASKED = frozenset({"waiting", "delayed"})
"""States of a check that will hear of what happens until it runs."""
KNOWN_FIRST = 5
"""The priority of checks of payments that are kept here."""
STRANGERS_LAST = 1
"""Of those that a webhook only claims. It is a priority too: on Redis a job without one goes before all others."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What became of asking for money."""

    payment: Payment
    is_new: bool
    """Whether nobody had asked under this id before."""
    client_secret: str | None = None
    """Stripe's, for the page that pays."""


_FIT = re.compile(r"[\w.@/-]{0,200}", re.ASCII)


class PaymentService:
    """Create, look up, capture, cancel, refund."""

    def __init__(
        self,
        store: PaymentStore,
        providers: Mapping[str, Provider],
        queue: Queue,
        events: EventPublisher,
        clock: Clock,
    ) -> None:
        self.store = store
        self.providers = providers
        self.events = events
        self._queue = queue
        self._clock = clock

    # ── What a product asks for ───────────────────────────────────────────────────────────────────────────────────

    async def create(
        self, money: Money, *, provider: str | None = None, payment_id: str | None = None, **fields: Any
    ) -> Asked:
        """Ask for money. The same id again is the same payment.

        A payment whose provider gave no answer stays `new`; the check that follows finds out.
        """
        chosen = self._provider(provider)
        money.must_be_positive()
        if fields.get("user_id") is not None:
            fields["user_id"] = read_user_id(fields["user_id"])
        row = {"id": payment_id or str(uuid4()), "provider": chosen.name, **fields}
        row |= {"currency": money.currency, "amount": money.minor}
        is_new = await self.store.add(row)
        payment = await self.store.get(row["id"])
        if not is_new:
            _must_match(payment, money, chosen.name)
        fault_point("payment.stored")
        await self._schedule_check(payment)
        if payment.status != "new":
            return Asked(payment, is_new)
        try:
            payment, client_secret = await self._create_at_provider(payment)
        except (UnknownOutcome, Outage) as error:
            log.warning(
                f"the provider gave no clear answer for payment {payment.id}; a check asks again",
                error=str(error),
            )
            return Asked(payment, is_new)
        return Asked(payment, is_new, client_secret)

    async def capture(self, payment_id: str, money: Money | None = None) -> Payment:
        """Take the money that was set aside: all of it, or less."""
        payment, provider, provider_id = await self._at_provider(payment_id)
        if payment.status == "succeeded":
            return payment
        if payment.status != "waiting_for_capture":
            raise WrongState(f"Payment {payment_id} is {payment.status}, so nothing can be captured.")
        wanted = (money or payment.money).must_be_positive()
        key = key_of("capture", payment_id, wanted.value, str(payment.updated_at))
        async with self._noting_refusals(payment):
            found = await provider.capture(provider_id, wanted, key)
        fault_point("payment.captured")
        return await self._apply(payment, found)

    async def cancel(self, payment_id: str) -> Payment:
        """Give back the money that was set aside."""
        payment, provider, provider_id = await self._at_provider(payment_id)
        if payment.status == "canceled":
            return payment
        if payment.is_final:
            raise WrongState(f"Payment {payment_id} is {payment.status}: refund it instead.")
        key = key_of("cancel", payment_id, str(payment.updated_at))
        async with self._noting_refusals(payment):
            found = await provider.cancel(provider_id, key)
        fault_point("payment.canceled")
        return await self._apply(payment, found)

    @asynccontextmanager
    async def _noting_refusals(self, payment: Payment) -> AsyncIterator[None]:
        """A provider may keep its no under the call's key for a day: asked again later, it is asked under another one."""
        try:
            yield
        except Refused:
            await self.store.touch(payment.id)
            raise

    async def refund(
        self, payment_id: str, money: Money | None = None, *, refund_id: str | None = None
    ) -> Refund:
        """Give money back: all that is left, or a part. The same id again is the same refund.

        A refund whose provider gave no answer stays `new`; the check that follows finds out. The check is queued first, and once
        the refund is kept only the provider's no is an error: whoever is told of one by us may ask again, without an id even,
        and gives the money back once.
        """
        payment, _, _ = await self._at_provider(payment_id)
        wanted = refund_id or str(uuid4())
        await self._schedule_check(payment, refund_check_id(wanted))
        refund = await self.store.add_refund(payment, wanted, money)
        fault_point("refund.stored")
        if refund.status in UNPAID_REFUNDS:
            try:
                await self.refresh(payment)
            except YamchiError as error:
                log.warning(
                    f"the refund {wanted} could not be finished; a check follows it up", error=str(error)
                )
        with suppress(EngineError):
            refund = next(one for one in await self.store.refunds(payment) if one.id == wanted)
        if refund.status == "refused":
            raise Refused(refund.reason or f"The provider refused the refund {wanted}.")
        return refund

    async def receive_webhook(self, provider: str, notice: Notice) -> None:
        """A webhook claims that something happened: let a check ask.

        Repeats are one question while it waits; once it was asked it is asked anew, so that nobody who sends a webhook before
        its time can keep the true one from being heard. What nobody here asked for waits behind what somebody did.
        """
        is_known = await self.store.find(provider, notice.payment_id) is not None
        data = CheckData(provider=provider, provider_id=notice.payment_id, webhook=notice.kind)
        priority = KNOWN_FIRST if is_known else STRANGERS_LAST
        now = self._clock.now()
        job_id = f"webhook-{provider}-{notice.id}-{now // 60_000}"
        asked = await self._queue.add(data, name=CHECK, id=job_id, priority=priority)
        if not asked.is_new and asked.state not in NOT_YET_ASKED:
            await self._queue.add(data, name=CHECK, id=f"{job_id}-{now}", priority=priority)
        fault_point("payment.webhook")

    # ── What a check does ─────────────────────────────────────────────────────────────────────────────────────────

    async def refresh(self, payment: Payment) -> Payment:
        """Ask the provider how a payment stands, finish what was interrupted, tell what is new."""
        unclear: UnknownOutcome | None = None
        if payment.status == "new":
            payment = await self._retry_create(payment)
        elif payment.provider_id is not None:
            unclear = await self._finish_refunds(payment)
            asked_at = self._clock.now()
            found = await self._provider(payment.provider).get(payment.provider_id)
            payment = await self._apply(payment, found, asked_at)
        await self.events.publish(payment)
        if unclear is not None:
            raise unclear
        return payment

    async def refresh_by_provider_id(self, provider: str, provider_id: str) -> Payment | None:
        """The same by the provider's id; a payment that was made elsewhere is taken in. None if there is none."""
        if known := await self.store.find(provider, provider_id):
            return await self.refresh(known)
        try:
            found = await self._provider(provider).get(provider_id)
        except NotFound:
            return None
        fault_point("payment.fetched")
        payment = await self.adopt(provider, found)
        await self.events.publish(payment)
        return payment

    async def adopt(self, provider: str, found: ProviderPayment) -> Payment:
        """Keep a payment that the provider has and we don't: ours, whose answer was lost, or somebody else's."""
        ours = await self.store.find_unconfirmed(provider, str(found.metadata.get("yamchi_id", "")))
        if ours is not None:
            return await self.store.apply(ours.id, found)
        (payment,) = await self.store.adopt(provider, [found])
        return payment

    async def recheck(self, payment: Payment, now: Millis) -> None:
        """A new check for a payment whose own got lost, or is only late: so one an hour at most."""
        await self.store.set_next_check(payment.id, now)
        await self._queue.add(
            CheckData(payment_id=payment.id),
            name=CHECK,
            id=f"{check_id(payment.id)}-{now // RECHECK_EVERY}",
            priority=KNOWN_FIRST,
        )

    def _provider(self, name: str | None) -> Provider:
        wanted = name or next(iter(self.providers), "")
        if wanted in self.providers:
            return self.providers[wanted]
        which = f"There is no payment provider {wanted!r}" if wanted else "No payment provider is set up"
        known = f"set up are {', '.join(self.providers)}" if self.providers else HOW_TO_SET_UP
        raise ConfigurationError(f"{which}: {known}.")

    # ── Steps ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _create_at_provider(self, payment: Payment) -> tuple[Payment, str | None]:
        """The same call each time, while its key is remembered; later it might be a second payment."""
        if self._is_forgotten(payment.created_at):
            return await self.store.mark_refused(payment.id, UNANSWERED), None
        try:
            found = await self._provider(payment.provider).create(payment.request, payment.id)
        except Refused as error:
            await self.store.mark_refused(payment.id, str(error))
            raise
        fault_point("payment.created")
        return await self._apply(payment, found), found.client_secret

    async def _retry_create(self, payment: Payment) -> Payment:
        """A payment of which we do not know whether it was made: the same call again."""
        try:
            payment, _ = await self._create_at_provider(payment)
        except Refused:
            payment = await self.store.get(payment.id)
        return payment

    async def _apply(
        self, payment: Payment, found: ProviderPayment, asked_at: Millis | None = None
    ) -> Payment:
        news = await self.store.apply(payment.id, found, asked_at)
        fault_point("payment.applied")
        return news

    async def _finish_refunds(self, payment: Payment) -> UnknownOutcome | None:
        """Ask after each, whatever becomes of the others; gives what is to be asked again."""
        unclear = None
        for refund in await self.store.refunds(payment):
            try:
                await self._finish_refund(payment, refund)
            except UnknownOutcome as error:
                unclear = error
        return unclear

    async def _finish_refund(self, payment: Payment, refund: Refund) -> None:
        """By its key while that is remembered, else by the provider's own id."""
        if refund.status not in UNPAID_REFUNDS:
            return
        if refund.provider_id is not None:
            found = await self._provider(payment.provider).get_refund(refund.provider_id)
            await self.store.settle_refund(refund.id, found)
        elif self._is_forgotten(refund.created_at):
            await self.store.drop_refund(refund.id, UNANSWERED)
        else:
            await self._refund_at_provider(payment, refund)

    async def _refund_at_provider(self, payment: Payment, refund: Refund) -> None:
        key = key_of("refund", payment.id, refund.id)
        try:
            found = await self._provider(payment.provider).refund(
                payment.provider_id or "", refund.money, key
            )
        except Refused as error:
            await self.store.drop_refund(refund.id, str(error))
            return
        fault_point("refund.created")
        await self.store.settle_refund(refund.id, found)

    def _is_forgotten(self, asked_at: Millis) -> bool:
        """Whether the provider may no longer know the key of a call that was first made then."""
        return self._clock.now() - asked_at > KEY_LIFETIME

    async def _at_provider(self, payment_id: str) -> tuple[Payment, Provider, str]:
        payment = await self.store.get(payment_id)
        if payment.provider_id is None:
            raise WrongState(f"Payment {payment_id} has not reached its provider yet.")
        return payment, self._provider(payment.provider), payment.provider_id

    async def _schedule_check(self, payment: Payment, job_id: str | None = None) -> None:
        await self._queue.add(
            CheckData(payment_id=payment.id),
            name=CHECK,
            id=job_id or check_id(payment.id),
            delay=FIRST_CHECK / 1000,
            priority=KNOWN_FIRST,
        )
        fault_point("payment.watched")


def check_id(payment_id: str) -> str:
    """The job that follows a payment to its end."""
    return f"check-{_fit(payment_id)}"


def refund_check_id(refund_id: str) -> str:
    """The job that follows a refund to its end."""
    return f"refund-{_fit(refund_id)}"


def _fit(product_id: str) -> str:
    """A product's own id as part of a job's; one that no job can have, such as `order:7`, by a digest."""
    return product_id if _FIT.fullmatch(product_id) else key_of(product_id)


def key_of(*act: str) -> str:
    """The key of a call other than a payment's creation: short enough for YooKassa (64), and no other call's."""
    return str(derived_id("payment", *act))


def _must_match(payment: Payment, money: Money, provider: str) -> None:
    if (payment.money, payment.provider) != (money, provider):
        raise WrongState(
            f"Payment {payment.id} is there already, with another amount or provider: use another id."
        )
