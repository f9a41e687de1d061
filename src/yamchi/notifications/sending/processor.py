"""JobProcessor: one notification job from the queue to its channel. `_process` shows the stages in their order.

Whether the job is over already (sent, cancelled, expired) is asked first, and again right before sending: the message may
have waited in between. Whether it may be sent now, `policy/checks.py` decides. What became of it, `outcomes.py` records.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from yamchi import errors
from yamchi.clock import Clock, as_datetime, to_moment
from yamchi.errors import EngineUnavailable, Outage, Snooze
from yamchi.faultpoints import fault_point
from yamchi.notifications.channels.base import Message, Recipient
from yamchi.notifications.channels.circuits import Circuits
from yamchi.notifications.policy.checks import Collect, Hold, Send, SendChecks, Suppress, Wait
from yamchi.notifications.policy.context import BeforeSending, ContextLoader, SendContext, SendRequest
from yamchi.notifications.policy.model import digest_of
from yamchi.notifications.schemas.notification_job import (
    AnyNotification,
    DirectMessage,
    DirectOptions,
    NotificationJob,
    canonical_channel,
)
from yamchi.notifications.sending import direct as directs
from yamchi.notifications.sending.composer import Composer
from yamchi.notifications.sending.deliveries import Deliveries
from yamchi.notifications.sending.digests import Digests
from yamchi.notifications.sending.outcomes import Outcomes
from yamchi.notifications.sending.results import Ended, Result, Split
from yamchi.notifications.sending.retry import sentence
from yamchi.notifications.sending.statuses import Status
from yamchi.queues.job import Job

_any_notification: TypeAdapter[NotificationJob | DirectMessage] = TypeAdapter(AnyNotification)


class CampaignCheck(Protocol):
    """The part of campaigns that the processor needs."""

    async def is_cancelled(self, campaign_id: str) -> bool:
        """Whether its messages are not to be sent any more. Raises `Snooze` while it is paused."""

    async def wait_for_rate(self, campaign_id: str) -> None:
        """Return when the campaign's rate allows one more message. Raises `Snooze` if that takes long."""


@contextmanager
def _unpaid_while_away() -> Iterator[None]:
    """If our own database can't be reached, the message waits and pays no attempt, as if its provider were down."""
    try:
        yield
    except EngineUnavailable as error:
        raise Outage(str(error)) from error


