"""Two engines in one worker: what one of them does not answer costs the jobs and schedules of the other nothing."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from yamchi import Job, Worker
from yamchi.clock import Millis, SystemClock
from yamchi.errors import EngineUnavailable
from yamchi.queues.cron import LONGEST_SLEEP, CronLine, Schedule, Scheduler
from yamchi.queues.engines.base import WorkerInfo
from yamchi.queues.engines.memory import MemoryEngine
from yamchi.queues.handlers import Handler, QueueDefinition
from yamchi.queues.lazy import LazyEngine
from yamchi.queues.queue import Queue
from yamchi.queues.records import Claim
from yamchi.testing import MovableClock, eventually

LEASE: Millis = 1_500
"""Two thirds of it are how long a busy machine may keep a renewal waiting."""


class Watched(MemoryEngine):
    """Counts what it is asked, and while it `hangs`, answers nothing that the lease keeper or the scheduler asks."""

    def __init__(self, clock: Any = None, *, hangs: bool = False) -> None:
        super().__init__(clock or SystemClock())
        self.hangs = hangs
        self.is_away = False
        self.asked: Counter[str] = Counter()

    async def _answer(self, what: str) -> None:
        self.asked[what] += 1
        if self.is_away:
            raise EngineUnavailable("Nobody answers.")
        if self.hangs:
            await asyncio.Event().wait()

    async def renew(self, queue: str, claims: Sequence[Claim], lease: Millis) -> list[str]:
        await self._answer("renew")
        return await super().renew(queue, claims, lease)

    async def cancelled(self, queue: str, claims: Sequence[Claim]) -> list[str]:
        await self._answer("cancelled")
        return await super().cancelled(queue, claims)

    async def heartbeat(self, worker: WorkerInfo | str) -> None:
        await self._answer("heartbeat")
        await super().heartbeat(worker)

    async def last_fired(self, schedule: str) -> Millis | None:
        await self._answer("last_fired")
        return await super().last_fired(schedule)


class NeverOpen(Watched):
    async def open(self) -> None:
        await asyncio.Event().wait()


def _queue(
    name: str, engine: MemoryEngine, handler: Callable[..., Awaitable[None]], clock: Any = None
) -> Queue:
    definition = QueueDefinition(name)
    definition.handlers["run"] = Handler("run", handler)
    return Queue(definition, engine, clock or SystemClock())


@asynccontextmanager
async def _working(worker: Worker) -> AsyncIterator[None]:
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running


async def test_an_engine_that_hangs_for_longer_than_a_lease_costs_the_other_no_lease() -> None:
    hanging, healthy = Watched(hangs=True), Watched()
    done = asyncio.Event()
    began: Counter[str] = Counter()

    async def run(job: Job[str]) -> None:
        began[job.data] += 1
        await done.wait()

    queues = [_queue("slow", hanging, run), _queue("quick", healthy, run)]
    worker = Worker(queues, clock=SystemClock(), lease=LEASE / 1000, stop_timeout=0)
    async with _working(worker):
        for queue in queues:
            await queue.add(queue.name)
        await eventually(lambda: began == {"slow": 1, "quick": 1})
        await eventually(lambda: hanging.asked["renew"])
        # Two calls given up after a lease each: the other engine's leases would be long gone.
        await eventually(lambda: hanging.asked["renew"] >= 3)
        assert healthy.asked["renew"] >= 6
        assert await healthy.recover("quick") == [], "its lease has been renewed all the time"
        assert [one.id for one in await healthy.workers()] == [worker.name]
        done.set()
    assert began["quick"] == 1


async def test_an_engine_that_can_not_be_opened_does_not_keep_the_other_from_working() -> None:
    ran: list[str] = []

    async def run(job: Job[str]) -> None:
        ran.append(job.data)

    queues = [_queue("slow", NeverOpen(), run), _queue("quick", Watched(), run)]
    async with _working(Worker(queues, clock=SystemClock(), lease=LEASE / 1000)):
        await queues[1].add("quick")
        await eventually(lambda: ran == ["quick"])


async def _nothing(job: Job[None]) -> None: ...


@pytest.mark.parametrize("trouble", ["hangs", "is_away"])
async def test_schedules_fire_though_the_engine_of_another_one_does_not_answer(trouble: str) -> None:
    clock = MovableClock()
    troubled, healthy = Watched(clock), Watched(clock)
    setattr(troubled, trouble, True)
    every_minute = CronLine("* * * * *")
    schedules = [
        Schedule(name, every_minute, _queue(name, engine, _nothing, clock), "run")
        for name, engine in (("first", troubled), ("second", healthy))
    ]
    running = asyncio.create_task(Scheduler(schedules, clock).run())

    async def waiting(number: int) -> bool:
        return (await healthy.counts("second"))["waiting"] == number

    await eventually(lambda: healthy.asked["last_fired"] == 1)
    for number in (1, 2):
        await clock.advance("1m")
        await eventually(partial(waiting, number))
    if trouble == "is_away":
        troubled.is_away = False
        await clock.advance("1s")
        await eventually(lambda: troubled.last_fired("first"))
        await clock.advance("1m")

        async def has_fired() -> bool:
            return (await troubled.counts("first"))["waiting"] == 1

        await eventually(has_fired)
    running.cancel()


async def test_one_schedule_that_can_not_be_looked_at_does_not_stop_the_next_of_its_engine() -> None:
    clock = MovableClock()

    class Picky(Watched):
        async def last_fired(self, schedule: str) -> Millis | None:
            if schedule == "bad":
                raise EngineUnavailable("There is no such topic.")
            return await super().last_fired(schedule)

    engine = Picky(clock)
    queue = _queue("q", engine, _nothing, clock)
    schedules = [Schedule(name, CronLine("* * * * *"), queue, "run") for name in ("bad", "good")]
    running = asyncio.create_task(Scheduler(schedules, clock).run())
    await eventually(lambda: engine.asked["last_fired"])
    await clock.advance("1m")

    async def has_fired() -> bool:
        return (await engine.counts("q"))["waiting"] == 1

    await eventually(has_fired)
    running.cancel()


async def test_the_scheduler_looks_at_the_clock_again_however_far_the_next_moment_is() -> None:
    """So that a changed system time is noticed: a nap is never longer than `LONGEST_SLEEP`."""
    clock = MovableClock()
    engine = Watched(clock)
    yearly = Schedule("yearly", CronLine("0 0 1 7 *"), _queue("q", engine, _nothing, clock), "run")
    running = asyncio.create_task(Scheduler([yearly], clock).run())

    def has_looked(times: int) -> bool:
        return engine.asked["last_fired"] == times and clock.sleepers == 1

    for look in range(1, 4):
        await eventually(partial(has_looked, look))
        await clock.advance((LONGEST_SLEEP - 1) / 1000)
        assert engine.asked["last_fired"] == look, "and not sooner than it must"
        await clock.advance(0.001)
    await eventually(lambda: engine.asked["last_fired"] == 4)
    running.cancel()


async def test_an_engine_that_opens_slowly_is_left_alone_until_it_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is held on it, so there is nothing to renew and nothing to complain about."""
    monkeypatch.setattr("yamchi.queues.worker.OPENING_SECONDS", 0.01)
    may_open, opening_threads = asyncio.Event(), set[str]()

    class Slow(Watched):
        async def open(self) -> None:
            await may_open.wait()

    slow, healthy = Slow(), Watched()
    lazy = LazyEngine(lambda: slow)
    call = LazyEngine._open_and_call

    def watched(engine: LazyEngine, *asked: Any) -> Any:
        opening_threads.add(threading.current_thread().name)
        return call(engine, *asked)

    monkeypatch.setattr(LazyEngine, "_open_and_call", watched)

    async def run(job: Job[str]) -> None: ...

    queues = [_queue("slow", lazy, run), _queue("quick", healthy, run)]  # type: ignore[arg-type]
    async with _working(Worker(queues, clock=SystemClock(), lease=LEASE / 1000, stop_timeout=0)):
        await eventually(lambda: healthy.asked["heartbeat"])
        assert not slow.asked["heartbeat"]
        may_open.set()
        await eventually(lambda: slow.asked["heartbeat"])
    assert "lease-keeper" not in opening_threads
