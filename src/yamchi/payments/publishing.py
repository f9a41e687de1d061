"""What was learned about payments is told to rules and scenarios: in order, and each event once."""

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import structlog

from yamchi.errors import InvalidJob
from yamchi.faultpoints import fault_point
from yamchi.http.signing import Signer
from yamchi.notifications.schemas.event import Event
from yamchi.payments.model import Payment, PaymentEvent, read_user_id
from yamchi.payments.store import PaymentStore

log = structlog.get_logger("yamchi.payments")

EVENT, SIGNATURE_DIGITS = "payment event", 32


class EventPublisher:
    """Publishes the events that the store has kept with the payments."""

    def __init__(
        self,
        store: PaymentStore,
        handle_events: Callable[[Sequence[Event]], Awaitable[object]],
        signer: Signer,
    ) -> None:
        self._store = store
        self._handle_events = handle_events
        self._signer = signer

    async def publish(self, payment: Payment | None = None) -> int:
        """Those of one payment, or all that are left; how many there were."""
        count = 0
        while news := await self._store.unpublished(payment_id=payment.id if payment else None):
            try:
                await self._tell(news)
            except InvalidJob:  # one of them can't be told; the others must not wait for it
                for one in news:
                    await self._tell_alone(one)
            count += len(news)
        return count

    async def _tell(self, news: Sequence[PaymentEvent]) -> None:
        signatures = [await self._signer.sign(EVENT, one.event_id) for one in news]
        await self._handle_events([_as_event(*told) for told in zip(news, signatures, strict=True)])
        fault_point("payment.told")
        await self._store.mark_published([one.event_id for one in news])

    async def _tell_alone(self, news: PaymentEvent) -> None:
        try:
            await self._tell([news])
        except InvalidJob as error:
            log.error(f"rules and scenarios can't take {news.kind} of payment {news.payment_id}: {error}")
            await self._store.give_up_event(news.event_id)


def _as_event(news: PaymentEvent, signature: str) -> Event:
    """What rules and scenarios get; the id makes a second telling the same event.

    Whoever asks for a payment knows its id at the provider. Without our signature they could tell of an event under this id before us,
    and ours would be its repetition.
    """
    user_id = None if news.user_id is None else UUID(read_user_id(news.user_id))
    event_id = f"{news.event_id}:{signature[:SIGNATURE_DIGITS]}"
    return Event(event_type=news.kind, event_id=event_id, user_id=user_id, data=dict(news.data))