class JobProcessor:
    """Handles the jobs of the queue `notifications`."""

    def __init__(
        self,
        contexts: ContextLoader,
        checks: SendChecks,
        campaigns: CampaignCheck,
        digests: Digests,
        composer: Composer,
        circuits: Circuits,
        deliveries: Deliveries,
        outcomes: Outcomes,
        clock: Clock,
    ) -> None:
        self._contexts = contexts
        self._checks = checks
        self._campaigns = campaigns
        self._digests = digests
        self._composer = composer
        self._circuits = circuits
        self._deliveries = deliveries
        self._outcomes = outcomes
        self._clock = clock

    # ── Ways in ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def handle_job(self, job: Job[Any]) -> Result:
        """Send one notification. A slow channel holds up its own messages only."""
        with job.holding(canonical_channel(job.data.channel)):
            if isinstance(job.data, DirectMessage):
                return await self._handle_direct(job, job.data)
            if kept := directs.as_sent(job.data):
                return await self._send_again(job, kept)
            digest_id = digest_of(job.data)
            if digest_id:
                return await self._handle_digest(job, digest_id)
            return await self._process(SendRequest(job, job.data))

    async def _handle_digest(self, job: Job[Any], digest_id: str) -> Result:
        """Send a digest. Its collected messages get the same status as the digest's own job."""
        try:
            return await self._process(SendRequest(job, job.data))
        finally:
            with _unpaid_while_away():
                await self._digests.settle(digest_id, job.data.delivery_id)

    async def _send_again(self, job: Job[Any], kept: directs.AsSent) -> Result:
        """Send the same message again, because a person decided so."""
        with _unpaid_while_away():
            recipient = await self._contexts.with_choices(Recipient(kept.user_id))
        return await self._process(
            SendRequest(job, job.data, recipient, rendered=kept.rendered, address=kept.to)
        )

    async def _handle_direct(self, job: Job[Any], direct: DirectMessage) -> Result:
        addresses = directs.addresses_of(direct)
        if len(addresses) != 1:
            single = directs.split(job, direct)
            await job.queue.add_many(single)
            return Split([new.id for new in single])
        notification = directs.as_job(job, direct, self._clock.now())
        return await self.send_to(job, notification, addresses[0], direct.options)

    async def send_to(
        self, job: Job[Any], notification: NotificationJob, address: str, options: DirectOptions
    ) -> Result:
        """Send one message to an address, with the text or the template of these options."""
        rendered = directs.rendered_of(options)
        subject = None if rendered else options.subject
        with _unpaid_while_away():
            recipient = await self._contexts.with_choices(directs.at(address))
        request = SendRequest(job, notification, recipient, rendered=rendered, subject=subject)
        return await self._process(request)

    async def deliver(
        self,
        job: Job[Any],
        notification: NotificationJob,
        recipient: Recipient,
        before_sending: BeforeSending,
    ) -> Result:
        """Send one notification inside a job of another feature, whose retries are then the message's."""
        return await self._process(SendRequest(job, notification, recipient, before_sending=before_sending))

    async def note_failure(self, job: Job[Any], error: str) -> None:
        """Record a job that failed outside its handler, such as one that killed its workers."""
        if notification := self.notification_of(job):
            await self.record_failure(job, notification, error)

    async def record_failure(self, job: Job[Any], notification: NotificationJob, error: str) -> None:
        """Record `FAILED`, unless that is done already or a person has to decide."""
        status = await self._deliveries.status(notification.delivery_id)
        if status == "FAILED" or self._is_left_to_a_person(status, notification):
            return
        await self._deliveries.record(notification, "FAILED", attempts=job.attempts_made, error=error)
        if digest_id := digest_of(notification):
            await self._digests.settle(digest_id, notification.delivery_id)

    def notification_of(self, job: Job[Any]) -> NotificationJob | None:
        """The notification in a job. None if it is poison, or goes to several addresses, each of which gets a job of its own."""
        try:
            data = _any_notification.validate_json(job.record.payload)
        except ValidationError:
            return None
        if isinstance(data, NotificationJob):
            return data
        return directs.as_job(job, data, self._clock.now()) if len(directs.addresses_of(data)) == 1 else None

    # ── The stages ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _process(self, request: SendRequest) -> Result:
        """Is it over? Is it due? Who and what? May it be sent? Is the provider up? Compose. Send."""
        with _unpaid_while_away():
            ready = await self._prepare(request)
        return await self._send(*ready) if isinstance(ready, tuple) else ready

    async def _prepare(self, request: SendRequest) -> tuple[SendContext, Message] | Result:
        """Everything before sending. A result if nothing is to be sent now."""
        if over := await self._already_over(request.notification):
            if over.status == "SENT":  # by a worker that may have died before it queued the escalation
                await self._outcomes.queue_escalation(request.notification)
            return over
        await self._check_due(request.notification)
        try:
            context = await self._contexts.load(request)
            decision = await self._checks.decide(context)
            if not isinstance(decision, Send):
                return await self._hold(context, decision)
            if digest_id := context.policy.gathers:
                gathered = await self._with_digest(context, digest_id)
                if gathered is None:
                    return await self._outcomes.end(
                        context.job, "SUPPRESSED", "Nothing was left to tell", attempts=0
                    )
                context = gathered
            await self._circuits.enter(context.circuit)
            message = await self._composer.compose(context)
        except (Outage, Snooze, EngineUnavailable):
            raise
        except Exception as error:
            return await self._outcomes.failed_before_sending(request, error)
        return await self._check_again(context) or (context, message)

    async def _already_over(self, notification: NotificationJob) -> Ended | None:
        """Whether there is nothing left to do: sent already, left to a person, expired, or cancelled."""
        status = await self._deliveries.status(notification.delivery_id)
        if status in ("SENT", "SUPPRESSED"):
            return Ended(status)
        if status and self._is_left_to_a_person(status, notification):
            if until := await self._deliveries.being_sent_until(notification.delivery_id):
                raise Snooze(as_datetime(until), "another worker may be sending it")
            return Ended(status)
        if status == "CANCELLED":
            raise errors.Cancelled
        if notification.expires_at and to_moment(notification.expires_at) <= self._clock.now():
            if status == "UNKNOWN":  # it may have arrived: a person decides
                await self._deliveries.leave(notification.delivery_id)
                return Ended(status)
            await self._deliveries.record(notification, "EXPIRED", attempts=0)
            return Ended("EXPIRED")
        campaign = notification.meta.campaign_id
        if campaign and await self._campaigns.is_cancelled(campaign):
            await self._deliveries.record(notification, "CANCELLED", attempts=0)
            raise errors.Cancelled
        return None

    def _is_left_to_a_person(self, status: Status | None, notification: NotificationJob) -> bool:
        channel = self._contexts.channel_of(notification)
        return status == "UNKNOWN" and not (channel and channel.resends_unknown)

    async def _check_due(self, notification: NotificationJob) -> None:
        send_after = notification.send_after
        if send_after and to_moment(send_after) > self._clock.now():
            await self._deliveries.note_due(notification)
            raise Snooze(send_after, "not before its send_after")

    async def _hold(self, context: SendContext, decision: Hold) -> Result:
        """Do not send now: wait, end, or collect for a digest."""
        job, paid = context.job, context.attempt - 1
        match decision:
            case Wait(until=until, reason=reason):
                await self._outcomes.postpone(context, until, reason)
                raise Snooze(as_datetime(until), reason)
            case Suppress(reason=reason, is_unreachable=is_unreachable):
                ended = is_unreachable and await self._outcomes.try_next_channel(
                    job, "SUPPRESSED", reason, paid
                )
                return ended or await self._outcomes.end(job, "SUPPRESSED", reason, paid)
            case Collect(digest=digest):
                return await self._outcomes.collect(context, digest)

    async def _with_digest(self, context: SendContext, digest_id: str) -> SendContext | None:
        """The context with the collected messages as its data; None if there are none."""
        gathered = await self._digests.gather(digest_id, context.job)
        if not gathered.count:
            return None
        return replace(context, job=context.job.model_copy(update={"data": gathered.as_data()}))

    async def _check_again(self, context: SendContext) -> Ended | None:
        """The end, if it is over since the first stage; else None, once the campaign's rate allows it."""
        if over := await self._already_over(context.job):
            return over
        if campaign := context.job.meta.campaign_id:
            await self._campaigns.wait_for_rate(campaign)
        if context.request.before_sending:
            await context.request.before_sending()
        return None

    async def _send(self, context: SendContext, message: Message) -> Result:
        """Hand the message to its channel."""
        began, is_sent_once = self._clock.now(), not context.channel.resends_unknown
        if is_sent_once:
            with _unpaid_while_away():
                if not await self._outcomes.hand_over(context, message):
                    raise Snooze(timedelta(0), "it is over, or another worker is sending it")
        try:
            answer = await context.channel.send(message)
        except Snooze as error:  # the channel's own limits: nothing was tried
            if is_sent_once:
                await self._outcomes.postpone(context, None, sentence(error))
            raise
        except asyncio.CancelledError:
            await self._outcomes.interrupted(context, message)
            raise
        except Exception as error:
            return await self._outcomes.failed(context, message, error, began)
        fault_point("message.sent")
        return await self._outcomes.sent(context, answer, began)
