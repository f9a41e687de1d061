"""The engine in memory as a spool: it can hold jobs for another engine, as `Spool` says."""

from collections.abc import Sequence

from yamchi.clock import Millis
from yamchi.queues.engines.memory import MemoryEngine
from yamchi.queues.records import PENDING, Claim, NewJob, Released


class MemorySpool(MemoryEngine):
    """Jobs in this process, until their broker is back."""

    async def add_doubtful(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        with self._lock:
            self._contents[queue].doubtful.update(job.id for job in jobs)
            return await self.add(queue, jobs)

    async def fire_doubtful(self, schedule: str, moment: Millis, queue: str, job: NewJob) -> bool:
        with self._lock:
            self._contents[queue].doubtful.add(job.id)
            return await self.fire(schedule, moment, queue, job)

    async def doubtful_begun(self, queue: str, mover: str) -> list[str]:
        with self._lock:
            content = self._contents[queue]
            return [job_id for job_id in content.doubtful if content.has_begun(job_id, mover)]

    async def forget_doubts(self, queue: str, job_ids: Sequence[str]) -> None:
        with self._lock:
            self._contents[queue].doubtful.difference_update(job_ids)

    async def take_pending(self, queue: str, want: int, lease: Millis, mover: str) -> list[Claim]:
        with self._lock:
            content, now = self._contents[queue], self._clock.now()
            content.mover = mover
            pending = [entry for entry in content.jobs.values() if entry.job.state in PENDING]
            pending.sort(key=lambda entry: entry.place)
            return [content.claim(entry, lease, mover, now) for entry in pending[:want]]

    async def spooled(self, mover: str) -> list[str]:
        return [
            queue
            for queue, content in self._contents.items()
            if any(content.counts[state] for state in PENDING)
            or content.doubtful
            or content.mover not in (None, mover)
        ]

    async def drop(self, queue: str, claims: Sequence[Claim]) -> list[str]:
        with self._lock:
            content = self._contents[queue]
            entries = [entry for claim in claims if (entry := self._held(claim))]
            for entry in entries:
                del content.active[entry.job.id]
                content.forget(entry.job.id)
                content.doubtful.discard(entry.job.id)
            return [entry.job.id for entry in entries if entry.cancelling]

    async def end_move(self, queue: str, mover: str) -> None:
        with self._lock:
            content, now = self._contents[queue], self._clock.now()
            for entry in [entry for entry in content.active.values() if entry.job.worker == mover]:
                content.doubtful.add(entry.job.id)
                content.settle(
                    Released(Claim(entry.job, entry.token or "", has_permit=entry.has_permit)), now
                )
            content.mover = None
            content.wakeup.set()

    async def note_pause(self, queue: str, is_paused: bool) -> None:
        with self._lock:
            content = self._contents[queue]
            content.paused = content.noted_pause = is_paused
            content.wakeup.set()

    async def noted_pauses(self) -> dict[str, bool]:
        noted = {queue: content.noted_pause for queue, content in self._contents.items()}
        return {queue: is_paused for queue, is_paused in noted.items() if is_paused is not None}

    async def forget_pause(self, queue: str, is_paused: bool) -> None:
        with self._lock:
            if self._contents[queue].noted_pause == is_paused:
                self._contents[queue].noted_pause = None

    async def copy_pause(self, queue: str, is_paused: bool) -> None:
        with self._lock:
            content = self._contents[queue]
            content.paused = is_paused if content.noted_pause is None else content.paused
            content.wakeup.set()
