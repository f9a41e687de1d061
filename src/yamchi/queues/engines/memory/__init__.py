"""The engine that keeps nothing: jobs live in this process. For tests, and as the fallback of last resort.

The queues are in `content`, behind one lock, since leases are renewed from a thread of their own.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress

from yamchi.clock import Clock, Millis, to_millis
from yamchi.queues.engines.base import (
    WORKER_TTL,
    Capabilities,
    Event,
    Exchange,
    LetterPage,
    Minute,
    Page,
    RateLimit,
    WorkerInfo,
    stalled_verdict,
)
from yamchi.queues.engines.memory.content import Entry, QueueContent
from yamchi.queues.forking import MadeAnew
from yamchi.queues.records import (
    FINISHED,
    PENDING,
    STATES,
    Claim,
    DeadLetter,
    Failed,
    JobRecord,
    NewJob,
    State,
    Verdict,
)


class MemoryEngine(MadeAnew):
    """Jobs in this process."""

    type = "in-memory"
    can = Capabilities(durable=False, shared=False, events=False, overlaps=False)

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._contents: dict[str, QueueContent] = defaultdict(QueueContent)
        self._lock = threading.RLock()
        self._schedules: dict[str, Millis] = {}
        self._workers: dict[str, WorkerInfo] = {}

    async def open(self) -> None:
        """There is nothing to connect to."""

    async def close(self) -> None:
        """What is left is forgotten with the process."""

    async def ping(self) -> None:
        """Always there."""

    # ── Producing ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def add(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        with self._lock:
            content, now = self._contents[queue], self._clock.now()
            created = [content.add(queue, job, now) for job in jobs]
            content.wakeup.set()
            return created

    async def fire(self, schedule: str, moment: Millis, queue: str, job: NewJob) -> bool:
        with self._lock:
            if self._schedules.get(schedule, -1) >= moment:
                return False
            self._schedules[schedule] = moment
            return (await self.add(queue, [job]))[0]

    async def begin_schedule(self, schedule: str, moment: Millis) -> None:
        self._schedules.setdefault(schedule, moment)

    async def last_fired(self, schedule: str) -> Millis | None:
        return self._schedules.get(schedule)

    # ── Working ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def exchange(
        self, queue: str, verdicts: Sequence[Verdict], want: int, lease: Millis, worker: str
    ) -> Exchange:
        with self._lock:
            content, now = self._contents[queue], self._clock.now()
            content.wakeup.clear()
            settled = [verdict.claim.job.id for verdict in verdicts if content.settle(verdict, now)]
            claims = [] if content.is_held_up else list(content.take(want, lease, worker, now))
            return Exchange(settled, claims)

    async def renew(self, queue: str, claims: Sequence[Claim], lease: Millis) -> list[str]:
        with self._lock:
            held = [entry for claim in claims if (entry := self._held(claim))]
            for entry in held:
                entry.lease_until = self._clock.now() + lease
            return [entry.job.id for entry in held]

    def _held(self, claim: Claim) -> Entry | None:
        entry = self._contents[claim.job.queue].active.get(claim.job.id)
        return entry if entry and entry.token == claim.token else None

    async def recover(self, queue: str) -> list[tuple[JobRecord, bool]]:
        with self._lock:
            content, now = self._contents[queue], self._clock.now()
            overdue = [entry for entry in content.active.values() if entry.lease_until < now]
            verdicts = [stalled_verdict(Claim(entry.job, entry.token or ""), now) for entry in overdue]
            for verdict in verdicts:
                content.settle(verdict, now)
            return [(verdict.claim.job, isinstance(verdict, Failed)) for verdict in verdicts]

    async def wake(self, queue: str, timeout: Millis) -> None:
        due = self.next_due(queue)
        if due is not None:
            timeout = min(timeout, max(due - self._clock.now(), 0))
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout / 1000):
                await self._contents[queue].wakeup.wait()

    def next_due(self, queue: str) -> Millis | None:
        """When the next delayed job is due."""
        with self._lock:
            return self._contents[queue].next_due()

    def next_permit(self, queue: str, key: str) -> Millis | None:
        """When the next job that waits may have a permit of this key; None if none waits that may be started."""
        with self._lock:
            content = self._contents[queue]
            if content.is_held_up or not content.counts["waiting"] or key not in content.permits:
                return None
            return round(content.permits[key])

    async def reserve(self, queue: str, limit: RateLimit, keys: Sequence[str]) -> list[Millis]:
        with self._lock:
            permits, now = self._contents[queue].permits, self._clock.now()
            moments = []
            for key in keys:
                moment, permits[key] = limit.take(permits.get(key, 0.0), now)
                moments.append(moment)
            return moments

    async def refund(self, queue: str, limit: RateLimit, key: str, permits: int) -> None:
        with self._lock:
            given = self._contents[queue].permits
            if key in given:  # else the permits are another engine's, before a switch to this one
                given[key] -= limit.spacing * permits

    async def cancelled(self, queue: str, claims: Sequence[Claim]) -> list[str]:
        with self._lock:
            return [claim.job.id for claim in claims if (entry := self._held(claim)) and entry.cancelling]

    async def heartbeat(self, worker: WorkerInfo | str) -> None:
        if isinstance(worker, str):
            self._workers.pop(worker, None)
        else:
            self._workers[worker.id] = worker

    # ── Managing ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, queue: str, job_id: str) -> JobRecord | None:
        entry = self._contents[queue].jobs.get(job_id)
        return entry.job.changed(logs=list(entry.job.logs)) if entry else None

    async def page(self, queue: str, state: State | None, search: str, offset: int, limit: int) -> Page:
        with self._lock:
            found = [
                e
                for e in self._contents[queue].jobs.values()
                if state in (None, e.job.state) and _has(e.job, search)
            ]
        found.sort(key=lambda entry: _place(entry, state))
        return Page([entry.job for entry in found[offset : offset + limit]], len(found))

    async def counts(self, queue: str) -> dict[State, int]:
        return dict(self._contents[queue].counts)

    async def history(self, queue: str, minutes: int) -> list[Minute]:
        since = self._clock.now() - minutes * 60_000
        kept = sorted(self._contents[queue].minutes.items())
        return [Minute(moment, completed, failed) for moment, (completed, failed) in kept if moment >= since]

    async def queues(self) -> list[str]:
        return sorted(name for name, content in self._contents.items() if content.jobs or content.minutes)

    async def workers(self) -> list[WorkerInfo]:
        since = self._clock.now() - to_millis(WORKER_TTL)
        return [worker for worker in self._workers.values() if worker.seen_at >= since]

    def _known(self, queue: str, job_ids: Iterable[str], states: Sequence[State]) -> list[Entry]:
        jobs = self._contents[queue].jobs
        return [entry for job_id in job_ids if (entry := jobs.get(job_id)) and entry.job.state in states]

    async def remove(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        with self._lock:
            found = self._known(queue, job_ids, [state for state in STATES if state != "active"])
            for entry in found:
                self._contents[queue].forget(entry.job.id)
            return [entry.job.id for entry in found]

    async def cancel(self, queue: str, job_ids: Sequence[str]) -> dict[str, State]:
        with self._lock:
            found = self._known(queue, job_ids, ("active", *PENDING))
            for entry in found:
                if entry.job.state == "active":
                    entry.cancelling = True
                else:
                    self._contents[queue].end(entry, "cancelled", self._clock.now())
            return {entry.job.id: entry.job.state for entry in found}

    async def promote(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        return self._put_again(queue, self._known(queue, job_ids, ("delayed",)))

    async def retry(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        found = self._known(queue, job_ids, FINISHED)
        fresh = {
            "attempts_made": 0,
            "finished_at": None,
            "failed_reason": None,
            "stacktrace": None,
            "result": None,
        }
        for entry in found:
            entry.job = entry.job.changed(progress=None, **fresh)
            entry.cancelling = entry.has_permit = False
            self._contents[queue].letters.pop(entry.job.id, None)
        return self._put_again(queue, found)

    def _put_again(self, queue: str, found: Sequence[Entry]) -> list[str]:
        with self._lock:
            content, now = self._contents[queue], self._clock.now()
            for entry in found:
                content.put(entry, now, now)
            content.wakeup.set()
            return [entry.job.id for entry in found]

    async def update(self, queue: str, job_id: str, payload: bytes) -> bool:
        with self._lock:
            found = self._known(queue, [job_id], [state for state in STATES if state != "active"])
            for entry in found:
                entry.job = entry.job.changed(payload=payload)
            return bool(found)

    async def progress(self, claim: Claim, value: bytes) -> None:
        with self._lock:
            if entry := self._held(claim):
                entry.job = entry.job.changed(progress=value)

    async def log(self, queue: str, job_id: str, lines: Sequence[str]) -> None:
        with self._lock:
            for entry in self._known(queue, [job_id], STATES):
                entry.job = entry.job.changed(logs=[*entry.job.logs, *lines])

    async def pause(self, queue: str) -> None:
        self._contents[queue].paused = True

    async def resume(self, queue: str) -> None:
        self._contents[queue].paused = False
        self._contents[queue].wakeup.set()

    async def paused(self, queue: str) -> bool:
        return self._contents[queue].paused

    async def clean(self, queue: str, state: State, older_than: Millis, limit: int) -> int:
        with self._lock:
            content, before = self._contents[queue], self._clock.now() - older_than
            old = [
                e.job.id for e in content.jobs.values() if e.job.state == state and _since(e.job) <= before
            ]
            for job_id in old[:limit]:
                content.forget(job_id)
            return len(old[:limit])

    # ── Dead letters ──────────────────────────────────────────────────────────────────────────────────────────────

    async def letters(self, queue: str, search: str, offset: int, limit: int) -> LetterPage:
        found = [
            letter
            for letter in self._contents[queue].letters.values()
            if search in letter.id or search in letter.error or search.encode() in letter.body
        ]
        found.sort(key=lambda letter: -letter.failed_at)
        return LetterPage(found[offset : offset + limit], len(found))

    async def letter(self, queue: str, letter_id: str) -> DeadLetter | None:
        return self._contents[queue].letters.get(letter_id)

    async def replay(self, queue: str, jobs: Mapping[str, NewJob]) -> list[str]:
        with self._lock:
            content = self._contents[queue]
            replayed = [letter_id for letter_id in jobs if content.letters.pop(letter_id, None)]
            for letter_id in replayed:
                for entry in self._known(queue, [jobs[letter_id].id], FINISHED):
                    content.forget(entry.job.id)
                content.add(queue, jobs[letter_id], self._clock.now())
            content.wakeup.set()
            return replayed

    async def purge(self, queue: str, letter_ids: Sequence[str] | None) -> int:
        with self._lock:
            letters = self._contents[queue].letters
            chosen = list(letters) if letter_ids is None else letter_ids
            return sum(letters.pop(letter_id, None) is not None for letter_id in chosen)

    async def events(self) -> AsyncIterator[Event]:
        return
        yield


def _has(job: JobRecord, search: str) -> bool:
    return not search or search in job.id or search == job.name or search.encode() in job.payload


def _since(job: JobRecord) -> Millis:
    return job.finished_at or job.created_at


def _place(entry: Entry, state: State | None) -> tuple[int, ...]:
    """Waiting jobs in order, delayed ones by moment, the rest newest first."""
    if state == "waiting":
        return entry.place
    if state == "delayed":
        return entry.job.run_at, entry.seq
    return -(entry.job.finished_at or 0) if state in FINISHED else 0, -entry.seq
