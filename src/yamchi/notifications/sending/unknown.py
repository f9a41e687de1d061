"""Deliveries that are `UNKNOWN`: the provider may have accepted the message, but its answer was lost.

Where a repeat costs money or trust, they are not sent again automatically. A person asks the provider or the recipient, and
marks each as sent or sends it again.
"""

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
        kept = (await self._deliveries.get(job_id))["job"]
        await self._deliveries.decide(job_id, "SENT", "confirmed by hand")
        if kept and (digest_id := digest_of(NotificationJob.model_validate(kept))):
            await self._digests.settle(digest_id, job_id)

    async def send_again(self, job_id: str) -> None:
        """It did not arrive: put it back into the queue. Again, if it never reached the queue the last time."""
        delivery = await self._deliveries.get(job_id)
        if delivery["status"] == "UNKNOWN" and delivery["job"] is None:
            raise WrongState(
                f"Notification {job_id} can't be sent again: an earlier version has not kept what it said."
            )
        if (delivery["status"], delivery["last_error"]) != ("QUEUED", AGAIN):
            await self._deliveries.decide(job_id, "QUEUED", AGAIN)
        await self._queue.clear([job_id])  # the job as it ended, or waits to be tried again, is in the way
        await self._service.send([NotificationJob.model_validate(delivery["job"])])
