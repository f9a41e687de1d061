"""One queue's work in one process: claim what fits in free slots, run it, settle what is done.

Two couriers carry verdicts to the engine and bring jobs back, so that one batch runs while the next is on its way.
A courier takes everything that is done at the time and asks for exactly the slots that are free: a batch never waits
for its slowest job, and a job is never held without a slot to run in.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import structlog

from yamchi.clock import Clock, Millis, describe_span
from yamchi.errors import EngineError, Retryable
from yamchi.queues.calling import Caller
from yamchi.queues.engines.base import Exchange, describe_stalled
from yamchi.queues.job import Cancelled, Claim, Expired, JobRecord, Released, Verdict
from yamchi.queues.judge import judge_error, judge_result
from yamchi.queues.leases import HeldQueue, Interruption
from yamchi.queues.pacing import Pacer
from yamchi.queues.queue import Queue
from yamchi.queues.shares import Shares
from yamchi.queues.ticket import Job

log = structlog.get_logger("yamchi.worker")

IDLE_WAIT: Millis = 5_000
"""An idle lane asks again this often even if nothing woke it."""

FAREWELL = 5.0
"""How long a stop waits for the last verdicts to be settled, in seconds."""

RECOVERY_WAIT = 5.0
"""The longest pause between two tries when the engine is in trouble, in seconds."""


@dataclass(slots=True)
class Outcome:
    """A settled job, for whoever counts, logs or listens."""

    job: JobRecord
    verdict: Verdict
    seconds: float
    returned: Any = None


Done = tuple[Verdict, float, Any]
"""A verdict with how long the run took and what the handler returned."""

Observer = Callable[[Queue, Sequence[Outcome]], None]


@dataclass(slots=True)
class Run:
    """A job being run."""

    claim: Claim
    began: float
    task: "asyncio.Task[None] | None" = None
    interruption: "Interruption | str | None" = None


class Lane:
    """The work of one queue."""

    def __init__(
        self,
        queue: Queue,
        *,
        worker: str,
        lease: Millis,
        clock: Clock,
        observe: Observer,
        slots: int | None = None,
    ) -> None:
        self.queue = queue
        self.slots = slots or queue.definition.concurrency
        self.held = HeldQueue(queue.name, queue.engine, self._interrupt, queue.definition.timeout)
        self._engine = queue.engine
        self._couriers = 2 if queue.engine.can.overlaps else 1
        self._worker = worker
        self._lease = lease
        self._clock = clock
        self._observe = observe
        self._runs: dict[str, Run] = {}
        self._done: list[Done] = []
        self._owed: list[Done] = []
        self._asked = 0
        self._trips = 0
        self._thirsty = True
        self._stopping = False
        self._trouble = 0
        self._todo = asyncio.Event()
        self._dry = asyncio.Event()
        self._progress = asyncio.Event()
        self._gone = asyncio.Event()
        self._pacer = Pacer(queue, clock)
        self._shares = Shares(self.slots, clock, self._todo.set)
        self._caller = Caller(queue, self.slots, self._shares, self._todo.set)

    # ── Life ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def arrive(self) -> None:
        """Open the engine on the worker's event loop. One that is away is tried again at every trip."""
        try:
            await self._engine.open()
        except EngineError as error:
            log.error(f"[{self.queue.name}:{self._engine.type}] Error reading from queue: {error}")

    async def run(self) -> None:
        """Work until stopped, and then until everything begun is settled or given back.

        Should a part of this fail, it raises, and may be run again: jobs that run go on running meanwhile.
        """
        self._todo.set()
        couriers = [
            asyncio.create_task(self._courier(), name=f"courier-{self.queue.name}")
            for _ in range(self._couriers)
        ]
        helpers = [
            asyncio.create_task(work()) for work in (self._watch, self._sweep, self._hurry, self._gone.wait)
        ]
        try:
            await asyncio.wait([*couriers, *helpers], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*couriers, *helpers):
                task.cancel()
            outcomes = await asyncio.gather(*couriers, *helpers, return_exceptions=True)
            await self.close()
        if not self._gone.is_set():
            raise self._explain(outcomes)

    def _explain(self, outcomes: Sequence[object]) -> RuntimeError:
        """Why this stopped working though nobody asked it to."""
        raised = (one for one in outcomes if isinstance(one, BaseException))
        cause = next((one for one in raised if not isinstance(one, asyncio.CancelledError)), None)
        error = RuntimeError(f"The work of queue {self.queue.name} was interrupted: {cause!r}")
        error.__cause__ = cause
        return error

    async def stop(self, patience: float) -> None:
        """Claim no more, let running jobs finish, and give back what is not done in time."""
        self._stopping = True
        self._todo.set()
        if tasks := self.running:
            await asyncio.wait(tasks, timeout=patience)
        for run in self._runs.values():
            self._interrupt_run(run, "stopped")
        await self._settle_the_rest()
        self._gone.set()

    async def _settle_the_rest(self) -> None:
        """Bring in the last verdicts; an engine that is away does not hold up the stop for long."""
        self._bring_owed()
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL):
                while not self.is_idle:
                    self._progress.clear()
                    await self._progress.wait()
        if left := len(self._done) + len(self._owed):
            log.error(
                f"[{self.queue.name}:{self._engine.type}] stopping with {left} outcomes that could not be settled; "
                "their jobs run again when their leases end"
            )

    async def close(self) -> None:
        """End what was started for handlers: their child processes."""
        await self._caller.close()

    def ask_again(self) -> None:
        """Look for due jobs at the next trip, whatever the last one found."""
        self._thirsty = True

    @property
    def is_idle(self) -> bool:
        return not (self._runs or self._done or self._owed or self._trips)

    @property
    def running(self) -> list["asyncio.Task[None]"]:
        return [run.task for run in self._runs.values() if run.task]

    # ── Carrying ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _courier(self) -> None:
        while True:
            await self._todo.wait()
            self._todo.clear()
            if self._done or self._free():
                await self.carry()

    async def carry(self) -> bool:
        """One trip to the engine and back; whether it brought or took anything."""
        self._trips += 1
        try:
            want = await self._allowance()
            return await self._trade(want) if want or self._done else False
        except Exception as error:
            await self._endure(error)
            return False
        finally:
            self._trips -= 1
            self._progress.set()

    async def _allowance(self) -> int:
        """How many jobs to ask for; comes back by itself when a rate limit allows the next one."""
        allowed, wait = await self._pacer.allow(min(self._free(), self._load))
        if wait:
            asyncio.get_running_loop().call_later(wait / 1000, self._todo.set)
        return min(allowed, self._free())

    async def _trade(self, want: int) -> bool:
        done, self._done = self._done, []
        self._asked += want
        try:
            got = await self._engine.exchange(
                self.queue.name, [verdict for verdict, _, _ in done], want, self._lease, self._worker
            )
        except BaseException:
            self._done[:0] = done
            raise
        finally:
            self._asked -= want
        self._trouble = 0
        if got.unsettled:
            done = self._keep_owed(done, got.unsettled)
        await self._receive(got, want)
        if done:
            self._report(done, got.settled)
        return bool(done or got.claims)

    def _keep_owed(self, done: list[Done], unsettled: Sequence[Verdict]) -> list[Done]:
        """Keep what can't be settled yet for a later trip; what is left of the present one."""
        again = {id(verdict) for verdict in unsettled}
        if not self._owed:
            asyncio.get_running_loop().call_later(1, self._bring_owed)
        self._owed += [entry for entry in done if id(entry[0]) in again]
        return [entry for entry in done if id(entry[0]) not in again]

    def _bring_owed(self) -> None:
        self._done[:0], self._owed = self._owed, []
        self._todo.set()

    @property
    def _load(self) -> int:
        """An equal share of the slots a trip, where there are many: one half runs while the other is on its way."""
        return self.slots if self.slots < 16 else (self.slots + 1) // self._couriers

    def _free(self) -> int:
        if self._stopping or not self._thirsty:
            return 0
        taken = len(self._runs) - self._shares.lent + self._asked + self._caller.strays
        return max(self.slots - taken, 0)

    async def _receive(self, got: Exchange, want: int) -> None:
        short = want - len(got.claims)
        if short > 0:
            self._thirsty = False
            self._dry.set()
            await self._pacer.refund(short)
        claims, later = await self._pacer.sort(got.claims)
        self._done += [(released, 0.0, None) for released in later]
        now, loop = self._clock.now(), asyncio.get_running_loop()
        for claim in claims:
            self._start(claim, now, loop)
        self._todo.set()

    async def _endure(self, error: Exception) -> None:
        """The engine is in trouble: say so once, keep the verdicts, and come back after a pause."""
        self._trouble += 1
        level = log.warning if self._trouble > 1 else log.error
        level(
            f"[{self.queue.name}:{self._engine.type}] Error reading from queue: {error}",
            exc_info=not isinstance(error, EngineError),
        )
        self.queue.listeners.emit("error", error)
        pause = min(0.1 * 2 ** min(self._trouble, 10), RECOVERY_WAIT) * random.uniform(0.5, 1.0)
        await asyncio.sleep(pause)
        self._todo.set()

    async def _watch(self) -> None:
        """While there is nothing to claim, wait to be woken."""
        while True:
            await self._dry.wait()
            try:
                await self._engine.wake(self.queue.name, IDLE_WAIT)
            except Exception as error:
                await self._endure(error)
            self._dry.clear()
            self._thirsty = True
            self._todo.set()

    async def _sweep(self) -> None:
        """Pick up what dead workers left. A job's lease is nine tenths of the promised one; this is the tenth."""
        while True:
            await asyncio.sleep(self._lease / 9_000 * random.uniform(0.8, 1.0))
            if self._trouble:
                continue  # our own verdicts first: jobs that are done must not look stalled after an outage
            try:
                for job, has_failed in await self._engine.recover(self.queue.name):
                    self._note_stalled(job, has_failed)
            except Exception as error:
                is_known = isinstance(error, EngineError)
                log.warning(f"[{self.queue.name}:{self._engine.type}] {error}", exc_info=not is_known)

    async def _hurry(self) -> None:
        """End runs that take longer than the queue allows. A job's own timeout, where it has one, is kept by its caller."""
        limit = self.queue.definition.timeout
        while limit is not None:
            await asyncio.sleep(min(1, limit / 1000))
            since = perf_counter() - limit / 1000
            for run in list(self._runs.values()):
                if run.began < since and run.claim.job.options.timeout is None:
                    self._interrupt_run(run, "overdue")
        await self._gone.wait()

    def _note_stalled(self, job: JobRecord, has_failed: bool) -> None:
        log.warning(
            f"[{self.queue.name}:{self._engine.type}] {describe_stalled(job, has_failed)}",
            fields=job.log_fields(outcome="stalled"),
        )
        self.queue.listeners.emit("stalled", Job(self.queue, job))
        if has_failed:
            self.queue.listeners.emit("failed", Job(self.queue, job), job.failed_reason or "stalled")

    # ── Running ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _start(self, claim: Claim, now: Millis, loop: asyncio.AbstractEventLoop) -> None:
        job = claim.job
        if not job.name:
            self._adopt(job)
        if job.expires_at is not None and job.expires_at <= now:
            self._done.append((Expired(claim), 0.0, None))
            return
        if self._stopping:  # brought by a trip that was on its way when the stop came: too late to begin
            self._done.append((Released(claim, slotted=claim.slotted), 0.0, None))
            return
        if stale := self._runs.get(job.id):
            self._interrupt_run(stale, "lost")  # the lease ran out unnoticed, and the job has come back to us
        run = Run(claim, perf_counter())
        self._runs[job.id] = run
        self.held.claims[job.id] = claim
        run.task = loop.create_task(self._run(run))

    def _adopt(self, job: JobRecord) -> None:
        """Another program's message says nothing of a job: it is the queue's default one, run as the queue says."""
        job.name, job.options = self.queue.definition.default_name, self.queue.definition.options

    async def _run(self, run: Run) -> None:
        claim = run.claim
        result: Any = None
        verdict: Verdict | None
        try:
            result = await self._caller.call(claim)
            verdict = judge_result(claim, result, self._clock.now())
        except asyncio.CancelledError:
            verdict = self._judge_interruption(run)
        except GeneratorExit:
            raise  # the event loop is gone, and with it whoever could settle anything
        except BaseException as error:  # a handler may raise anything, and ends only its own job
            verdict = judge_error(claim, error, self._clock.now())
        self._forget(run)
        if verdict is not None:
            self._done.append((verdict, perf_counter() - run.began, result))
        self._todo.set()

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

    def _judge_interruption(self, run: Run) -> Verdict | None:
        job = run.claim.job
        match run.interruption:
            case "cancelled":
                return Cancelled(run.claim)
            case "lost":
                log.warning(
                    f"[{self.queue.name}:{self._engine.type}] lost the lease of {job.name} {job.id}; another worker has it",
                    fields=job.log_fields(outcome="lost"),
                )
                return None
            case "stopped":
                return Released(run.claim)
            case "overdue":
                limit = describe_span(self.queue.definition.timeout or 0)
                error = Retryable(f"{job.name} took longer than the {limit} that {self.queue.name} allows")
                return judge_error(run.claim, error, self._clock.now())
        return judge_error(run.claim, Retryable(f"{job.name} cancelled itself"), self._clock.now())

    # ── Telling ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _report(self, done: Sequence[Done], settled: Sequence[str]) -> None:
        if len(settled) == len(done):
            outcomes = [
                Outcome(verdict.claim.job, verdict, seconds, result) for verdict, seconds, result in done
            ]
        else:
            mine = set(settled)
            outcomes = [
                Outcome(v.claim.job, v, seconds, result)
                for v, seconds, result in done
                if v.claim.job.id in mine
            ]
            for verdict, _, _ in done:
                if verdict.claim.job.id not in mine:
                    job = verdict.claim.job
                    log.warning(
                        f"[{self.queue.name}:{self._engine.type}] {job.name} {job.id} ended after its lease was lost; "
                        "its outcome is not counted, another worker has the job",
                        fields=job.log_fields(outcome="lost"),
                    )
        if outcomes:
            self._observe(self.queue, outcomes)
