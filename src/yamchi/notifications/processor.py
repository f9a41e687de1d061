"""JobProcessor: one notification job from the queue to its channel, and the truth about it to the table.

Whether it was sent already, has been cancelled or has expired is asked at the start and again at the last moment
before sending: a message may have waited for a connection in between.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from pydantic import ValidationError

from yamchi import errors
from yamchi.clock import Clock, Millis, as_datetime, to_moment
from yamchi.errors import Outage, Snooze, Unrecoverable
from yamchi.notifications.campaigns.gate import CampaignGate
from yamchi.notifications.channels.base import AnswerLost, Channel, Kept, Message, Recipient
from yamchi.notifications.circuits import Circuits
from yamchi.notifications.deliveries import Deliveries, Status
from yamchi.notifications.recipients import Recipients, as_template_data
from yamchi.notifications.retry import RetryEngine, sentence
from yamchi.notifications.schemas.notification_job import (
    DirectMessage,
    Meta,
    NotificationJob,
    derived_id,
)
from yamchi.notifications.templates.locales import locale_chain
from yamchi.notifications.templates.model import Rendered, TemplateStore, UnknownTemplate
from yamchi.notifications.templates.rendering import render
from yamchi.queues.queue import New
from yamchi.queues.ticket import Job

log = structlog.get_logger("yamchi.notifications")

NOBODY = derived_id("nobody")
ALIASES = {"browser": "push"}


@dataclass(frozen=True, slots=True)
class Errand:
    """A notification on its way: the job as the table knows it, for whom, and which attempt it is."""

    job: NotificationJob
    recipient: Recipient
    channel: Channel
    attempt: int
    attempts: int

    @property
    def circuit(self) -> str:
        return f"{self.channel.name}:{self.channel.provider}"


class JobProcessor:
    """Handles the jobs of the queue `notifications`."""

    def __init__(
        self,
        channels: dict[str, Channel],
        templates: TemplateStore,
        recipients: Recipients,
        deliveries: Deliveries,
        circuits: Circuits,
        campaigns: CampaignGate,
        clock: Clock,
        observe: Callable[[str, str, str], None] = lambda channel, provider, answer: None,
    ) -> None:
        self._channels = channels
        self._templates = templates
        self._recipients = recipients
        self._deliveries = deliveries
        self._circuits = circuits
        self._campaigns = campaigns
        self._clock = clock
        self._observe = observe
        self._retry = RetryEngine()

    async def handle_job(self, job: Job[Any]) -> dict[str, Any]:
        """Send one notification; the answer is the delivery's status."""
        if isinstance(job.data, DirectMessage):
            return await self._handle_direct(job, job.data)
        return await self._handle(job, job.data, None)

    async def note_failure(self, job: Job[Any], error: str) -> None:
        """A job that ended without its handler's last word, such as one that killed its workers."""
        try:
            notification = NotificationJob.model_validate_json(job.record.payload)
        except ValidationError:
            return  # poison, or a message to an address: there is no delivery to speak of
        if await self._deliveries.status(notification.delivery_id) != "FAILED":
            await self._deliveries.record(notification, "FAILED", attempts=job.attempts_made, error=error)

    async def _handle(
        self,
        job: Job[Any],
        notification: NotificationJob,
        recipient: Recipient | None,
        ready: Rendered | None = None,
    ) -> dict[str, Any]:
        if settled := await self._settled(notification):
            return {"status": settled}
        self._check_moment(notification.send_after)
        try:
            errand = await self._errand(job, notification, recipient)
            await self._circuits.enter(errand.circuit)
            message = await self._compose(errand, ready)
        except Outage:
            raise
        except Exception as error:
            await self._note_unsent(job, notification, error)
            raise
        return await self._send(errand, message)

    async def _settled(self, notification: NotificationJob) -> Status | None:
        """Whether there is nothing left to do: sent already, expired, or called off."""
        status = await self._deliveries.status(notification.delivery_id)
        if status in ("SENT", "SUPPRESSED"):
            return status
        if status == "CANCELLED":
            raise errors.Cancelled
        if notification.expires_at and to_moment(notification.expires_at) <= self._clock.now():
            await self._deliveries.record(notification, "EXPIRED", attempts=0)
            return "EXPIRED"
        campaign = notification.meta.campaign_id
        if campaign and await self._campaigns.is_cancelled(campaign):
            await self._deliveries.record(notification, "CANCELLED", attempts=0)
            raise errors.Cancelled
        return None

    def _check_moment(self, send_after: datetime | None) -> None:
        if send_after and to_moment(send_after) > self._clock.now():
            raise Snooze(send_after, "not before its send_after")

    async def _errand(
        self, job: Job[Any], notification: NotificationJob, recipient: Recipient | None
    ) -> Errand:
        name = ALIASES.get(notification.channel, notification.channel)
        channel = self._channels.get(name)
        if channel is None:
            raise Unrecoverable(f"The channel {name} is not set up here.")
        recipient = recipient or await self._recipients.get(str(notification.user_id)) or Recipient()
        return Errand(notification, recipient, channel, job.attempts_made, job.attempts)

    async def _compose(self, errand: Errand, ready: Rendered | None) -> Message:
        job = errand.job
        address = errand.channel.address(errand.recipient)
        if not address:
            raise Unrecoverable(f"User has no {errand.channel.name}")
        return Message(
            job.delivery_id,
            address,
            ready or await self._render(errand),
            is_urgent=job.meta.priority == "high",
            expires_at=None if job.expires_at is None else to_moment(job.expires_at),
            user_id=errand.recipient.user_id,
            template_code=job.template_code,
        )

    async def _render(self, errand: Errand) -> Rendered:
        job = errand.job
        template = await self._templates.find(
            job.template_code, errand.channel.name, locale_chain(job.locale)
        )
        if template is None:
            raise UnknownTemplate(job.template_code, errand.channel.name, locale_chain(job.locale))
        data = {**job.data, "user": as_template_data(errand.recipient)}
        return render(template, data, now=as_datetime(self._clock.now()))

    async def _send(self, errand: Errand, message: Message) -> dict[str, Any]:
        if campaign := errand.job.meta.campaign_id:
            await self._campaigns.take_turn(campaign)
        if settled := await self._settled(errand.job):
            return {"status": settled}
        began = self._clock.now()
        try:
            answer = await errand.channel.send(message)
        except Snooze:
            raise  # the channel's own limits: its turn is later, and nothing was tried
        except Exception as error:
            return await self._failed(errand, error, began)
        await self._circuits.succeeded(errand.circuit)
        self._observe(errand.channel.name, errand.channel.provider, "sent")
        provider_id = answer.id if isinstance(answer, Kept) else answer
        await asyncio.gather(  # one transaction
            *([self._deliveries.keep(answer.put)] if isinstance(answer, Kept) else ()),
            self._deliveries.note_attempt(errand.job.delivery_id, errand.attempt, "sent", provider_id, began),
            self._deliveries.record(
                errand.job, "SENT", attempts=errand.attempt, provider_message_id=provider_id
            ),
        )
        return {"status": "SENT", "provider_message_id": provider_id}

    async def _failed(self, errand: Errand, error: Exception, began: Millis) -> dict[str, Any]:
        decision = self._retry.decide(error, errand.channel, errand.attempt, errand.attempts)
        job, attempt, said = errand.job, errand.attempt, sentence(error)
        outage = error.outage if isinstance(error, AnswerLost) else error
        paid = attempt - 1 if isinstance(outage, Outage) else attempt
        self._observe(errand.channel.name, errand.channel.provider, decision.outcome)
        await asyncio.gather(
            self._deliveries.note_attempt(job.delivery_id, attempt, decision.outcome, said, began),
            self._deliveries.record(job, decision.status, attempts=paid, error=said),
        )
        verdict = decision.verdict
        if isinstance(outage, Outage):
            told = await self._circuits.failed(errand.circuit, outage, began)
            verdict = verdict and told
        if verdict is not None:
            raise verdict
        return {"status": decision.status}

    async def _note_unsent(self, job: Job[Any], notification: NotificationJob, error: Exception) -> None:
        """It failed before there was anything to send: no address, no template, a missing variable."""
        is_over = isinstance(error, Unrecoverable) or job.is_last_attempt
        status: Status = "FAILED" if is_over else "RETRYING"
        await self._deliveries.record(notification, status, attempts=job.attempts_made, error=sentence(error))

    # ── Messages to an address ────────────────────────────────────────────────────────────────────────────────────

    async def _handle_direct(self, job: Job[Any], direct: DirectMessage) -> dict[str, Any]:
        addresses = [direct.options.to] if isinstance(direct.options.to, str) else direct.options.to
        if len(addresses) != 1:
            return await self._split(job, direct, addresses)
        ready = None
        if direct.options.template is None:
            options = direct.options
            ready = Rendered(options.text or "", html=options.html, subject=options.subject)
        return await self._handle(job, _as_job(job, direct, self._clock.now()), _at(addresses[0]), ready)

    async def _split(self, job: Job[Any], direct: DirectMessage, addresses: list[str]) -> dict[str, Any]:
        """One job a recipient, so that one who can't be reached never makes another get it twice."""
        single = [
            New(
                direct.model_copy(update={"options": direct.options.model_copy(update={"to": address})}),
                id=str(derived_id(job.id, address)),
                priority=job.priority,
            )
            for address in dict.fromkeys(addresses)
        ]
        await job.queue.add_many(single)
        return {"status": "SPLIT", "jobs": [new.id for new in single]}


def _at(address: str) -> Recipient:
    """Whoever is at this address, whichever kind of address it is."""
    return Recipient(email=address, phone=address, telegram_id=address)


def _as_job(job: Job[Any], direct: DirectMessage, now: Millis) -> NotificationJob:
    return NotificationJob(
        job_id=derived_id("direct", job.queue.name, job.id),
        user_id=NOBODY,
        channel=direct.channel,
        template_code=direct.options.template or "direct",
        locale=direct.options.locale,
        data=direct.options.data,
        meta=Meta(event_type="direct", event_id=job.id),
        created_at=as_datetime(now),
    )
