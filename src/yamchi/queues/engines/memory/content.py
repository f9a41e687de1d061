"""A queue in memory: dictionaries and heaps. Whoever calls holds the engine's lock.

A heap may hold stale entries; an entry counts only while the job still is in the state and place it was pushed for.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from yamchi.clock import Millis
from yamchi.queues.engines.wakeups import Wakeup
from yamchi.queues.records import (
    FINISHED,
    PENDING,
    STATES,
    Cancelled,
    Claim,
    Completed,
    DeadLetter,
    Expired,
    Failed,
    JobRecord,
    NewJob,
    Released,
    RetryAt,
    State,
    Verdict,
)

Place = tuple[int, Millis, int]


@dataclass(slots=True)
class Entry:
    """A job and what only the engine knows of it."""

    job: JobRecord
    seq: int
    token: str | None = None
    lease_until: Millis = 0
    cancelling: bool = False
    has_permit: bool = False

    @property
    def place(self) -> Place:
        return -self.job.priority, self.job.run_at, self.seq


@dataclass(slots=True)
class QueueContent:
    """One queue: what is in it, and how its jobs move from state to state."""

    jobs: dict[str, Entry] = field(default_factory=dict)
    waiting: list[tuple[Place, str]] = field(default_factory=list)
    delayed: list[tuple[Millis, int, str]] = field(default_factory=list)
    active: dict[str, Entry] = field(default_factory=dict)
    finished: dict[State, dict[str, None]] = field(default_factory=lambda: {state: {} for state in FINISHED})
    counts: dict[State, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    letters: dict[str, DeadLetter] = field(default_factory=dict)
    minutes: dict[Millis, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    permits: dict[str, float] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)
    paused: bool = False
    noted_pause: bool | None = None
    mover: str | None = None
    doubtful: set[str] = field(default_factory=set)
    wakeup: Wakeup = field(default_factory=Wakeup)

    def add(self, queue: str, new: NewJob, now: Millis) -> bool:
        if new.id in self.jobs:
            return False
        job = new.as_added(queue, now)
        entry = self.jobs[new.id] = Entry(job, next(self.numbers))
        self.counts[job.state] += 1
        self.put(entry, job.run_at, now)
        return True

    @property
    def is_held_up(self) -> bool:
        """Whether nothing may be started: the queue is paused, or on its way elsewhere."""
        return self.paused or self.mover is not None

    def take(self, want: int, lease: Millis, worker: str, now: Millis) -> Iterator[Claim]:
        self.promote_due(now)
        while want > 0 and self.waiting:
            place, job_id = heappop(self.waiting)
            entry = self.jobs.get(job_id)
            if entry and entry.job.state == "waiting" and entry.place == place:
                want -= 1
                yield self.claim(entry, lease, worker, now)

    def claim(self, entry: Entry, lease: Millis, worker: str, now: Millis) -> Claim:
        entry.token, entry.lease_until = f"{worker}-{next(self.numbers)}", now + lease
        made = entry.job.attempts_made + 1
        self.move(entry, "active", attempts_made=made, started_at=now, worker=worker)
        self.active[entry.job.id] = entry
        return Claim(entry.job, entry.token, has_permit=entry.has_permit)

    def promote_due(self, now: Millis) -> None:
        while self.delayed and self.delayed[0][0] <= now:
            run_at, _, job_id = heappop(self.delayed)
            entry = self.jobs.get(job_id)
            if entry and entry.job.state == "delayed" and entry.job.run_at == run_at:
                self.put(entry, run_at, now)

    def put(self, entry: Entry, run_at: Millis, now: Millis) -> None:
        """Let a job wait in its place, or for its moment."""
        if run_at > now:
            self.move(entry, "delayed", run_at=run_at)
            heappush(self.delayed, (run_at, entry.seq, entry.job.id))
        else:
            self.move(entry, "waiting", run_at=run_at)
            heappush(self.waiting, (entry.place, entry.job.id))

    def move(self, entry: Entry, to: State, **changes: object) -> None:
        # A copy, so that a record handed out earlier does not change under its reader.
        self.leave(entry)
        self.counts[to] += 1
        entry.job = entry.job.changed(state=to, **changes)

    def leave(self, entry: Entry) -> None:
        self.counts[entry.job.state] -= 1
        if entry.job.state in FINISHED:
            self.finished[entry.job.state].pop(entry.job.id, None)

    def settle(self, verdict: Verdict, now: Millis) -> bool:
        held = verdict.claim
        entry = self.active.get(held.job.id)
        if entry is None or entry.token != held.token:
            return False
        del self.active[held.job.id]
        entry.token = None
        match verdict:
            case Completed(result=result):
                self.end(entry, "completed", now, result=result, failed_reason=None)
            case Failed(error=error, letter=letter, stacktrace=trace):
                self.letters[letter.id] = letter
                self.end(entry, "failed", now, failed_reason=error, stacktrace=trace)
            case Expired():
                self.end(entry, "expired", now)
            case Cancelled():
                self.end(entry, "cancelled", now)
            case _ if entry.cancelling:
                self.end(entry, "cancelled", now)
            case RetryAt(moment=moment, error=error, stacktrace=trace):
                entry.job = entry.job.changed(failed_reason=error, stacktrace=trace)
                entry.has_permit = False
                self.put(entry, moment, now)
            case Released(until=until, reason=reason, has_permit=has_permit):
                made, why = entry.job.attempts_made - 1, reason or entry.job.failed_reason
                entry.job = entry.job.changed(attempts_made=made, failed_reason=why)
                entry.has_permit = has_permit
                self.put(entry, until or entry.job.run_at, now)
        self.wakeup.set()
        return True

    def end(self, entry: Entry, state: State, now: Millis, **changes: object) -> None:
        self.move(entry, state, finished_at=now, **changes)
        if state in ("completed", "failed"):
            self.minutes[now - now % 60_000][state == "failed"] += 1
        kept, options = self.finished[state], entry.job.options
        kept[entry.job.id] = None
        if keep := options.keep(state):
            while len(kept) > keep:
                self.forget(next(iter(kept)))
        else:  # said of this job, not of those before it
            self.forget(entry.job.id)

    def forget(self, job_id: str) -> None:
        self.leave(self.jobs.pop(job_id))

    def has_begun(self, job_id: str, mover: str) -> bool:
        """Whether a job is here no longer, or neither waits nor is in this mover's hands."""
        entry = self.jobs.get(job_id)
        if entry is None:
            return True
        is_in_hands = entry.job.state == "active" and entry.job.worker == mover
        return entry.job.state not in PENDING and not is_in_hands

    def next_due(self) -> Millis | None:
        """When the next delayed job is due; None while nobody may start it."""
        while self.delayed and not self.is_held_up:
            run_at, _, job_id = self.delayed[0]
            entry = self.jobs.get(job_id)
            if entry and entry.job.state == "delayed" and entry.job.run_at == run_at:
                return run_at
            heappop(self.delayed)
        return None
