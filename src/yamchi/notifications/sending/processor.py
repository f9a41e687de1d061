"""JobProcessor: one notification job from the queue to its channel, and the truth about it to the table.

Whether it was sent already, has been cancelled or has expired is asked at the start and again at the last moment
before sending: a message may have waited for a connection in between. Whether it may go now is asked at the gate.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

import structlog
from pydantic import ValidationError

from yamchi import errors
from yamchi.clock import Clock, Millis, as_datetime, to_moment
from yamchi.errors import Outage, Snooze, Unrecoverable
from yamchi.notifications.channels.base import AnswerLost, Kept, Message, NoAddress, Recipient, Unreachable
from yamchi.notifications.channels.circuits import Circuits
from yamchi.notifications.people.recipients import as_template_data
from yamchi.notifications.people.suppressions import Suppressions
from yamchi.notifications.people.unsubscribe import Unsubscribing
from yamchi.notifications.policy.checks import Collect, Gate, Go, Suppress, Wait
from yamchi.notifications.policy.context import Errand, Errands
from yamchi.notifications.policy.escalation import escalation_of
from yamchi.notifications.policy.fallback import going_on
from yamchi.notifications.policy.model import Digest, digest_of, policy_of
from yamchi.notifications.schemas.notification_job import (
    ALIASES,
    DirectMessage,
    DirectOptions,
    NotificationJob,
)
from yamchi.notifications.sending import direct as directs
from yamchi.notifications.sending.attachments import Attachments, references_of
from yamchi.notifications.sending.deliveries import Deliveries, Status
from yamchi.notifications.sending.digests import Digests
from yamchi.notifications.sending.retry import RetryEngine, sentence
from yamchi.notifications.templates.model import Rendered
from yamchi.notifications.templates.offloop import render_message
from yamchi.queues.job import Job

log = structlog.get_logger("yamchi.notifications")

Enqueue = Callable[[Sequence[NotificationJob]], Awaitable[None]]
Observer = Callable[[str, str, str], None]
Entering = Callable[[], Awaitable[None]]
"""Called right before a message is handed over; what it raises keeps the message back."""


class CampaignLimits(Protocol):
    """What the processor asks about the campaign of a message."""

    async def is_cancelled(self, campaign_id: str) -> bool:
        """Whether its messages are not to be sent any more. Raises `Snooze` while it is paused."""

    async def take_turn(self, campaign_id: str) -> None:
        """Return when the campaign's rate allows one more message. Raises `Snooze` if that takes long."""


