"""The queue `email_queue`: e-mails that other programs queue, sent as any other message to an address."""

from collections.abc import Callable
from typing import Any

import structlog
from pydantic import ValidationError

from yamchi.clock import Clock
from yamchi.notifications.channels.base import Channel
from yamchi.notifications.channels.email.channel import EmailChannel
from yamchi.notifications.schemas.email_task import EmailTask
from yamchi.notifications.schemas.notification_job import (
    TEST,
    DirectMessage,
    DirectOptions,
    NotificationJob,
    derived_id,
    is_test,
)
from yamchi.notifications.sending import direct as directs
from yamchi.notifications.sending.processor import JobProcessor
from yamchi.notifications.sending.results import Sent, Split
from yamchi.queues.job import Job
from yamchi.queues.newjobs import New

log = structlog.get_logger("yamchi.email")

QUEUE = "email_queue"
JOB = "email"


class EmailQueue:
    """Handles the jobs of `email_queue`. `channel` returns the present e-mail channel."""

    def __init__(self, processor: JobProcessor, channel: Callable[[], Channel], clock: Clock) -> None:
        self._processor = processor
        self._channel = channel
        self._clock = clock

    async def handle(self, job: Job[EmailTask]) -> dict[str, Any]:
        """Send the letter; one to several people becomes a job for each."""
        task = job.data
        if len(task.addresses) > 1:
            single = _split(job)
            await job.queue.add_many(single)
            return Split([new.id for new in single]).as_json()
        (address,) = task.addresses
        log.info(f"Processing email task: {address} - {task.subject or task.template}")
        notification = self._notification(job, task)
        with job.holding(JOB):
            result = await self._processor.send_to(job, notification, address, _direct(task).options)
        answer = result.as_json()
        if isinstance(result, Sent):
            self._say_sent(address, is_test(notification))
        else:
            log.info(f"Email to {address} was not sent now: it is {answer['status']}", **_reason(answer))
        return answer

    async def note_failure(self, job: Job[Any], error: str) -> None:
        """Record a job that failed outside its handler, such as one that killed its workers."""
        if notification := self.notification_of(job):
            await self._processor.record_failure(job, notification, error)

    def notification_of(self, job: Job[Any]) -> NotificationJob | None:
        """The notification in a job. None if it is poison, or goes to several people, each of whom gets a job."""
        try:
            task = EmailTask.model_validate_json(job.record.payload)
        except ValidationError:
            return None
        return self._notification(job, task) if len(task.addresses) == 1 else None

    def _notification(self, job: Job[Any], task: EmailTask) -> NotificationJob:
        return directs.as_job(job, _direct(task), self._clock.now())

    def _say_sent(self, address: str, was_test: bool) -> None:
        if isinstance(self._channel(), EmailChannel) and not was_test:
            log.info(f"Email sent via SMTP to {address}")
        log.info(f"Email sent successfully to {address}")


def _direct(task: EmailTask) -> DirectMessage:
    """The task as a message to an address."""
    options = DirectOptions.model_validate(task.model_dump(exclude=set(task.model_extra or ())))
    mark = {TEST: True} if (task.model_extra or {}).get(TEST) is True else {}
    return DirectMessage(channel=JOB, options=options, **mark)


def _split(job: Job[EmailTask]) -> list[New]:
    """One job for each recipient, so that a failure for one never sends it twice to another."""
    digest = directs.content_digest(job)
    return [
        New(
            job.data.model_copy(update={"to": address}),
            id=str(derived_id(JOB, job.id, digest, address)),
            name=JOB,
            priority=job.priority,
            expires_at=job.expires_at,
        )
        for address in job.data.addresses
    ]


def _reason(answer: dict[str, Any]) -> dict[str, Any]:
    return {"reason": answer["reason"]} if "reason" in answer else {}
