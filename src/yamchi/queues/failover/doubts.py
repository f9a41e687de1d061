"""Jobs that were being added as the broker fell silent: it may have them all the same, and the spool has them too.

What has begun here by the time the broker is back must not run there once more. What still waits here is moved as any
other job: there, the same id is the same job.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence

from yamchi.queues.engines.base import Engine
from yamchi.queues.failover.sides import Sides
from yamchi.queues.records import PENDING, JobRecord, Released, RetryAt, Verdict

MOVERS = "failover-"
"""The names of who moves jobs from the spool to the broker begin so."""


class Doubts:
    """The jobs of this process that are in doubt, until the broker is back."""

    def __init__(self, sides: Sides) -> None:
        self._sides = sides
        self._doubtful: dict[str, set[str]] = defaultdict(set)
        self._ended: dict[str, set[str]] = defaultdict(set)

    def note(self, queue: str, job_ids: Iterable[str]) -> None:
        """The broker was given these jobs, and did not answer."""
        self._doubtful[queue].update(job_ids)

    def note_settled(self, queue: str, verdicts: Sequence[Verdict]) -> None:
        """These verdicts stand in the spool, which need not keep the jobs until the broker is back."""
        if doubtful := self._doubtful.get(queue):
            ended = {one.claim.job.id for one in verdicts if not isinstance(one, RetryAt | Released)}
            self._ended[queue] |= ended & doubtful

    async def settle(self) -> None:
        """The broker is back, and nothing has been moved to it yet: it forgets what has begun here."""
        for queue, doubtful in list(self._doubtful.items()):
            job_ids = list(doubtful)
            here = await _jobs(self._sides.spool, queue, job_ids)
            begun = {job.id for job in here if _has_begun(job)} | self._ended[queue]
            there = await _jobs(self._sides.primary, queue, begun)
            if again := [job.id for job in there if job.state in PENDING]:
                await self._sides.primary.remove(queue, again)
            doubtful.difference_update(job_ids)
            self._ended[queue].difference_update(job_ids)


def _has_begun(job: JobRecord) -> bool:
    """One that a mover has in its hands is active too: another process is bringing it to the broker."""
    return job.state not in PENDING and not (job.worker or "").startswith(MOVERS)


async def _jobs(engine: Engine, queue: str, job_ids: Iterable[str]) -> list[JobRecord]:
    """Those of these that an engine knows. All are asked for at once: engines answer such calls together."""
    found = await asyncio.gather(*(engine.get(queue, job_id) for job_id in job_ids))
    return [job for job in found if job]
