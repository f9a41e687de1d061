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
OVERDUE: Millis = 120_000
"""A check that is this late has lost its job, and gets a new one."""

SWEPT_AT_ONCE = 200


class PaymentChecks:
    """Runs checks, and looks for payments whose check got lost."""

    def __init__(self, service: PaymentService, clock: Clock) -> None:
        self._service = service
        self._clock = clock

    async def check(self, job: Job[CheckData]) -> dict[str, Any]:
        """Ask; come back later while the answer is not final."""
        payment = await self._refresh(job.data)
        if payment is None:
            log.warning(
                f"{job.data.provider} knows no payment {job.data.provider_id}: its webhook was not genuine"
            )
            return {"status": "unknown"}
        await self._note_webhook(job, payment)
        store = self._service.store
        if payment.is_final and not await store.has_open_refunds(payment):
            await store.set_next_check(payment.id, None)
        elif job.id.startswith((check_id(payment.id), refund_check_id(""))):  # others ask once; these go on
            raise Snooze(await self._wait(payment), f"{payment.provider} says {payment.status}")
        return {"paymentId": payment.id, "status": payment.status}

    async def _note_webhook(self, job: Job[CheckData], payment: Payment) -> None:
        """Only now, since anybody may claim anything of payments that there are not."""
        if claimed := job.data.webhook:
            event_id = f"{payment.provider}:webhook:{job.id}"[:255]
            await self._service.store.record_event(event_id, "webhook", payment.id, {"kind": claimed})

    async def _wait(self, payment: Payment, wanted: timedelta | None = None) -> timedelta:
        """How long until the next check, which is noted."""
        wait = wanted or timedelta(milliseconds=next_wait(payment.checks))
        due_at = self._clock.now() + to_millis(wait)
        await self._service.store.set_next_check(payment.id, due_at, is_check=True)
        return wait

    async def _refresh(self, data: CheckData) -> Payment | None:
        if data.payment_id is None:
            if not (data.provider and data.provider_id):
                raise Unrecoverable("A check needs paymentId, or provider and providerId.")
            return await self._service.refresh_by_provider_id(data.provider, data.provider_id)
        payment = await self._service.store.get(data.payment_id)
        try:
            return await self._service.refresh(payment)
        except Outage as error:
            raise Outage(str(error), retry_after=await self._wait(payment, error.retry_after)) from error
        except UnknownOutcome as error:  # for as long as it takes: only the same call again tells
            raise Snooze(await self._wait(payment), str(error)) from error
        except NotFound as error:
            await self._service.store.set_next_check(payment.id, None, is_check=True)
            raise Unrecoverable(f"{payment.provider} does not know payment {payment.id}: {error}") from error

    async def sweep(self) -> int:
        """Check what should have been checked by now, and tell what was not told; how many there were."""
        now = self._clock.now()
        late = await self._service.store.overdue(now - OVERDUE, SWEPT_AT_ONCE)
        for payment in late:
            await self._service.recheck(payment, now)
        return len(late) + await self._service.publish_events()

    async def watch(self) -> None:
        """Sweep for ever; any number of processes may."""
        while True:
            if swept := await self.sweep():
                log.warning(f"finished {swept} payments that had been interrupted")
            await self._clock.sleep(OVERDUE // 4)


def next_wait(checks: int) -> Millis:
    """5 s, 10 s, 20 s … up to an hour."""
    return min(SHORTEST_WAIT << min(checks, 20), LONGEST_WAIT)
