"""Our books against the provider's: what they have and we don't is taken in, what differs is corrected, what we have and
they don't is reported. Pages of a hundred, so that a month of payments costs no more memory than a day.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import structlog

from yamchi.clock import Clock, Millis, isoformat
from yamchi.payments.model import Payment
from yamchi.payments.providers.base import NotFound, Provider, ProviderPayment, Unreadable
from yamchi.payments.service import PaymentService

log = structlog.get_logger("yamchi.payments")

PAGE = 100
MARGIN: Millis = 3_600_000
"""A payment that was made this shortly before may not be in the provider's list yet."""

NAMED_AT_MOST = 100


@dataclass(slots=True)
class ReconciliationReport:
    """What a comparison found. `missing` are ids of ours that the provider does not know, a hundred at most."""

    provider: str
    since: str
    compared: int = 0
    adopted: int = 0
    corrected: int = 0
    missing: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (self.adopted or self.corrected or self.missing)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Reconciliation:
    """Compares, for each provider."""

    def __init__(self, service: PaymentService, clock: Clock) -> None:
        self._service = service
        self._clock = clock

    async def run(self, span: Millis) -> list[ReconciliationReport]:
        """Compare what was made in this long until now. A provider that fails is told of after the others were asked."""
        now = self._clock.now()
        reports: list[ReconciliationReport] = []
        failure: Exception | None = None
        for provider in list(self._service.providers.values()):
            try:
                reports.append(await self._compare(provider, now - span, now))
            except Exception as error:  # of any kind: a provider may be the user's own
                log.error(f"{provider.name}: the books can't be compared", error=str(error))
                failure = failure or error
        if failure is not None:
            raise failure
        return reports

    async def _compare(self, provider: Provider, since: Millis, now: Millis) -> ReconciliationReport:
        report = ReconciliationReport(provider.name, isoformat(since))
        async for page in _paged(provider.since(since)):
            await self._compare_page(provider.name, page, report, now)
        await self._look_for_missing(provider, since, now, report)
        await self._service.events.publish()
        await self._service.store.record_event(
            f"{provider.name}:reconciliation:{now}", "reconciliation", None, report.to_dict()
        )
        say = log.info if report.is_clean else log.warning
        say(
            f"{provider.name}: compared {report.compared} payments; {report.adopted} were not known here, "
            f"{report.corrected} differed, {len(report.missing)} are not known there"
        )
        return report

    async def _compare_page(
        self, provider: str, page: Sequence[ProviderPayment], report: ReconciliationReport, now: Millis
    ) -> None:
        store = self._service.store
        known = await store.known(provider, [theirs.id for theirs in page])
        strangers = [theirs for theirs in page if theirs.id not in known]
        ours = [theirs for theirs in strangers if "yamchi_id" in theirs.metadata]
        for theirs in ours:  # their answers were lost
            await self._service.adopt(provider, theirs)
        await store.adopt(provider, [theirs for theirs in strangers if theirs not in ours])
        for theirs in page:
            if theirs.id in known and _differs(known[theirs.id], theirs):
                await store.apply(known[theirs.id].id, theirs, now)
                report.corrected += 1
        report.adopted += len(strangers)
        report.compared += len(page)
        await store.reconciled(provider, [theirs.id for theirs in page], now)

    async def _look_for_missing(
        self, provider: Provider, since: Millis, now: Millis, report: ReconciliationReport
    ) -> None:
        unmatched = await self._service.store.unmatched(provider.name, since + MARGIN, now, NAMED_AT_MOST)
        for ours in unmatched:
            try:
                found = await provider.get(ours.provider_id or "")
            except NotFound:
                report.missing.append(ours.id)
            except Unreadable as error:
                log.warning(f"{provider.name}: payment {ours.id} can't be compared", error=str(error))
            else:
                await self._service.store.apply(ours.id, found)


def _differs(ours: Payment, theirs: ProviderPayment) -> bool:
    return (ours.status, ours.captured, ours.refunded) != (theirs.status, theirs.captured, theirs.refunded)


async def _paged(payments: AsyncIterator[ProviderPayment]) -> AsyncIterator[list[ProviderPayment]]:
    page: list[ProviderPayment] = []
    async for payment in payments:
        page.append(payment)
        if len(page) == PAGE:
            yield page
            page = []
    if page:
        yield page
