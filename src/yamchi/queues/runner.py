"""One queue's work in one process: claim what fits in free slots, run it, settle what is done.

Two exchanges with the engine may be under way at once, so that one batch runs while the next is being claimed. Each gives
the engine every verdict there is at the time and asks for exactly the slots that are free: a batch never waits for its
slowest job, and a job is never claimed without a slot to run in.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from yamchi.clock import Clock, Millis
from yamchi.errors import EngineError
from yamchi.queues.engines.base import Exchange, describe_stalled, stalled_error
from yamchi.queues.job import Job
from yamchi.queues.queue import Queue
from yamchi.queues.records import Claim, DeadLetter, Failed, JobRecord, Verdict
from yamchi.queues.running import Finished, RunningJobs
from yamchi.queues.throttle import Throttle

log = structlog.get_logger("yamchi.worker")

IDLE_WAIT: Millis = 5_000
"""An idle runner asks for jobs this often even if nothing wakes it."""

LAST_VERDICTS_SECONDS = 5.0
"""How long a stop waits until the last verdicts are settled, and a failure until exchanges under way have ended."""

LONGEST_BACKOFF_SECONDS = 5.0
"""The longest pause between two tries when the engine fails."""

POSTPONED_SECONDS = 1.0
"""How long to wait before verdicts that the engine could not settle are sent again."""

FEW_SLOTS = 16
"""With fewer slots than this one exchange may fill them all."""


@dataclass(slots=True)
class Outcome:
    """A settled job, for metrics, logs and listeners."""

    job: JobRecord
    verdict: Verdict
    seconds: float
    returned: Any = None


Observer = Callable[[Queue, Sequence[Outcome]], None]


class QueueRunner:
    """Runs one queue in one worker. All of its state belongs to the worker's event loop, except `jobs.held`."""

    def __init__(self, queue: Queue, *, worker: str, lease: Millis, clock: Clock, observe: Observer) -> None:
        self.queue = queue
        self.slots = queue.definition.concurrency
        self._engine = queue.engine
        self._worker = worker
        self._lease = lease
        self._clock = clock
        self._observe = observe
        self._throttle = Throttle(queue, clock)

        self._exchanges_at_once = 2 if queue.engine.can.overlaps else 1
        """How many exchanges may be under way at once. Never changes."""
        self._may_exchange = True
        """Whether another exchange may begin: False when `run` is about to end without a stop."""
        self._exchanges_under_way = 0
        """Written by `exchange`; read by `is_idle`, so that a stop waits for them."""
        self._requested = 0
        """Jobs that exchanges under way have asked for and not started. Written by `_exchange`; read by `_free_slots`."""
        self._verdicts: list[Finished] = []
        """Verdicts for the next exchange. Written by `jobs` as runs end; taken, and put back if it fails, by `_exchange`."""
        self._postponed: list[Finished] = []
        """Verdicts that the engine could not settle yet. Written by `_postpone`; moved back by `_retry_postponed`."""
        self._may_claim = True
        """Whether jobs may be due: False after an exchange brought fewer than it asked for, True again after a wake-up."""
        self._failures = 0
        """Calls of the engine that failed since the last exchange that did not. Read by `_back_off` and the sweep."""
        self._exchange_due = asyncio.Event()
        """There may be something to settle or to claim. Set by everything above; cleared by the exchange loops."""
        self._is_empty = asyncio.Event()
        """Nothing more is due. Set by `_take`; cleared by `_wait_for_jobs` after a wake-up."""
        self._exchange_ended = asyncio.Event()
        """Set by `exchange`; a stop waits for it."""
        self._stopped = asyncio.Event()
        """Set at the end of `stop`; ends `run`."""
        self.jobs = RunningJobs(
            queue, self.slots, clock, finish=self._finish, on_change=self._exchange_due.set
        )

    # ── Start and stop ────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Open the engine on the worker's event loop. If it is away, every exchange tries again."""
        try:
            await self._engine.open()
        except EngineError as error:
            log.error(f"{self._prefix} Error reading from queue: {error}")

    async def run(self) -> None:
        """Work until stopped, and then until everything begun is settled or given back.

        Should a part of this fail, it raises, and may be run again: jobs that run go on running meanwhile.
        """
        self._may_exchange = True
        self._exchange_due.set()
        parts = (self._wait_for_jobs, self._recover_stalled, self._enforce_timeout, self._stopped.wait)
        loops = [asyncio.create_task(self._exchange_when_due()) for _ in range(self._exchanges_at_once)]
        tasks = [*loops, *(asyncio.create_task(part()) for part in parts)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not self._stopped.is_set():
                await self._end_exchanges(loops)
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            await self.close()
        if not self._stopped.is_set():
            raise self._explain(outcomes)

    async def _end_exchanges(self, loops: "Sequence[asyncio.Task[None]]") -> None:
        """Let exchanges under way end: jobs claimed by an exchange that is cut off wait until their leases end."""
        self._may_exchange = False
        self._exchange_due.set()
        await asyncio.wait(loops, timeout=LAST_VERDICTS_SECONDS)

    def _explain(self, outcomes: Sequence[object]) -> RuntimeError:
        """Why this ended without a stop."""
        raised = (one for one in outcomes if isinstance(one, BaseException))
        cause = next((one for one in raised if not isinstance(one, asyncio.CancelledError)), None)
        error = RuntimeError(f"The work of queue {self.queue.name} was interrupted: {cause!r}")
        error.__cause__ = cause
        return error

    async def stop(self, timeout_seconds: float) -> None:
        """Claim no more, let running jobs finish, and give back what is not done in time."""
        self.jobs.is_stopping = True
        self._exchange_due.set()
        await self.jobs.stop(timeout_seconds)
        await self._settle_the_rest()
        self._stopped.set()

    async def _settle_the_rest(self) -> None:
        """Settle the last verdicts. An engine that is away delays the stop only for a short time."""
        self._retry_postponed()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_VERDICTS_SECONDS):
                while not self.is_idle:
                    self._exchange_ended.clear()
                    await self._exchange_ended.wait()
        if left := len(self._verdicts) + len(self._postponed):
            log.error(
                f"{self._prefix} stopping with {left} outcomes that could not be settled; "
                "their jobs run again when their leases end"
            )

    async def close(self) -> None:
        """End what was started for handlers."""
        await self.jobs.close()

    @property
    def is_idle(self) -> bool:
        return self.is_settled and not len(self.jobs)

    @property
    def is_settled(self) -> bool:
        """Whether the engine knows of every job that has ended."""
        return not (self._verdicts or self._postponed or self._exchanges_under_way)

    @property
    def _prefix(self) -> str:
        return f"[{self.queue.name}:{self._engine.type}]"

    # ── Exchanges ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _exchange_when_due(self) -> None:
        while self._may_exchange:
            await self._exchange_due.wait()
            self._exchange_due.clear()
            if self._may_exchange and (self._verdicts or self._free_slots()):
                await self.exchange()

    def claim_again(self) -> None:
        """Let the next exchange ask for jobs even if the last one found none."""
        self._may_claim = True

    async def exchange(self) -> bool:
        """Settle what is done and claim what may start; whether there was anything to settle or claim."""
        self._exchanges_under_way += 1
        try:
            want = await self._permitted()
            return await self._exchange(want) if want or self._verdicts else False
        except Exception as error:
            await self._back_off(error)
            return False
        finally:
            self._exchanges_under_way -= 1
            self._exchange_ended.set()

    async def _permitted(self) -> int:
        """How many jobs to ask for; an exchange becomes due by itself when a rate limit permits the next one."""
        permitted, wait = await self._throttle.allow(min(self._free_slots(), self._batch_size))
        if wait:
            asyncio.get_running_loop().call_later(wait / 1000, self._exchange_due.set)
        return min(permitted, self._free_slots())

    async def _exchange(self, want: int) -> bool:
        done, self._verdicts = self._verdicts, []
        self._requested += want
        try:
            got = await self._settle_and_claim(done, want)
            if got.unsettled:
                done = self._postpone(done, got.unsettled)
            await self._take(got, want)
        finally:
            # Not before: rate limits may be asked first, and the slots are not free meanwhile.
            self._requested -= want
        if done:
            self._report(done, got.settled)
        return bool(done or got.claims)

    async def _settle_and_claim(self, done: list[Finished], want: int) -> Exchange:
        """The exchange with the engine. If it fails, the verdicts wait for the next one."""
        try:
            got = await self._engine.exchange(
                self.queue.name, [verdict for verdict, _, _ in done], want, self._lease, self._worker
            )
        except BaseException:
            self._verdicts[:0] = done
            raise
        self._failures = 0
        return got

    def _finish(self, finished: Finished) -> None:
        self._verdicts.append(finished)

    def _postpone(self, done: list[Finished], unsettled: Sequence[Verdict]) -> list[Finished]:
        """Keep verdicts that can't be settled yet for a later exchange; the remaining ones."""
        again = {id(verdict) for verdict in unsettled}
        if not self._postponed:
            asyncio.get_running_loop().call_later(POSTPONED_SECONDS, self._retry_postponed)
        self._postponed += [entry for entry in done if id(entry[0]) in again]
        return [entry for entry in done if id(entry[0]) not in again]

    def _retry_postponed(self) -> None:
        self._verdicts[:0], self._postponed = self._postponed, []
        self._exchange_due.set()

    @property
    def _batch_size(self) -> int:
        """The most jobs to ask for in one exchange. With many slots half of them, so that one half runs while the other is claimed."""
        return self.slots if self.slots < FEW_SLOTS else (self.slots + 1) // self._exchanges_at_once

    def _free_slots(self) -> int:
        if self.jobs.is_stopping or not self._may_claim:
            return 0
        return max(self.slots - self.jobs.slots_taken - self._requested, 0)

    async def _take(self, got: Exchange, want: int) -> None:
        """Start the jobs that an exchange brought."""
        short = want - len(got.claims)
        if short > 0:
            self._may_claim = False
            self._is_empty.set()
            await self._throttle.refund(short)
        claims, later = await self._throttle.sort(got.claims)
        self._verdicts += [(released, 0.0, None) for released in later]
        now, loop = self._clock.now(), asyncio.get_running_loop()
        for claim in claims:
            self.jobs.start(claim, now, loop)
        self._exchange_due.set()

    async def _back_off(self, error: Exception) -> None:
        """Log that the engine failed, and pause before the next try, longer after each failure."""
        self._failures += 1
        level = log.warning if self._failures > 1 else log.error
        level(
            f"{self._prefix} Error reading from queue: {error}", exc_info=not isinstance(error, EngineError)
        )
        self.queue.listeners.emit("error", error)
        pause = min(0.1 * 2 ** min(self._failures, 10), LONGEST_BACKOFF_SECONDS) * random.uniform(0.5, 1.0)
        await asyncio.sleep(pause)
        self._exchange_due.set()

    # ── Beside the exchanges ──────────────────────────────────────────────────────────────────────────────────────

    async def _wait_for_jobs(self) -> None:
        """While there is nothing to claim, wait to be woken."""
        while True:
            await self._is_empty.wait()
            try:
                await self._engine.wake(self.queue.name, IDLE_WAIT)
            except Exception as error:
                await self._back_off(error)
            self._is_empty.clear()
            self._may_claim = True
            self._exchange_due.set()

    async def _recover_stalled(self) -> None:
        """Recover the jobs of dead workers. A job's lease is nine tenths of the promised time; this adds at most a tenth."""
        while True:
            await asyncio.sleep(self._lease / 9_000 * random.uniform(0.8, 1.0))
            if self._failures:
                continue  # our own verdicts first: jobs that are done must not look stalled after an outage
            try:
                for job, has_failed in await self._engine.recover(self.queue.name):
                    self._note_stalled(job, has_failed)
            except Exception as error:
                log.warning(f"{self._prefix} {error}", exc_info=not isinstance(error, EngineError))

    async def _enforce_timeout(self) -> None:
        await self.jobs.enforce_timeout()
        await self._stopped.wait()

    def _note_stalled(self, job: JobRecord, has_failed: bool) -> None:
        log.warning(
            f"{self._prefix} {describe_stalled(job, has_failed)}", fields=job.log_fields(outcome="stalled")
        )
        self.queue.listeners.emit("stalled", Job(self.queue, job))
        if has_failed:
            self._note_failed(job)

    def _note_failed(self, job: JobRecord) -> None:
        """Report a job that failed because its worker died like any other failed job."""
        now, error = self._clock.now(), job.failed_reason or stalled_error(job)
        verdict = Failed(Claim(job, ""), error, DeadLetter.of_job(job, error, now))
        self._observe(self.queue, [Outcome(job, verdict, (now - (job.started_at or now)) / 1000)])

    def _report(self, done: Sequence[Finished], settled: Sequence[str]) -> None:
        """Tell the observer what was settled, and the log what was not."""
        outcomes = [Outcome(verdict.claim.job, verdict, seconds, result) for verdict, seconds, result in done]
        if len(settled) != len(done):
            mine = set(settled)
            for outcome in outcomes:
                if outcome.job.id not in mine:
                    self._note_lost(outcome.job)
            outcomes = [outcome for outcome in outcomes if outcome.job.id in mine]
        if outcomes:
            self._observe(self.queue, outcomes)

    def _note_lost(self, job: JobRecord) -> None:
        log.warning(
            f"{self._prefix} {job.name} {job.id} ended after its lease was lost; "
            "its outcome is not counted, another worker has the job",
            fields=job.log_fields(outcome="lost"),
        )
