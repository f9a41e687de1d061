"""A worker: one process's share of the work. A runner per queue, a lease keeper for all, and the background services.

Runners, the lease keeper and the scheduler of cron jobs are supervised like any other service: one that fails for a reason
nobody foresaw is logged, shown in `/readyz` and started again, while the jobs that run go on running.
"""

import asyncio
import gc
import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from yamchi.clock import Clock, Millis, Span, to_millis
from yamchi.queues import results
from yamchi.queues.cron import Schedule, Scheduler
from yamchi.queues.engines.base import WorkerInfo
from yamchi.queues.leases import LeaseKeeper
from yamchi.queues.processes.importing import check_not_importing
from yamchi.queues.queue import Queue
from yamchi.queues.reporting import emit_outcomes, log_outcomes
from yamchi.queues.runner import Observer, Outcome, QueueRunner
from yamchi.queues.services import ServiceFunction, Services

SHORTEST_LEASE: Millis = 300

OPENING_SECONDS = 2.0
"""A worker waits this long for all engines to open, and then begins with those that are open."""


class Worker:
    """Runs the handlers of some queues until it is stopped.

    `lease` is the promise to other workers: if this one dies, its jobs are running elsewhere within that time.
    Defaults to 30 seconds. `stop_timeout` is how long a stop waits for running jobs; defaults to 30 seconds.
    """

    def __init__(
        self,
        queues: Sequence[Queue],
        *,
        clock: Clock,
        schedules: Sequence[Schedule] = (),
        lease: Span = "30s",
        stop_timeout: Span = "30s",
        observers: Sequence[Observer] = (),
        services: Services | None = None,
    ) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._clock = clock
        self._stop_seconds = to_millis(stop_timeout) / 1000
        self._observers = (*observers, log_outcomes, emit_outcomes)
        granted = max(to_millis(lease), SHORTEST_LEASE) * 9 // 10
        self.runners = [
            QueueRunner(queue, worker=self.name, lease=granted, clock=clock, observe=self._observe)
            for queue in queues
        ]
        self._keeper = LeaseKeeper(
            [runner.jobs.held for runner in self.runners], granted, clock, self.describe
        )
        self.scheduler = Scheduler(list(schedules), clock)
        self.services = Services(clock) if services is None else services
        self._started_at = clock.now()
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Work until `stop`, then finish gracefully. Cancelling this gives running jobs back at once."""
        check_not_importing("starts a worker")
        with collecting_less():
            await self._run()

    async def _run(self) -> None:
        opening = [asyncio.create_task(runner.open()) for runner in self.runners]
        try:
            # One engine that does not answer must not keep the others from being worked on.
            await asyncio.wait(opening, timeout=OPENING_SECONDS)
            with self.services.watching("lease keeper", _nothing) as service:
                self._keeper.start(service)
                await self._work()
        finally:
            for task in opening:
                task.cancel()

    async def _work(self) -> None:
        """Run everything until a stop or a cancellation. What fails is started again."""
        runners = [self._begin(f"queue {runner.queue.name}", runner.run) for runner in self.runners]
        services = self.services.declared(runner.queue.name for runner in self.runners)
        background = [self._begin(name, function) for name, function in services.items()]
        if self.scheduler.schedules:
            background.append(self._begin("cron", self.scheduler.run))
        stop_seconds = self._stop_seconds
        try:
            await self._stop.wait()
        except asyncio.CancelledError:
            stop_seconds = 0
            raise
        finally:
            for task in background:
                task.cancel()
            stops = await asyncio.gather(
                *(runner.stop(stop_seconds) for runner in self.runners), return_exceptions=True
            )
            for task in runners:
                task.cancel()  # one that waits to be started again need not be
            await asyncio.gather(*runners, *background, return_exceptions=True)
            await self._keeper.stop()
        for outcome in stops:
            if isinstance(outcome, Exception):
                raise outcome

    def _begin(self, name: str, function: ServiceFunction) -> "asyncio.Task[None]":
        return asyncio.create_task(self.services.keep(name, function), name=name)

    def stop(self) -> None:
        """Ask the worker to finish. May be called from a signal handler of the event loop."""
        self._stop.set()

    async def drain(self) -> int:
        """Run all jobs that are due now and those that they make due; how many rounds of exchanges it took.

        For tests: no leases, no scheduler, and jobs that wait for a moved clock are left waiting.
        """
        rounds, are_asleep = 0, False
        while True:
            for runner in self.runners:
                runner.claim_again()
            moved = [await runner.exchange() for runner in self.runners]
            if any(moved) or await self._let_run():
                rounds, are_asleep = rounds + any(moved), False
            elif are_asleep or not self._tasks:
                return rounds
            else:
                are_asleep = True  # before they fell asleep they may have added what is due

    async def close(self) -> None:
        """End what `drain` started. `run` needs no close."""
        await asyncio.gather(*(runner.close() for runner in self.runners))

    @property
    def _tasks(self) -> "list[asyncio.Task[None]]":
        return [task for runner in self.runners for task in runner.jobs.tasks]

    async def _let_run(self) -> bool:
        """Let running jobs run for a moment. False if the remaining ones all sleep on the clock or wait for jobs that are not due.

        No longer than that: what a job adds may have to run before the job can end.
        """
        if tasks := self._tasks:
            results.look_again(tasks)
            done, _ = await asyncio.wait(tasks, timeout=0.005, return_when=asyncio.FIRST_COMPLETED)
            idle = getattr(self._clock, "sleepers", 0) + results.count_waiting(tasks)
            return bool(done) or idle < len(tasks) or not all(runner.is_settled for runner in self.runners)
        await asyncio.sleep(0)
        return not all(
            runner.is_idle for runner in self.runners
        )  # a job may have ended during the last exchange

    def describe(self) -> WorkerInfo:
        running = tuple(job_id for runner in self.runners for job_id in runner.jobs.held.claims.copy())
        queues = tuple(runner.queue.name for runner in self.runners)
        return WorkerInfo(
            self.name, socket.gethostname(), os.getpid(), queues, running, self._started_at, self._clock.now()
        )

    def _observe(self, queue: Queue, outcomes: Sequence[Outcome]) -> None:
        for observer in self._observers:
            observer(queue, outcomes)


async def _nothing() -> None:
    """The lease keeper runs in a thread of its own."""


@contextmanager
def collecting_less() -> Iterator[None]:
    """Collect garbage less often, and not among objects that existed before: reference counts free what jobs leave behind."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
