"""`Queue`: what users call. It does not know which engine is behind it."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from yamchi.clock import Clock, Millis, Span, describe_span
from yamchi.errors import WrongState
from yamchi.queues import results
from yamchi.queues.deadletters import DeadLetters
from yamchi.queues.engines.base import Engine
from yamchi.queues.events import EventType, Listener, Listeners
from yamchi.queues.handlers import QueueDefinition
from yamchi.queues.job import Job
from yamchi.queues.newjobs import New, new_job
from yamchi.queues.once import OnDone, each_once
from yamchi.queues.options import BackoffLike, positive_span
from yamchi.queues.rates import RateLimit
from yamchi.queues.records import FINISHED, PENDING, JobRecord, NewJob, State
from yamchi.queues.transactions import transactional
from yamchi.queues.views import Minute, Page

UNATTENDED_AFTER: Millis = 60_000
"""How long a job must be due before `unattended` says that nobody works on its queue."""

RECENT_MINUTES = 5
PAGE = 1_000
"""How many jobs are read at once."""


class Queue:
    """A queue: add jobs, look at them, act on them. Get one with `app.queue(name)`."""

    def __init__(self, definition: QueueDefinition, engine: Engine, clock: Clock) -> None:
        self.definition = definition
        self.name = definition.name
        self.engine = engine
        self.listeners = Listeners(definition.name)
        self.on_listener: Callable[[], None] = lambda: None
        self.dead_letters = DeadLetters(definition, engine)
        self._clock = clock

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    def move_to(self, engine: Engine, clock: Clock) -> None:
        """Use another engine from now on. For tests, which move an application's queues into memory."""
        self.engine, self._clock = engine, clock
        self.dead_letters = DeadLetters(self.definition, engine)

    # ── Adding ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def add(
        self,
        data: Any = None,
        *,
        name: str | None = None,
        id: str | None = None,
        delay: Span | None = None,
        run_at: datetime | None = None,
        priority: int = 0,
        attempts: int | None = None,
        backoff: BackoffLike | None = None,
        expires_at: datetime | None = None,
        timeout: Span | None = None,
        keep_completed: int | None = None,
        keep_failed: int | None = None,
        connection: Any = None,
    ) -> Job[Any]:
        """Add one job. When this returns, the job is safe. The same id again is the same job (`is_new` tells).

        `connection` is a connection (of sqlite3, psycopg or SQLAlchemy) to the queue's own database. The job is then part of its
        transaction, and is added when that is committed.
        """
        now = self._clock.now()
        new = New(
            data,
            name,
            id,
            delay,
            run_at,
            priority,
            attempts,
            backoff,
            expires_at,
            timeout,
            keep_completed,
            keep_failed,
        )
        job = new_job(self.definition, new, now)
        if connection is not None:
            (added,) = await self._add_within(connection, [job], now)
            return added
        # Not through add_many: its lists would add an eighth to the cost of one job.
        (is_new,) = await self.engine.add(self.name, [job])
        there = None if is_new else await self.engine.get(self.name, job.id)
        return Job(self, there or job.as_added(self.name, now), is_new=is_new)

    async def add_many(self, items: Iterable[Any], *, connection: Any = None) -> list[Job[Any]]:
        """Add many jobs in one call, each given as its data or as `New(data, id=…, delay=…)`. `connection` is as in `add`."""
        now = self._clock.now()
        jobs = self.prepare(items, now)
        if not jobs:
            return []
        if connection is not None:
            return await self._add_within(connection, jobs, now)
        created = await self.engine.add(self.name, jobs)
        known = [job.id for job, is_new in zip(jobs, created, strict=True) if not is_new]
        there = await self.records(known) if known else {}
        return [
            Job(self, there.get(job.id) or job.as_added(self.name, now), is_new=is_new)
            for job, is_new in zip(jobs, created, strict=True)
        ]

    async def _add_within(self, connection: Any, jobs: Sequence[NewJob], now: Millis) -> list[Job[Any]]:
        """Add in the caller's transaction, and read nothing in it."""
        await self.engine.open()
        created = await transactional(self.engine).add_within(connection, self.name, jobs)
        return [
            Job(self, job.as_added(self.name, now), is_new=is_new)
            for job, is_new in zip(jobs, created, strict=True)
        ]

    def prepare(self, items: Iterable[Any], now: Millis | None = None) -> list[NewJob]:
        """Check and encode jobs for `add_prepared`.

        For callers who write to a database first: a job that can't be added is refused before that.
        """
        moment = self._clock.now() if now is None else now
        return [
            new_job(self.definition, item if isinstance(item, New) else New(item), moment) for item in items
        ]

    async def add_prepared(self, jobs: Sequence[NewJob]) -> list[bool]:
        """Add jobs that `prepare` returned; for each, whether it is new."""
        return await self.engine.add(self.name, jobs) if jobs else []

    async def records(self, job_ids: Iterable[str]) -> dict[str, JobRecord]:
        """The present records of these jobs, by id. Asked for concurrently, since engines batch such calls."""
        records = await asyncio.gather(*(self.engine.get(self.name, job_id) for job_id in set(job_ids)))
        return {record.id: record for record in records if record}

    def encode(self, name: str, data: Any) -> bytes:
        """Data as it will lie on the broker, checked against the handler's model and the size limit."""
        return self.definition.encode(name, data)

    async def take_permit(self, limit: RateLimit, key: str) -> Millis:
        """Take the next permit of a key under a limit that all processes share; the moment at which it is valid."""
        (permit,) = await self.engine.reserve(self.name, limit, [key])
        return permit

    async def return_permit(self, limit: RateLimit, key: str) -> None:
        """Give back the permit that was taken last."""
        await self.engine.refund(self.name, limit, key, 1)

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def job(self, job_id: str) -> Job[Any]:
        """One job with its logs."""
        record = await self.engine.get(self.name, job_id)
        if record is None:
            raise results.no_such_job(self.name, job_id)
        return Job(self, self.definition.fill_in(record))

    async def jobs(
        self, state: State | None = None, *, search: str = "", offset: int = 0, limit: int = 50
    ) -> list[Job[Any]]:
        """Jobs of one state, or of all, whose id, name or data contains `search`."""
        page = await self.page(state, search=search, offset=offset, limit=limit)
        return [Job(self, record) for record in page.jobs]

    async def page(
        self, state: State | None = None, *, search: str = "", offset: int = 0, limit: int = 50
    ) -> Page:
        """The same as records, with the total number."""
        page = await self.engine.page(self.name, state, search, offset, limit)
        for record in page.jobs:
            self.definition.fill_in(record)
        return page

    async def counts(self) -> dict[State, int]:
        """How many jobs are in each state."""
        return await self.engine.counts(self.name)

    async def history(self, minutes: int) -> list[Minute]:
        """How many jobs ended in each of the last minutes, oldest first; empty minutes are left out."""
        return await self.engine.history(self.name, minutes)

    @property
    def type(self) -> str:
        """What statistics call the engine in use."""
        return self.engine.type

    async def stats(self) -> dict[str, Any]:
        """{waiting, active, delayed, completed, failed, type}"""
        counts = await self.engine.counts(self.name)
        shown = {state: counts[state] for state in ("waiting", "active", "delayed", "completed", "failed")}
        return {**shown, "type": self.engine.type}

    async def unattended(self, counts: Mapping[State, int] | None = None) -> str | None:
        """A sentence if jobs have been due here for a minute and no worker anywhere runs them; else None."""
        counts = counts or await self.engine.counts(self.name)
        if counts["active"] or not (counts["waiting"] or counts["delayed"]):
            return None
        if any(self.name in worker.queues for worker in await self.engine.workers()):
            return None
        # Workers of other programs, such as Node's, are not listed, but their work is.
        if await self.engine.history(self.name, RECENT_MINUTES):
            return None
        first = [await self.engine.page(self.name, state, "", 0, 1) for state in PENDING]
        due = min((job.run_at for page in first for job in page.jobs), default=None)
        if due is None or due > self._clock.now() - UNATTENDED_AFTER:
            return None
        since = describe_span(self._clock.now() - due)
        return f"Its jobs are due for {since}, and no worker is at work on it: start one with yamchi worker, and --app if the queue is your own."

    def on(self, event: EventType, listener: Listener) -> None:
        """Call `listener` on "completed" (job, result), "failed" (job, error), "progress" (job, progress),
        "stalled" (job) or "error" (error), wherever the engine can tell."""
        self.listeners.on(event, listener)
        self.on_listener()

    # ── Acting ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def cancel(self, job_id: str) -> State:
        """Cancel a pending job, or ask a running one to stop; the state that it is in now."""
        await self._withdraw([job_id], (*PENDING, "active"))
        outcome = await self.engine.cancel(self.name, [job_id])
        if job_id not in outcome:
            raise WrongState(f"Job {job_id} of {self.name} can't be cancelled: it has finished or is gone.")
        return outcome[job_id]

    async def remove(self, job_ids: Sequence[str]) -> list[str]:
        """Remove jobs that are not running; the ids of those removed."""
        await self._withdraw(job_ids, PENDING)
        return await self.clear(job_ids)

    async def clear(self, job_ids: Sequence[str]) -> list[str]:
        """The same without calling `withdraw` of the definition: new jobs with these ids are about to take their place."""
        return await self.engine.remove(self.name, job_ids)

    async def _withdraw(self, job_ids: Sequence[str], states: Sequence[State]) -> None:
        """Tell the jobs' owner, if there is one, that those in these states will not run."""
        if self.definition.withdraw is None:
            return
        known = await self.records(job_ids)
        if going := [job for job in known.values() if job.state in states]:
            await self.definition.withdraw(going)

    async def retry(self, job_ids: Sequence[str]) -> list[str]:
        """Put finished jobs back with all their attempts; the ids of those put back."""
        known = await self.records(job_ids) if self.definition.restore else {}
        return await self._put_back(job_ids, known.values())

    async def _put_back(self, job_ids: Sequence[str], known: Iterable[JobRecord]) -> list[str]:
        """Tell the jobs' owner that cancelled jobs are restored; afterwards, which of them stayed cancelled."""
        restore, withdraw = self.definition.restore, self.definition.withdraw
        cancelled = [job for job in known if job.state == "cancelled"] if restore else []
        if restore and cancelled:
            await restore(cancelled)
        back = await self.engine.retry(self.name, job_ids)
        if withdraw and (left := [job for job in cancelled if job.id not in back]):
            there = await self.records(job.id for job in left)  # another caller may have put them back
            if stay := [job for job in left if there.get(job.id, job).state == "cancelled"]:
                await withdraw(stay)
        return back

    async def promote(self, job_ids: Sequence[str]) -> list[str]:
        """Make delayed jobs due now; the ids of those promoted."""
        return await self.engine.promote(self.name, job_ids)

    async def pause(self) -> None:
        """Start no job of this queue in any process. Running jobs finish."""
        await self.engine.pause(self.name)

    async def resume(self) -> None:
        await self.engine.resume(self.name)

    async def is_paused(self) -> bool:
        return await self.engine.paused(self.name)

    async def clean(self, state: State = "completed", *, older_than: Span = 0, limit: int = 10_000) -> int:
        """Remove jobs that have been in a state for at least `older_than`; how many were removed."""
        if state == "active":
            raise WrongState("Running jobs can't be cleaned away; cancel them instead.")
        return await self._clean(state, positive_span("older_than", older_than), limit)

    async def drain(self, *, delayed: bool = False) -> int:
        """Remove every waiting job, and with `delayed` the delayed ones too; how many were removed."""
        states: list[State] = ["waiting", "delayed"] if delayed else ["waiting"]
        gone = 0
        for state in states:
            while cleaned := await self._clean(state, 0, 10_000):
                gone += cleaned
        return gone

    async def _clean(self, state: State, older_than: Millis, limit: int) -> int:
        """In one call of the engine, or page by page if the jobs' owner has to be told."""
        if self.definition.withdraw is None or state not in PENDING:
            return await self.engine.clean(self.name, state, older_than, limit)
        before, gone, kept = self._clock.now() - older_than, 0, 0
        while gone < limit:
            page = (await self.engine.page(self.name, state, "", kept, PAGE)).jobs
            old = [job.id for job in page if job.created_at <= before]
            removed = len(await self.remove(old[: limit - gone]))
            gone, kept = gone + removed, kept + len(page) - removed
            if not page:
                break
        return gone

    async def retry_all(self, state: State = "failed", *, on_done: OnDone | None = None) -> int:
        """Put back every job of a finished state, each once even if it fails again meanwhile; how many were put back."""

        async def page(offset: int) -> list[JobRecord]:
            return (await self.engine.page(self.name, state, "", offset, PAGE)).jobs

        async def retry(jobs: list[JobRecord]) -> list[str]:
            return await self._put_back([job.id for job in jobs], jobs)

        return await each_once(page, retry, on_done) if state in FINISHED else 0
