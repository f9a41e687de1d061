"""The engine contract: where jobs wait, and the one seam between the queue core and a broker.

Every call takes a batch and either does all of it or raises. The rules an engine must keep:

- `add` answers only when the jobs are as safe as the broker can make them. The same id again is the same job.
- `exchange` is the worker's whole conversation: settle what is done and claim what fits, in one round trip.
  A settlement counts only if the job is active and the claim's token is still the one it is held by ("fencing").
- A delivery is counted when the job is claimed, so a job that kills its worker can't loop for ever.
- `renew` and `cancelled` and `heartbeat` are called from the lease keeper's thread, on an event loop of its own,
  so that a handler which blocks the worker's loop does not lose its lease.
- A dead letter is written together with the verdict that causes it.

`yamchi.testing.conformance` is this page as tests: an engine that passes it is an engine.
"""

import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from yamchi.clock import Millis, Span
from yamchi.queues.rates import RateLimit
from yamchi.queues.records import Claim, DeadLetter, Failed, JobRecord, NewJob, RetryAt, State, Verdict
from yamchi.queues.views import Event, LetterPage, Minute, Page, WorkerInfo

__all__ = [
    "KEPT_PERMITS",
    "WORKER_TTL",
    "Capabilities",
    "Engine",
    "Event",
    "Exchange",
    "LetterPage",
    "Minute",
    "Page",
    "RateLimit",
    "WorkerInfo",
    "broker_of",
    "by_engine",
    "describe_stalled",
    "stalled_verdict",
]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the broker can do. The conformance suite skips tests only by these, and says so."""

    durable: bool = True
    """Jobs outlive the process."""
    shared: bool = True
    """Several processes can work on the same queues."""
    events: bool = True
    """Events of other processes reach this one."""
    priorities: bool = True
    """Higher priorities are claimed first."""
    in_order: bool = True
    """Jobs of one priority are claimed in the order they were added."""
    search: bool = True
    """Jobs can be listed by state and searched."""
    overlaps: bool = True
    """Two exchanges at once get more done than one: while one is answered, the other is on its way."""


@dataclass(slots=True)
class Exchange:
    """The answer of an exchange: ids of settled jobs (a stale token settles nothing), and new claims.

    `unsettled` are verdicts that could not be settled or refused yet; the next exchange must bring them again.
    """

    settled: list[str] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    unsettled: list[Verdict] = field(default_factory=list)


STALLED_JITTER: Millis = 5_000
"""Jobs whose workers died more than once come back spread over this time."""


def stalled_verdict(claim: Claim, moment: Millis) -> Failed | RetryAt:
    """The verdict on a job whose worker died: due again, or failed if its attempts are used up.

    One of the jobs that ran together may have killed the worker. So they are due at once the first time and spread later: that
    job must not use up the attempts of all the others.
    """
    job = claim.job
    error = stalled_error(job)
    if job.attempts_made < job.options.attempts:
        pause = random.randrange(STALLED_JITTER) if job.attempts_made > 1 else 0
        return RetryAt(claim, max(moment, job.run_at) + pause, error)
    return Failed(claim, error, DeadLetter.of_job(job, error, moment))


def stalled_error(job: JobRecord) -> str:
    return (
        f"The worker stopped or lost its lease during attempt {job.attempts_made} of {job.options.attempts}"
    )


def describe_stalled(job: JobRecord, has_failed: bool) -> str:
    """What became of a stalled job, for the log."""
    outcome = "failed, its attempts are used up" if has_failed else "back in the queue"
    return f"stalled {job.name} {job.id}: {outcome}"


class Engine(Protocol):
    """Where jobs wait."""

    @property
    def can(self) -> Capabilities:
        """What it can do, and what it can't."""

    @property
    def type(self) -> str:
        """Its name in statistics and logs. For failover, that of the engine in use."""

    async def open(self) -> None:
        """Connect, and create what must exist. Opening an open engine does nothing."""

    async def close(self) -> None:
        """Finish what was begun and close every connection. Closing a closed engine does nothing."""

    async def ping(self) -> None:
        """Raise `EngineUnavailable`, with a sentence that says what to fix, unless the engine answers."""

    # ── Producing ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def add(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        """Keep these jobs. For each, True if it is new, False if a job with its id exists."""

    async def fire(self, schedule: str, moment: Millis, queue: str, job: NewJob) -> bool:
        """Add a scheduled job and return True, unless the schedule has fired at this moment or later."""

    async def begin_schedule(self, schedule: str, moment: Millis) -> None:
        """Note a new schedule, so that moments before this one do not count as missed."""

    async def last_fired(self, schedule: str) -> Millis | None:
        """When the schedule last fired, or began; None if it is new."""

    # ── Working ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def exchange(
        self, queue: str, verdicts: Sequence[Verdict], want: int, lease: Millis, worker: str
    ) -> Exchange:
        """Settle the verdicts and claim up to `want` due jobs for `lease`, in one round trip or transaction."""

    async def renew(self, queue: str, claims: Sequence[Claim], lease: Millis) -> list[str]:
        """Extend the leases; the ids of jobs that are still held. From the lease keeper's thread."""

    async def recover(self, queue: str) -> list[tuple[JobRecord, bool]]:
        """Take back jobs whose lease has run out, by `stalled_verdict`; each with whether it has now failed."""

    async def wake(self, queue: str, timeout: Millis) -> None:
        """Return when a job may be due, at the latest after `timeout`. Returning early is allowed."""

    async def reserve(self, queue: str, limit: RateLimit, keys: Sequence[str]) -> list[Millis]:
        """Take the next permit under the limit for each key, in order; the moment of each permit."""

    async def refund(self, queue: str, limit: RateLimit, key: str, permits: int) -> None:
        """Give back permits that were not used."""

    async def cancelled(self, queue: str, claims: Sequence[Claim]) -> list[str]:
        """Those of these running jobs that were asked to stop. From the lease keeper's thread."""

    async def heartbeat(self, worker: WorkerInfo | str) -> None:
        """Register this worker for a while; a bare id takes it off the list. From the lease keeper's thread."""

    # ── Managing ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, queue: str, job_id: str) -> JobRecord | None:
        """One job with its logs."""

    async def page(self, queue: str, state: State | None, search: str, offset: int, limit: int) -> Page:
        """Jobs of a state (or of all), whose id, name or payload contains `search`."""

    async def counts(self, queue: str) -> dict[State, int]:
        """How many jobs are in each state, in constant time."""

    async def history(self, queue: str, minutes: int) -> list[Minute]:
        """How many jobs ended in each of the last minutes, oldest first; empty minutes are left out."""

    async def queues(self) -> list[str]:
        """Names of the queues that hold or held a job."""

    async def workers(self) -> list[WorkerInfo]:
        """Workers that sent a heartbeat within `WORKER_TTL`."""

    async def remove(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        """Remove jobs that are not running; the ids of those removed."""

    async def cancel(self, queue: str, job_ids: Sequence[str]) -> dict[str, State]:
        """Cancel pending jobs at once (they become `cancelled`), ask running ones to stop (they stay `active`)."""

    async def promote(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        """Make delayed jobs due now; the ids of those promoted."""

    async def retry(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        """Put finished jobs back with all their attempts, and drop their dead letters; the ids of those put back."""

    async def update(self, queue: str, job_id: str, payload: bytes) -> bool:
        """Replace the data of a job that is not running."""

    async def progress(self, claim: Claim, value: bytes) -> None:
        """Store how far a running job has come."""

    async def log(self, queue: str, job_id: str, lines: Sequence[str]) -> None:
        """Append lines to a job's log."""

    async def pause(self, queue: str) -> None:
        """Let no worker claim from this queue. Running jobs finish."""

    async def resume(self, queue: str) -> None:
        """The opposite of pause."""

    async def paused(self, queue: str) -> bool:
        """Whether the queue is paused."""

    async def clean(self, queue: str, state: State, older_than: Millis, limit: int) -> int:
        """Remove up to `limit` jobs that have been in this state, not active, for so long; how many were removed."""

    # ── Dead letters ──────────────────────────────────────────────────────────────────────────────────────────────

    async def letters(self, queue: str, search: str, offset: int, limit: int) -> LetterPage:
        """Dead letters, newest first."""

    async def letter(self, queue: str, letter_id: str) -> DeadLetter | None:
        """One dead letter."""

    async def replay(self, queue: str, jobs: Mapping[str, NewJob]) -> list[str]:
        """For each letter id, put this job in the queue (in place of a finished one of its id) and drop the letter."""

    async def purge(self, queue: str, letter_ids: Sequence[str] | None) -> int:
        """Drop these dead letters, or all of them; how many were dropped."""

    # ── Events ────────────────────────────────────────────────────────────────────────────────────────────────────

    def events(self) -> AsyncIterator[Event]:
        """Events of other processes, from now on; ends at once where the engine has no such stream."""


WORKER_TTL: Span = "30s"
"""A worker not seen for this long is not listed."""

KEPT_PERMITS: Millis = 31 * 86_400_000
"""A key without a new permit for this long is forgotten. A rate limit's period may be a month."""


def broker_of(engine: Engine) -> Engine:
    """The engine itself; with a spool, the broker, even while the spool is in use."""
    broker: Engine = getattr(engine, "primary", engine)
    return broker


class HasEngine(Protocol):
    """Something with an engine, such as a queue."""

    @property
    def engine(self) -> Engine: ...


T = TypeVar("T", bound=HasEngine)


def by_engine(things: Iterable[T]) -> list[tuple[Engine, list[T]]]:
    """Every engine of these things, once, with the things on it."""
    found: dict[int, tuple[Engine, list[T]]] = {}
    for one in things:
        found.setdefault(id(one.engine), (one.engine, []))[1].append(one)
    return list(found.values())
