"""Records what became of a message: the delivery's status and attempt, the provider's circuit, the job that comes next.

The processor decides; this writes. Every method ends in a `Result`, or raises what the worker is to do with the job.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from yamchi.clock import Clock, Millis, as_datetime, to_moment
from yamchi.errors import EngineUnavailable, Outage, Snooze, Unrecoverable
from yamchi.notifications.channels.base import AnswerLost, Message, NoAddress, StoredMessage, Unreachable
from yamchi.notifications.channels.circuits import Circuits
from yamchi.notifications.people.suppressions import Suppressions
from yamchi.notifications.policy.context import SendContext, SendRequest
from yamchi.notifications.policy.escalation import escalation_of
from yamchi.notifications.policy.fallback import next_channel_job
from yamchi.notifications.policy.model import Digest, digest_of, policy_of
from yamchi.notifications.schemas.notification_job import NotificationJob
from yamchi.notifications.sending.deliveries import Deliveries
from yamchi.notifications.sending.digests import Digests
from yamchi.notifications.sending.direct import sendable_again
from yamchi.notifications.sending.results import Collected, Ended, Sent
from yamchi.notifications.sending.retry import RetryEngine, sentence
from yamchi.notifications.sending.statuses import INTERRUPTED, Status
from yamchi.queues.records import storable

LONGEST_PROVIDER_ID = 255
"""Characters that are kept of what the provider calls the message, which may be anything."""

Enqueue = Callable[[Sequence[NotificationJob]], Awaitable[None]]
Observer = Callable[[str, str, str], None]
"""Called with every answer: channel, provider, outcome."""


class Outcomes:
    """Writes to `notification_delivery` and its neighbors. Each step may be repeated after a crash."""

    def __init__(
        self,
        deliveries: Deliveries,
        digests: Digests,
        suppressions: Suppressions,
        circuits: Circuits,
        enqueue: Enqueue,
        clock: Clock,
        observe: Observer = lambda channel, provider, answer: None,
    ) -> None:
        self._deliveries = deliveries
        self._digests = digests
        self._suppressions = suppressions
        self._circuits = circuits
        self._enqueue = enqueue
        self._clock = clock
        self._observe = observe
        self._retry = RetryEngine()

    # ── Not sent, by decision ─────────────────────────────────────────────────────────────────────────────────────

    async def end(self, job: NotificationJob, status: Status, reason: str, attempts: int) -> Ended:
        """The delivery is over without a message."""
        await self._deliveries.record(job, status, attempts=attempts, error=reason)
        return Ended(status, reason)

    async def postpone(self, context: SendContext, until: Millis | None, reason: str) -> None:
        """Record that the delivery waits, until this moment if it is known."""
        paid = context.attempt - 1
        await self._deliveries.record(context.job, "QUEUED", attempts=paid, error=reason, due_at=until)

    async def collect(self, context: SendContext, digest: Digest) -> Collected:
        """Keep the message for its digest, and queue the digest's own job."""
        digest_job = await self._digests.collect(context, digest)
        if digest_job is None:
            raise Snooze(as_datetime(self._clock.now()), "it was told or cancelled a moment ago")
        await self._enqueue([digest_job])
        due = to_moment(digest_job.send_after) if digest_job.send_after else None
        reason = f"collected for {digest.template}, a digest"
        await self._deliveries.record(context.job, "QUEUED", attempts=0, error=reason, due_at=due)
        return Collected(digest_job.delivery_id)

    async def try_next_channel(
        self, job: NotificationJob, status: Status, reason: str, attempts: int
    ) -> Ended | None:
        """End this delivery and queue the next channel of `first_of`; None if there is no other channel."""
        following = next_channel_job(job, policy_of(job))
        if following is None:
            return None
        if digest_id := digest_of(job):
            await self._digests.hand_over(digest_id, job.delivery_id, following.delivery_id)
        await self._enqueue([following])
        ended = await self.end(job, status, f"{reason}; went on to {following.channel}", attempts)
        return Ended(status, ended.reason, following.delivery_id)

    # ── Sent ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def hand_over(self, context: SendContext, message: Message) -> bool:
        """Note that the message may have arrived, before it goes to a provider that must not get it twice.

        If this process dies, or the outcome can't be stored, the delivery is left to a person.
        """
        return await self._deliveries.hand_over(sendable_again(context.request, message), context.attempt)

    async def sent(self, context: SendContext, answer: str | StoredMessage | None, began: Millis) -> Sent:
        """The provider took the message: record it, close the circuit, queue the escalation."""
        await self._circuits.succeeded(context.circuit)
        self._observe(context.channel.name, context.channel.provider, "sent")
        job, attempt = context.job, context.attempt
        given = answer.id if isinstance(answer, StoredMessage) else answer
        provider_id = None if given is None else storable(str(given), LONGEST_PROVIDER_ID)
        beside = [self._deliveries.attempt(job.delivery_id, attempt, "sent", provider_id, began)]
        beside += [answer.put] if isinstance(answer, StoredMessage) else []
        await self._deliveries.record(
            job, "SENT", attempts=attempt, provider_message_id=provider_id, beside=beside
        )
        await self.queue_escalation(job)
        return Sent(provider_id)

    async def queue_escalation(self, job: NotificationJob) -> None:
        """Queue what is to be sent if this message is not read in time."""
        if later := escalation_of(job, policy_of(job), self._clock.now()):
            await self._enqueue([later])

    # ── Failed ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def failed_before_sending(self, request: SendRequest, error: Exception) -> Ended:
        """There was nothing to send: no address, no template, a missing variable."""
        job, notification, reason = request.job, request.notification, sentence(error)
        if isinstance(error, NoAddress):
            paid = job.attempts_made - 1
            if ended := await self.try_next_channel(notification, "SUPPRESSED", reason, paid):
                return ended
        is_over = isinstance(error, Unrecoverable) or job.is_last_attempt
        status: Status = "FAILED" if is_over else "RETRYING"
        await self._deliveries.record(notification, status, attempts=job.attempts_made, error=reason)
        raise error

    async def failed(self, context: SendContext, message: Message, error: Exception, began: Millis) -> Ended:
        """The channel raised an error: `RetryEngine` decides what it means for the delivery."""
        decision = self._retry.decide(error, context.channel, context.attempt, context.attempts)
        job, attempt, reason = context.job, context.attempt, sentence(error)
        outage = error.outage if isinstance(error, AnswerLost) else error
        paid = attempt - 1 if isinstance(outage, Outage) else attempt
        self._observe(context.channel.name, context.channel.provider, decision.outcome)
        noted = self._deliveries.attempt(job.delivery_id, attempt, decision.outcome, reason, began)
        kept = sendable_again(context.request, message) if decision.status == "UNKNOWN" else job
        await self._deliveries.record(kept, decision.status, attempts=paid, error=reason, beside=[noted])
        if isinstance(error, Unreachable | NoAddress) and (
            ended := await self._unreachable(context, message.to, error)
        ):
            return ended
        verdict = decision.verdict
        if isinstance(outage, Outage):
            told = await self._circuits.failed(context.circuit_of(outage), outage, began)
            verdict = verdict and told
        if verdict is not None:
            raise verdict
        return Ended(decision.status)

    async def interrupted(self, context: SendContext, message: Message) -> None:
        """The job was cancelled, or its worker stopped, while the provider had the message: the message may have left.

        A delivery that still waits is left as it is, and is sent again.
        """
        may_be_lost = ("CANCELLED",) if context.channel.resends_unknown else ("CANCELLED", "UNKNOWN")
        with suppress(EngineUnavailable):  # then nothing says more than was known before
            if await self._deliveries.status(context.job.delivery_id) in may_be_lost:
                kept = sendable_again(context.request, message)
                await self._deliveries.record(kept, "UNKNOWN", attempts=context.attempt, error=INTERRUPTED)

    async def _unreachable(
        self, context: SendContext, address: str, error: Unreachable | NoAddress
    ) -> Ended | None:
        """Suppress an address that reached nobody, and try the next channel if there is one."""
        job, reason = context.job, sentence(error)
        if isinstance(error, NoAddress):
            return await self.try_next_channel(job, "SUPPRESSED", reason, context.attempt)
        await self._circuits.succeeded(context.circuit)  # it is the provider who says so
        await self._suppressions.add(
            context.channel.name, address, reason, user_id=context.recipient.user_id, job_id=job.delivery_id
        )
        return await self.try_next_channel(job, "FAILED", reason, context.attempt)
