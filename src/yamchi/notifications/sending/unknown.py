"""Deliveries that are `UNKNOWN`: the provider may have accepted the message, but its answer was lost.

Where a repeat costs money or trust, they are not sent again automatically. A person asks the provider or the recipient, and
marks each as sent or sends it again.
"""

from typing import Any

from yamchi.errors import WrongState
from yamchi.notifications.policy.model import digest_of
from yamchi.notifications.schemas.notification_job import NotificationJob
from yamchi.notifications.sending.deliveries import Deliveries
from yamchi.notifications.sending.digests import Digests
from yamchi.notifications.sending.service import NotificationService
from yamchi.queues.queue import Queue

AGAIN = "sent again by hand"


class UnknownDeliveries:
    """What a person may decide about a delivery that is `UNKNOWN`."""

    def __init__(
        self, deliveries: Deliveries, digests: Digests, service: NotificationService, queue: Queue
    ) -> None:
        self._deliveries = deliveries
        self._digests = digests
        self._service = service
        self._queue = queue

    async def mark_sent(self, job_id: str) -> None:
        """It is `SENT`."""
        delivery, job = await self._unknown(job_id)
        answer = delivery["provider_message_id"]
        await self._deliveries.record(
            job, "SENT", attempts=delivery["attempts"], provider_message_id=answer, error="confirmed by hand"
        )
        if digest_id := digest_of(job):
            await self._digests.settle(digest_id, job_id)

    async def send_again(self, job_id: str) -> None:
        """It did not arrive: put it back into the queue."""
        delivery, job = await self._unknown(job_id, or_again=True)
        await self._deliveries.record(job, "QUEUED", attempts=delivery["attempts"], error=AGAIN)
        await self._queue.remove([job_id])  # the job as it ended, which would be in the way
        await self._service.send([job])

    async def _unknown(
        self, job_id: str, *, or_again: bool = False
    ) -> tuple[dict[str, Any], NotificationJob]:
        """`or_again`: or one that is to be sent again, but may never have reached the queue."""
        delivery = await self._deliveries.get(job_id)
        is_again = or_again and (delivery["status"], delivery["last_error"]) == ("QUEUED", AGAIN)
        if delivery["status"] != "UNKNOWN" and not is_again:
            raise WrongState(f"Notification {job_id} is {delivery['status']}, not UNKNOWN.")
        if delivery["job"] is None:
            raise WrongState(
                f"Notification {job_id} was queued by another system: let that one send it again."
            )
        return delivery, NotificationJob.model_validate(delivery["job"])
