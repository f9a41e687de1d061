"""The jobs of `payment_queue`: `check` asks a provider how a payment stands, until that is final."""

from datetime import timedelta
from typing import Any

import structlog

from yamchi.clock import Clock, Millis, to_millis
from yamchi.errors import Outage, Snooze, Unrecoverable
from yamchi.payments.model import CheckData, Payment
from yamchi.payments.providers.base import NotFound, UnknownOutcome
from yamchi.payments.service import PaymentService, check_id, refund_check_id
from yamchi.queues.job import Job

log = structlog.get_logger("yamchi.payments")

SHORTEST_WAIT: Millis = 5_000
LONGEST_WAIT: Millis = 3_600_000
LONGEST_UNPAID_WAIT: Millis = 86_400_000
"""For payments that their customers leave unpaid: at Stripe these stay so for ever."""

OVERDUE: Millis = 120_000
"""A check that is this late has lost its job, and gets a new one."""

EARLY: Millis = SHORTEST_WAIT
"""How much sooner than noted a check may run, by the clock of another machine, and still be the one that was noted."""

SWEPT_AT_ONCE = 200


class PaymentChecks:
    """Runs checks, and looks for payments whose check got lost."""

    def __init__(self, service: PaymentService, clock: Clock) -> None:
        self._service = service
        self._clock = clock

    async def check(self, job: Job[CheckData]) -> dict[str, Any]:
        """Ask; come back later while the answer is not final, unless another check of this payment does."""
        if job.data.payment_id is None:
            return await self._check_webhook(job)
        before = await self._service.store.get(job.data.payment_id)
        payment = await self._refresh(before)
        if payment is None:
            return {"paymentId": before.id, "status": before.status}
        goes_on = job.id.startswith((check_id(payment.id), refund_check_id("")))  # others ask once
        if (
            not await self._is_over(payment)
            and goes_on
            and (wait := await self._wait(before, next_wait(payment)))
        ):
            raise Snooze(wait, f"{payment.provider} says {payment.status}")
        return {"paymentId": payment.id, "status": payment.status}

    async def _check_webhook(self, job: Job[CheckData]) -> dict[str, Any]:
        """Ask once; who follows a payment that was made here has a check of their own."""
        data, service = job.data, self._service
        if not (data.provider and data.provider_id):
            raise Unrecoverable("A check needs paymentId, or provider and providerId.")
        payment = await service.refresh_by_provider_id(data.provider, data.provider_id)
        if payment is None:
            log.warning(f"{data.provider} knows no payment {data.provider_id}: its webhook was not genuine")
            return {"status": "unknown"}
        if data.webhook:  # only now, since anybody may claim anything of payments that there are not
            event_id = f"{payment.provider}:webhook:{job.id}"[:255]
            await service.store.record_event(event_id, "webhook", payment.id, {"kind": data.webhook})
        await self._is_over(payment)
        return {"paymentId": payment.id, "status": payment.status}

    async def _is_over(self, payment: Payment) -> bool:
        """Whether nothing is left to ask, which is noted."""
        store = self._service.store
        if not payment.is_final or await store.has_open_refunds(payment):
            return False
        await store.set_next_check(payment.id, None)
        return True

    async def _wait(self, before: Payment, wait: timedelta) -> timedelta | None:
        """Note when the next check is; None if another check of the payment goes on."""
        now = self._clock.now()
        if before.due_at is not None and before.due_at > now + EARLY:
            return None
        is_noted = await self._service.store.move_next_check(before, now + to_millis(wait))
        return wait if is_noted else None

    async def _refresh(self, before: Payment) -> Payment | None:
        """None if there was no answer, and another check of the payment goes on."""
        try:
            return await self._service.refresh(before)
        except Outage as error:
            if wait := await self._wait(before, error.retry_after or next_wait(before)):
                raise Outage(str(error), retry_after=wait) from error
        except UnknownOutcome as error:  # for as long as it takes: only the same call again tells
            if wait := await self._wait(before, next_wait(before)):
                raise Snooze(wait, str(error)) from error
        except NotFound as error:
            await self._service.store.set_next_check(before.id, None)
            raise Unrecoverable(f"{before.provider} does not know payment {before.id}: {error}") from error
        return None

    async def sweep(self) -> int:
        """Check what should have been checked by now, and tell what was not told; how many there were."""
        now = self._clock.now()
        late = await self._service.store.overdue(now - OVERDUE, SWEPT_AT_ONCE)
        for payment in late:
            await self._service.recheck(payment, now)
        return len(late) + await self._service.events.publish()

    async def watch(self) -> None:
        """Sweep for ever; any number of processes may."""
        while True:
            if swept := await self.sweep():
                log.warning(f"finished {swept} payments that had been interrupted")
            await self._clock.sleep(OVERDUE // 4)


def next_wait(payment: Payment) -> timedelta:
    """5 s, 10 s, 20 s … up to an hour; up to a day while its customer is to pay."""
    is_unpaid = payment.status in ("pending", "waiting_for_capture")
    longest = LONGEST_UNPAID_WAIT if is_unpaid else LONGEST_WAIT
    return timedelta(milliseconds=min(SHORTEST_WAIT << min(payment.checks, 20), longest))
