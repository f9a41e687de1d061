"""The jobs of one queue that run in this process: each is started, may be interrupted, and ends with a verdict."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import structlog

from yamchi.clock import Clock, Millis, describe_span
from yamchi.errors import Retryable
from yamchi.queues.bulkheads import Bulkheads
from yamchi.queues.executor import Executor
from yamchi.queues.leases import HeldClaims, Interruption
from yamchi.queues.queue import Queue
from yamchi.queues.records import Cancelled, Claim, Expired, Released, Verdict
from yamchi.queues.verdicts import verdict_on_error, verdict_on_result

log = structlog.get_logger("yamchi.worker")

Finished = tuple[Verdict, float, Any]
"""A verdict, how many seconds the run took, and what the handler returned."""


@dataclass(slots=True)
class Run:
    """A job being run."""

    claim: Claim
    began: float
    task: "asyncio.Task[None] | None" = None
    interruption: "Interruption | str | None" = None

    def is_older(self, moment: float) -> bool:
        """Whether it began before this moment, not counting waits for a free child process; False during such a wait."""
        return not self.claim.is_waiting and self.began + self.claim.waited < moment


class RunningJobs:
    """Runs what a `QueueRunner` claimed. `finish` is called with each verdict, `on_change` when a slot may be free."""

    def __init__(
        self,
        queue: Queue,
        slots: int,
        clock: Clock,
        finish: Callable[[Finished], None],
        on_change: Callable[[], None],
    ) -> None:
        self.is_stopping = False
        """No job may begin any more. Written by the runner at a stop; read by both."""
        self.held = HeldClaims(queue.name, queue.engine, self._interrupt, queue.definition.timeout)
        """The claims whose leases are to be renewed. Written here; read by the lease keeper's thread."""
        self._queue = queue
        self._clock = clock
        self._finish = finish
        self._on_change = on_change
        self._runs: dict[str, Run] = {}
        """What runs now, by job id. Written by `start` and at the end of each run."""
        self._bulkheads = Bulkheads(slots, clock, on_change)
        self._executor = Executor(queue, self._bulkheads, on_change)

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def tasks(self) -> list["asyncio.Task[None]"]:
        return [run.task for run in self._runs.values() if run.task]

    @property
    def slots_taken(self) -> int:
        """Slots in use: by running jobs that have not lent theirs, and by threads whose job has ended already."""
        return len(self._runs) - self._bulkheads.lent + self._executor.stuck_threads

    def start(self, claim: Claim, now: Millis, loop: asyncio.AbstractEventLoop) -> None:
        """Start a job, unless it has expired or the runner stops."""
        job = claim.job
        if not job.name:
            self._queue.definition.fill_in(job)
        if job.expires_at is not None and job.expires_at <= now:
            self._finish((Expired(claim), 0.0, None))
            return
        if self.is_stopping:  # claimed by an exchange that was under way when the stop came
            self._finish((Released(claim, has_permit=claim.has_permit), 0.0, None))
            return
        if stale := self._runs.get(job.id):
            self._interrupt_run(stale, "lost")  # the lease ran out unnoticed, and the job has come back to us
        run = Run(claim, perf_counter())
        self._runs[job.id] = run
        self.held.claims[job.id] = claim
        run.task = loop.create_task(self._run(run))

    async def stop(self, timeout_seconds: float) -> None:
        """Let running jobs finish, and interrupt those that did not in time."""
        if tasks := self.tasks:
            await asyncio.wait(tasks, timeout=timeout_seconds)
        for run in self._runs.values():
            self._interrupt_run(run, "stopped")

    async def enforce_timeout(self) -> None:
        """End runs that take longer than the queue allows, not counting waits for a free child process.

        A job's own timeout is kept by the executor.
        """
        limit = self._queue.definition.timeout
        while limit is not None:
            await asyncio.sleep(min(1, limit / 1000))
            since = perf_counter() - limit / 1000
            for run in list(self._runs.values()):
                if run.claim.job.options.timeout is None and run.is_older(since):
                    self._interrupt_run(run, "overdue")

    async def close(self) -> None:
        """End what was started for handlers: their child processes."""
        await self._executor.close()

    async def _run(self, run: Run) -> None:
        claim = run.claim
        result: Any = None
        verdict: Verdict | None
        try:
            result = await self._executor.call(claim)
            verdict = verdict_on_result(claim, result, self._clock.now())
        except asyncio.CancelledError:
            verdict = self._verdict_on_interruption(run)
        except GeneratorExit:
            raise  # the event loop is gone, and with it whoever could settle anything
        except BaseException as error:  # a handler may raise anything, and ends only its own job
            verdict = verdict_on_error(claim, error, self._clock.now())
        self._forget(run)
        if verdict is not None:
            self._finish((verdict, perf_counter() - run.began, result))
        self._on_change()

    def _forget(self, run: Run) -> None:
        job_id = run.claim.job.id
        if self._runs.get(job_id) is run:
            del self._runs[job_id]
        if self.held.claims.get(job_id) is run.claim:
            del self.held.claims[job_id]

    # ── Interrupting ──────────────────────────────────────────────────────────────────────────────────────────────

    def _interrupt(self, job_ids: Sequence[str], why: Interruption) -> None:
        for job_id in job_ids:
            if run := self._runs.get(job_id):
                self._interrupt_run(run, why)

    def _interrupt_run(self, run: Run, why: str) -> None:
        if run.interruption is None and run.task:
            run.interruption = why
            run.task.cancel(why)

    def _verdict_on_interruption(self, run: Run) -> Verdict | None:
        job = run.claim.job
        match run.interruption:
            case "cancelled":
                return Cancelled(run.claim)
            case "lost":
                log.warning(
                    f"[{self._queue.name}:{self._queue.engine.type}] lost the lease of {job.name} {job.id}; "
                    "another worker has it",
                    fields=job.log_fields(outcome="lost"),
                )
                return None
            case "stopped":
                return Released(run.claim)
            case "overdue":
                limit = describe_span(self._queue.definition.timeout or 0)
                error = Retryable(f"{job.name} took longer than the {limit} that {self._queue.name} allows")
                return verdict_on_error(run.claim, error, self._clock.now())
        error = Retryable(f"{job.name} cancelled itself")
        return verdict_on_error(run.claim, error, self._clock.now())
