"""A worker: one process's share of the work. A lane per queue, a lease keeper for all, and the background services.

Lanes, the lease keeper and the scheduler of cron jobs are supervised like any other service: one that fails for a reason
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
from yamchi.queues.cron import Schedule, Scheduler
from yamchi.queues.engines.base import WorkerInfo
from yamchi.queues.lane import Lane, Observer, Outcome
from yamchi.queues.leases import LeaseKeeper
from yamchi.queues.queue import Queue
from yamchi.queues.reporting import emit_outcomes, log_outcomes
from yamchi.queues.services import ServiceFunction, Services

SHORTEST_LEASE: Millis = 300

OPENING_SECONDS = 2.0
"""How long a worker waits for all engines to be open before it begins with those that are."""


class Worker:
    """Runs the handlers of some queues until it is stopped.

    `lease` is the promise to other workers: if this one dies, its jobs are running elsewhere within that time.
    Defaults to 30 seconds. `patience` is how long a stop waits for running jobs; defaults to 30 seconds.
    """

    def __init__(
        self,
        queues: Sequence[Queue],
        *,
        clock: Clock,
        schedules: Sequence[Schedule] = (),
        lease: Span = "30s",
        patience: Span = "30s",
        observers: Sequence[Observer] = (),
        services: Services | None = None,
        name: str | None = None,
    ) -> None:
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._clock = clock
        self._patience = to_millis(patience) / 1000
        self._observers = (*observers, log_outcomes, emit_outcomes)
        granted = max(to_millis(lease), SHORTEST_LEASE) * 9 // 10
        self.lanes = [
            Lane(queue, worker=self.name, lease=granted, clock=clock, observe=self._observe)
            for queue in queues
        ]
        self._keeper = LeaseKeeper([lane.held for lane in self.lanes], granted, clock, self.describe)
        self.scheduler = Scheduler(list(schedules), clock)
        self.services = Services(clock) if services is None else services
        self._started_at = clock.now()
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Work until `stop`, then finish gracefully. Cancelling this gives running jobs back at once."""
        with _collecting_less():
            await self._run()

    async def _run(self) -> None:
        arriving = [asyncio.create_task(lane.arrive()) for lane in self.lanes]
        # One engine that does not answer must not keep the others from being worked on.
        await asyncio.wait(arriving, timeout=OPENING_SECONDS)
        try:
            with self.services.watching("lease keeper", _nothing) as keeping:
                self._keeper.start(keeping)
                await self._work()
        finally:
            for task in arriving:
                task.cancel()

    async def _work(self) -> None:
        """Only a stop or being cancelled ends this: whatever fails is started again."""
        lanes = [self._begin(f"queue {lane.queue.name}", lane.run) for lane in self.lanes]
        services = self.services.declared(lane.queue.name for lane in self.lanes)
        beside = [self._begin(name, function) for name, function in services.items()]
        if self.scheduler.schedules:
            beside.append(self._begin("cron", self.scheduler.run))
        patience = self._patience
        try:
            await self._stop.wait()
        except asyncio.CancelledError:
            patience = 0
            raise
        finally:
            for task in beside:
                task.cancel()
            stops = await asyncio.gather(
                *(lane.stop(patience) for lane in self.lanes), return_exceptions=True
            )
            for task in lanes:
                task.cancel()  # one that waits to be started again need not be
            await asyncio.gather(*lanes, *beside, return_exceptions=True)
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
        """Run everything that is due now, and what that makes due, then return; how many trips it took.

        For tests: no leases, no scheduler, and jobs that wait for a moved clock are left waiting.
        """
        trips = 0
        while True:
            for lane in self.lanes:
                lane.ask_again()
            moved = [await lane.carry() for lane in self.lanes]
            if any(moved):
                trips += 1
            elif not await self._let_run():
                return trips

    async def close(self) -> None:
        """End what `drain` started; a worker that ran has done so itself."""
        await asyncio.gather(*(lane.close() for lane in self.lanes))

    async def _let_run(self) -> bool:
        """Let running jobs run; False when all that are left are asleep on the clock."""
        tasks = [task for lane in self.lanes for task in lane.running]
        while tasks:
            done, _ = await asyncio.wait(tasks, timeout=0.005, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return True
            if getattr(self._clock, "sleepers", 0) >= len(tasks):
                return False
        await asyncio.sleep(0)
        return not all(lane.is_idle for lane in self.lanes)  # a job may have ended during the last trip

    def describe(self) -> WorkerInfo:
        running = tuple(job_id for lane in self.lanes for job_id in lane.held.claims.copy())
        queues = tuple(lane.queue.name for lane in self.lanes)
        return WorkerInfo(
            self.name, socket.gethostname(), os.getpid(), queues, running, self._started_at, self._clock.now()
        )

    def _observe(self, queue: Queue, outcomes: Sequence[Outcome]) -> None:
        for observer in self._observers:
            observer(queue, outcomes)


async def _nothing() -> None:
    """The lease keeper runs in a thread of its own."""


@contextmanager
def _collecting_less() -> Iterator[None]:
    """What a job leaves behind is freed at once: look for the rest less often, and not among what was there before."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
