"""The spool moves over to the broker when it answers again.

In batches: claimed here, added there under its own id, and only then dropped here. A crash at any point repeats a step
that the ids make harmless. A job that the broker refuses becomes a dead letter in the spool; one that somebody cancels on
its way is cancelled there. Of the jobs in doubt the broker first forgets those that have begun here. While one process moves
a queue, nobody else takes from its spool, so that what comes later is not begun before what comes earlier.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence

import structlog

from yamchi.clock import Millis
from yamchi.errors import ConfigurationError, EngineError, InvalidJob
from yamchi.observe.lasting import LastingTrouble
from yamchi.queues.failover.pauses import Pauses
from yamchi.queues.failover.sides import Sides
from yamchi.queues.records import PENDING, Claim, DeadLetter, Failed, JobRecord, NewJob

log = structlog.get_logger("yamchi.failover")

Owns = Callable[[str], bool]

PROBE_SECONDS = 0.5
"""How often to look whether the broker is back, or whether something is in the spool."""

PAUSES_EVERY = 4
"""At each how many of these looks the broker is asked which queues are paused."""

BATCH = 500
MOVE_LEASE: Millis = 30_000


class Mover:
    """Moves the spool and switches back as soon as the broker answers; looks for stragglers ever after."""

    def __init__(self, sides: Sides, pauses: Pauses, owns: Owns) -> None:
        self._sides = sides
        self._pauses = pauses
        self._owns = owns
        self._name = f"failover-{secrets.token_hex(6)}"

    async def has_work(self) -> bool:
        """Whether the spool holds anything that the broker must have before work goes on there."""
        return bool(await self._spooled_queues() or await self._noted_pauses())

    async def run(self) -> None:
        looks, trouble = 0, LastingTrouble(log)
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            try:
                await self._look()
                if self._sides.on_primary and looks % PAUSES_EVERY == 0:
                    await self._pauses.copy_to_spool()
                trouble.end()
            except EngineError as error:
                log.debug("the spool could not be moved yet", error=str(error))
            except ConfigurationError as error:  # such as a password or a certificate that has been changed
                trouble.meet(f"the spool can't be moved: {error}")
            except Exception:
                log.exception("the spool could not be moved; trying again")
            looks += 1

    async def _look(self) -> None:
        queues, noted = await self._spooled_queues(), await self._noted_pauses()
        if (queues or noted or not self._sides.on_primary) and await self._sides.is_primary_back():
            await self._pauses.tell_primary(noted)
            await self._move(queues)

    async def _spooled_queues(self) -> list[str]:
        """One look, whatever the number of queues: it is made twice a second, for ever."""
        return [queue for queue in await self._sides.spool.spooled(self._name) if self._owns(queue)]

    async def _noted_pauses(self) -> dict[str, bool]:
        noted = await self._sides.spool.noted_pauses()
        return {queue: is_paused for queue, is_paused in noted.items() if self._owns(queue)}

    async def _move(self, queues: Sequence[str]) -> None:
        """Move these queues, and go back to the broker if that leaves the spool empty."""
        try:
            moved = [await self._move_queue(queue) for queue in queues]
            if not self._sides.on_primary and not await self.has_work():
                self._sides.switch(to_primary=True, why=f"it answers again; {sum(moved)} jobs moved over")
        finally:
            for queue in queues:
                await self._sides.spool.end_move(queue, self._name)

    async def _move_queue(self, queue: str) -> int:
        moved = 0
        claims = await self._take(queue)
        await self._settle_doubts(queue)
        while claims:
            moved += await self._move_batch(queue, claims)
            claims = await self._take(queue)
        return moved

    async def _take(self, queue: str) -> list[Claim]:
        return await self._sides.spool.take_pending(queue, BATCH, MOVE_LEASE, self._name)

    async def _settle_doubts(self, queue: str) -> None:
        """Nothing begins in the spool now: what has begun there is not to begin on the broker."""
        if begun := await self._sides.spool.doubtful_begun(queue, self._name):
            primary = self._sides.primary
            there = await asyncio.gather(*(primary.get(queue, job_id) for job_id in begun))
            if again := [job.id for job in there if job and job.state in PENDING]:
                await primary.remove(queue, again)
            await self._sides.spool.forget_doubts(queue, begun)

    async def _move_batch(self, queue: str, claims: Sequence[Claim]) -> int:
        """How many moved. A batch that the broker refuses is halved until the job that it refuses is found."""
        try:
            await self._sides.primary.add(queue, [_as_it_was(claim.job) for claim in claims])
        except InvalidJob as error:
            if len(claims) == 1:
                await self._give_up(queue, claims[0], error)
                return 0
            middle = len(claims) // 2
            first = await self._move_batch(queue, claims[:middle])
            return first + await self._move_batch(queue, claims[middle:])
        if unwanted := await self._sides.spool.cancelled(queue, claims):
            await self._sides.primary.cancel(queue, unwanted)
        dropped = await self._sides.spool.drop(queue, claims)
        if late := [job_id for job_id in dropped if job_id not in unwanted]:
            await self._sides.primary.cancel(queue, late)
        return len(claims)

    async def _give_up(self, queue: str, claim: Claim, error: InvalidJob) -> None:
        """A job that the broker will never take fails here, so that those behind it can move."""
        log.error("the broker refuses a job of the spool", **claim.job.log_fields(error=str(error)))
        letter = DeadLetter.of_job(claim.job, str(error), claim.job.started_at or claim.job.run_at)
        failed = Failed(claim, str(error), letter)
        await self._sides.spool.exchange(queue, [failed], 0, MOVE_LEASE, self._name)


def _as_it_was(job: JobRecord) -> NewJob:
    return job.as_new(run_at=job.run_at if job.run_at > job.created_at else None)