class JobProcessor:
    """Handles the jobs of the queue `notifications`."""

    def __init__(
        self,
        errands: Errands,
        gate: Gate,
        unsubscribing: Unsubscribing,
        digests: Digests,
        deliveries: Deliveries,
        suppressions: Suppressions,
        circuits: Circuits,
        campaigns: CampaignLimits,
        enqueue: Enqueue,
        attachments: Attachments,
        clock: Clock,
        observe: Observer = lambda channel, provider, answer: None,
    ) -> None:
        self._errands = errands
        self._gate = gate
        self._unsubscribing = unsubscribing
        self._digests = digests
        self._deliveries = deliveries
        self._suppressions = suppressions
        self._circuits = circuits
        self._campaigns = campaigns
        self._enqueue = enqueue
        self._attachments = attachments
        self._clock = clock
        self._observe = observe
        self._retry = RetryEngine()

    async def handle_job(self, job: Job[Any]) -> dict[str, Any]:
        """Send one notification; the answer is the delivery's status. A slow channel holds up its own messages only."""
        with job.holding(ALIASES.get(job.data.channel, job.data.channel)):
            if isinstance(job.data, DirectMessage):
                return await self._handle_direct(job, job.data)
            digest_id = digest_of(job.data)
            if digest_id:
                return await self._handle_digest(job, digest_id)
            return await self._handle(job, job.data, None)

    async def _handle_digest(self, job: Job[Any], digest_id: str) -> dict[str, Any]:
        """What was collected shares the fate of the job that tells of it."""
        try:
            return await self._handle(job, job.data, None)
        finally:
            await self._digests.settle(digest_id, job.data.delivery_id)

    async def _handle_direct(self, job: Job[Any], direct: DirectMessage) -> dict[str, Any]:
        addresses = directs.addresses_of(direct)
        if len(addresses) != 1:
            single = directs.split(job, direct)
            await job.queue.add_many(single)
            return {"status": "SPLIT", "jobs": [new.id for new in single]}
        notification = directs.as_job(job, direct, self._clock.now())
        return await self.send_to(job, notification, addresses[0], direct.options)

    async def send_to(
        self, job: Job[Any], notification: NotificationJob, address: str, options: DirectOptions
    ) -> dict[str, Any]:
        """Send one message to an address, with the words or the template of these options."""
        ready = directs.ready_words(options)
        return await self._handle(
            job, notification, directs.at(address), ready, subject=None if ready else options.subject
        )

    async def deliver(
        self, job: Job[Any], notification: NotificationJob, recipient: Recipient, entering: Entering
    ) -> dict[str, Any]:
        """Send one notification inside a job of another feature, whose retries are then the message's."""
        return await self._handle(job, notification, recipient, entering=entering)

    async def note_failure(self, job: Job[Any], error: str) -> None:
        """A job that ended without its handler's last word, such as one that killed its workers."""
        try:
            notification = NotificationJob.model_validate_json(job.record.payload)
        except ValidationError:
            return  # poison, or a message to an address: there is no delivery to speak of
        if await self._deliveries.status(notification.delivery_id) != "FAILED":
            await self._deliveries.record(notification, "FAILED", attempts=job.attempts_made, error=error)
            if digest_id := digest_of(notification):
                await self._digests.settle(digest_id, notification.delivery_id)

    async def _handle(
        self,
        job: Job[Any],
        notification: NotificationJob,
        recipient: Recipient | None,
        ready: Rendered | None = None,
        entering: Entering | None = None,
        subject: str | None = None,
    ) -> dict[str, Any]:
        if settled := await self._settled(notification):
            if settled == "SENT":  # perhaps by one who got no further
                await self._follow_up(notification)
            return {"status": settled}
        self._check_moment(notification.send_after)
        try:
            errand = await self._errands.of(job, notification, recipient, ready)
            if held := await self._held(errand):
                return held
            if digest_id := errand.policy.gathers:
                gathered = await self._gathered(errand, digest_id)
                if gathered is None:
                    return await self._end(notification, "SUPPRESSED", "Nothing was left to tell", 0)
                errand = gathered
            await self._circuits.enter(errand.circuit)
            message = await self._compose(errand, ready, subject)
        except (Outage, Snooze):
            raise
        except Exception as error:
            return await self._unsent(job, notification, error)
        return await self._send(errand, message, entering)

    # ── Whether ───────────────────────────────────────────────────────────────────────────────────────────────────

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

    async def _held(self, errand: Errand) -> dict[str, Any] | None:
        """What became of it if it does not go now."""
        job, paid = errand.job, errand.attempt - 1
        match await self._gate.ask(errand):
            case Wait(until=until, reason=reason):
                await self._deliveries.record(job, "QUEUED", attempts=paid, error=reason, due_at=until)
                raise Snooze(as_datetime(until), reason)
            case Suppress(reason=reason, is_unreachable=is_unreachable):
                gone_on = is_unreachable and await self._go_on(job, "SUPPRESSED", reason, paid)
                return gone_on or await self._end(job, "SUPPRESSED", reason, paid)
            case Collect(digest=digest):
                return await self._collect(errand, digest)
            case Go():
                return None

    async def _collect(self, errand: Errand, digest: Digest) -> dict[str, Any]:
        """Keep it for its digest. Each step may be repeated."""
        carrier = await self._digests.collect(errand, digest)
        await self._enqueue([carrier])
        due = to_moment(carrier.send_after) if carrier.send_after else None
        said = f"collected for {digest.template}, a digest"
        await self._deliveries.record(errand.job, "QUEUED", attempts=0, error=said, due_at=due)
        return {"status": "QUEUED", "digest": carrier.delivery_id}

    async def _gathered(self, errand: Errand, digest_id: str) -> Errand | None:
        """With what was collected as its data; None if there is nothing to tell."""
        gathered = await self._digests.gather(digest_id, errand.job)
        if not gathered.count:
            return None
        return replace(errand, job=errand.job.model_copy(update={"data": gathered.as_data()}))

    async def _end(self, job: NotificationJob, status: Status, reason: str, attempts: int) -> dict[str, Any]:
        await self._deliveries.record(job, status, attempts=attempts, error=reason)
        return {"status": status, "reason": reason}

    async def _go_on(
        self, job: NotificationJob, status: Status, reason: str, attempts: int
    ) -> dict[str, Any] | None:
        """Let the next channel of `first_of` try; None if there is none."""
        following = going_on(job, policy_of(job))
        if following is None:
            return None
        if digest_id := digest_of(job):
            await self._digests.hand_over(digest_id, job.delivery_id, following.delivery_id)
        await self._enqueue([following])
        said = f"{reason}; went on to {following.channel}"
        return await self._end(job, status, said, attempts) | {"next": following.delivery_id}

    # ── What ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _compose(self, errand: Errand, ready: Rendered | None, subject: str | None) -> Message:
        job = errand.job
        unsubscribe_url = await self._unsubscribe_url(errand)
        rendered = ready or await self._render(errand, unsubscribe_url)
        return Message(
            job.delivery_id,
            errand.address or "",
            rendered if subject is None else replace(rendered, subject=subject),
            is_urgent=errand.is_urgent,
            expires_at=errand.expires_at,
            unsubscribe_url=unsubscribe_url,
            attachments=await self._attachments.load(references_of(job.model_extra)),
            user_id=errand.recipient.user_id,
            template_code=job.template_code,
            category=errand.category,
        )

    async def _unsubscribe_url(self, errand: Errand) -> str | None:
        """None for transactional messages, which nobody can unsubscribe from, and for messages to a bare address."""
        user_id = errand.recipient.user_id
        if user_id is None or errand.is_transactional:
            return None
        return await self._unsubscribing.url_of(user_id, errand.channel.name, errand.category)

    async def _render(self, errand: Errand, unsubscribe_url: str | None) -> Rendered:
        assert errand.template is not None
        data = {**errand.job.data, "user": as_template_data(errand.recipient)}
        now = as_datetime(self._clock.now())
        return await render_message(errand.template, data, now=now, unsubscribe_url=unsubscribe_url)

    async def _send(self, errand: Errand, message: Message, entering: Entering | None) -> dict[str, Any]:
        if settled := await self._settled(errand.job):
            return {"status": settled}
        if campaign := errand.job.meta.campaign_id:
            await self._campaigns.take_turn(campaign)
        if entering:
            await entering()
        began = self._clock.now()
        try:
            answer = await errand.channel.send(message)
        except Snooze:
            raise  # the channel's own limits: its turn is later, and nothing was tried
        except Exception as error:
            return await self._failed(errand, message.to, error, began)
        await self._circuits.succeeded(errand.circuit)
        self._observe(errand.channel.name, errand.channel.provider, "sent")
        provider_id = answer.id if isinstance(answer, Kept) else answer
        job, attempt = errand.job, errand.attempt
        beside = [self._deliveries.attempt(job.delivery_id, attempt, "sent", provider_id, began)]
        beside += [answer.put] if isinstance(answer, Kept) else []
        await self._deliveries.record(
            job, "SENT", attempts=attempt, provider_message_id=provider_id, beside=beside
        )
        await self._follow_up(job)
        return {"status": "SENT", "provider_message_id": provider_id}

    async def _follow_up(self, job: NotificationJob) -> None:
        """What is to be sent if this is not read in time."""
        if later := escalation_of(job, policy_of(job), self._clock.now()):
            await self._enqueue([later])

    # ── What went wrong ───────────────────────────────────────────────────────────────────────────────────────────

    async def _failed(self, errand: Errand, address: str, error: Exception, began: Millis) -> dict[str, Any]:
        decision = self._retry.decide(error, errand.channel, errand.attempt, errand.attempts)
        job, attempt, said = errand.job, errand.attempt, sentence(error)
        outage = error.outage if isinstance(error, AnswerLost) else error
        paid = attempt - 1 if isinstance(outage, Outage) else attempt
        self._observe(errand.channel.name, errand.channel.provider, decision.outcome)
        noted = self._deliveries.attempt(job.delivery_id, attempt, decision.outcome, said, began)
        await self._deliveries.record(job, decision.status, attempts=paid, error=said, beside=[noted])
        if decision.status == "FAILED" and errand.policy.cap:
            await self._gate.give_back(errand)
        if isinstance(error, Unreachable | NoAddress) and (
            gone_on := await self._not_there(errand, address, error)
        ):
            return gone_on
        verdict = decision.verdict
        if isinstance(outage, Outage):
            told = await self._circuits.failed(errand.circuit_of(outage), outage, began)
            verdict = verdict and told
        if verdict is not None:
            raise verdict
        return {"status": decision.status}

    async def _not_there(
        self, errand: Errand, address: str, error: Unreachable | NoAddress
    ) -> dict[str, Any] | None:
        """The next message need not try an address that reached nobody; this one goes on, if it can."""
        job, reason = errand.job, sentence(error)
        if isinstance(error, NoAddress):
            return await self._go_on(job, "SUPPRESSED", reason, errand.attempt)
        await self._suppressions.add(
            errand.channel.name, address, reason, user_id=errand.recipient.user_id, job_id=job.delivery_id
        )
        return await self._go_on(job, "FAILED", reason, errand.attempt)

    async def _unsent(self, job: Job[Any], notification: NotificationJob, error: Exception) -> dict[str, Any]:
        """It failed before there was anything to send: no address, no template, a missing variable."""
        said = sentence(error)
        if isinstance(error, NoAddress):
            gone_on = await self._go_on(notification, "SUPPRESSED", said, job.attempts_made - 1)
            if gone_on:
                return gone_on
        is_over = isinstance(error, Unrecoverable) or job.is_last_attempt
        status: Status = "FAILED" if is_over else "RETRYING"
        await self._deliveries.record(notification, status, attempts=job.attempts_made, error=said)
        raise error
