"""Rate limits: how many jobs of a queue may start now, and whose permit is later.

The queue's own rate is asked before jobs are claimed, so that what must wait stays in the queue. A rate per key can be
asked only when the job is known: one whose permit is later goes back to wait for it, and keeps the permit it was given.
"""

from collections.abc import Sequence
from contextlib import suppress

from yamchi.clock import Clock, Millis
from yamchi.errors import EngineError
from yamchi.queues.queue import Queue
from yamchi.queues.records import Claim, Released

WHOLE_QUEUE = ""
"""The key of the permits of the queue as a whole."""


class Throttle:
    """The rate limits of one queue. Permits are kept by the engine, so all workers share them."""

    def __init__(self, queue: Queue, clock: Clock) -> None:
        self._queue = queue
        self._definition = queue.definition
        self._engine = queue.engine
        self._clock = clock

    async def allow(self, want: int) -> tuple[int, Millis]:
        """How many of the wanted jobs may start now, and how long to wait for the next one if not all may."""
        rate = self._definition.rate
        if rate is None or want == 0:
            return want, 0
        asked = min(want, rate.burst)
        permits = await self._engine.reserve(self._queue.name, rate, [WHOLE_QUEUE] * asked)
        now = self._clock.now()
        allowed = sum(permit <= now for permit in permits)
        if allowed == asked:
            return allowed, 0
        await self._engine.refund(self._queue.name, rate, WHOLE_QUEUE, asked - allowed)
        return allowed, permits[allowed] - now

    async def refund(self, permits: int) -> None:
        """Give back unused permits. If the broker fails, the queue only runs a little slower than its limit."""
        if permits and self._definition.rate:
            with suppress(EngineError):
                await self._engine.refund(self._queue.name, self._definition.rate, WHOLE_QUEUE, permits)

    async def sort(self, claims: Sequence[Claim]) -> tuple[Sequence[Claim], list[Released]]:
        """The claims whose key permits them to start now, and verdicts that put back the others until their permit."""
        rate = self._definition.key_rate
        without_permit = [claim for claim in claims if not claim.has_permit]
        if rate is None or not without_permit:
            return claims, []
        try:
            permits = await self._engine.reserve(
                self._queue.name, rate, [self._key(claim) for claim in without_permit]
            )
        except EngineError:
            return [], [Released(claim) for claim in claims]
        now = self._clock.now()
        later = [
            Released(claim, permit, has_permit=True)
            for claim, permit in zip(without_permit, permits, strict=True)
            if permit > now
        ]
        await self.refund(len(later))
        waiting = {id(released.claim) for released in later}
        return [claim for claim in claims if id(claim) not in waiting], later

    def _key(self, claim: Claim) -> str:
        try:
            data = self._definition.handler(claim.job.name).decode(claim.job.payload)
            return f"key-{self._definition.key_of(data)}"
        except Exception:
            return "key-unknown"  # the handler will say what is wrong with this job
