"""Jobs that were being added as the broker fell silent: it may have them all the same, and the spool has them too.

What has ended here by the time the broker is back must not run there once more. What still waits here is moved as any
other job: there, the same id is the same job.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from yamchi.queues.failover.sides import Sides
from yamchi.queues.records import FINISHED, PENDING, Released, RetryAt, Verdict


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
        """The broker is back, and nothing has been moved to it yet: it forgets what has ended here."""
        for queue, doubtful in list(self._doubtful.items()):
            job_ids = list(doubtful)
            ended = [job_id for job_id in job_ids if await self._has_ended(queue, job_id)]
            again = [job_id for job_id in ended if await self._waits_there(queue, job_id)]
            if again:
                await self._sides.primary.remove(queue, again)
            doubtful.difference_update(job_ids)
            self._ended[queue].difference_update(job_ids)

    async def _has_ended(self, queue: str, job_id: str) -> bool:
        if job_id in self._ended[queue]:
            return True
        job = await self._sides.spool.get(queue, job_id)
        return job is not None and job.state in FINISHED

    async def _waits_there(self, queue: str, job_id: str) -> bool:
        job = await self._sides.primary.get(queue, job_id)
        return job is not None and job.state in PENDING
