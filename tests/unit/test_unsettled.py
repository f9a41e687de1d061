"""Verdicts that an engine can neither settle nor refuse yet are brought again, told once, and not forgotten at a stop."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from yamchi import Job, Worker
from yamchi.clock import Millis, SystemClock
from yamchi.queues.engines.base import Exchange
from yamchi.queues.engines.memory import MemoryEngine
from yamchi.queues.handlers import Handler, QueueDefinition
from yamchi.queues.queue import Queue
from yamchi.queues.records import Verdict
from yamchi.queues.runner import Outcome
from yamchi.testing import eventually


class Holding(MemoryEngine):
    """Answers "not yet" to the verdicts on jobs whose ids are in `not_yet`, as failover does while a broker is away."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.not_yet: set[str] = set()
        self.brought: Counter[str] = Counter()

    async def exchange(
        self, queue: str, verdicts: Sequence[Verdict], want: int, lease: Millis, worker: str
    ) -> Exchange:
        self.brought.update(verdict.claim.job.id for verdict in verdicts)
        kept = [verdict for verdict in verdicts if verdict.claim.job.id in self.not_yet]
        rest = [verdict for verdict in verdicts if verdict.claim.job.id not in self.not_yet]
        got = await super().exchange(queue, rest, want, lease, worker)
        got.unsettled.extend(kept)
        return got


class Site:
    """One queue on such an engine, and what was told of its jobs."""

    def __init__(self) -> None:
        self.engine = Holding()
        self.told: list[str] = []
        self.ran: list[str] = []
        definition = QueueDefinition("q")
        definition.handlers["run"] = Handler("run", self._run)
        self.queue = Queue(definition, self.engine, SystemClock())

    async def _run(self, job: Job[str]) -> None:
        self.ran.append(job.id)

    def _observe(self, queue: Queue, outcomes: Sequence[Outcome]) -> None:
        self.told += [outcome.job.id for outcome in outcomes]

    @asynccontextmanager
    async def working(self) -> AsyncIterator[Worker]:
        worker = Worker([self.queue], clock=SystemClock(), observers=[self._observe])
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()
            await running

    async def completed(self) -> bool:
        return (await self.engine.counts("q"))["completed"] == len(self.ran)


async def test_what_is_not_settled_yet_is_brought_again_and_told_once() -> None:
    site = Site()
    site.engine.not_yet = {"a", "b"}
    async with site.working():
        for job_id in ("a", "b", "c"):
            await site.queue.add(job_id, id=job_id)
        await eventually(lambda: site.told == ["c"])
        await eventually(lambda: site.engine.brought["a"] >= 3)
        assert site.told == ["c"], "nothing is said of what is not settled"
        assert (await site.engine.counts("q"))["active"] == 2
        site.engine.not_yet = {"b"}
        await eventually(lambda: site.told == ["c", "a"])
        site.engine.not_yet = set()
        await eventually(lambda: site.told == ["c", "a", "b"])
        await eventually(site.completed)
    assert sorted(site.ran) == ["a", "b", "c"], "each has run once"
    assert site.told == ["c", "a", "b"]


async def test_it_is_not_asked_all_the_time() -> None:
    """Once a second is enough: the broker that has to take it is away."""
    site = Site()
    site.engine.not_yet = {"a"}
    async with site.working():
        await site.queue.add("a", id="a")
        await eventually(lambda: site.engine.brought["a"] >= 1)
        for number in range(30):
            await site.queue.add("x", id=f"x{number}")
        await eventually(lambda: len(site.told) == 30)
        assert site.engine.brought["a"] <= 5, "other jobs go on, and do not bring it along each time"
        site.engine.not_yet = set()
        await eventually(lambda: "a" in site.told)


async def test_a_stop_brings_it_at_once_and_waits_until_it_is_settled() -> None:
    site = Site()
    site.engine.not_yet = {"a"}
    async with site.working() as worker:
        await site.queue.add("a", id="a")
        await eventually(lambda: site.engine.brought["a"] >= 1)
        (runner,) = worker.runners
        await eventually(lambda: runner._postponed)
        assert not runner.is_idle, "it has something left to bring"
        site.engine.not_yet = set()
    assert site.told == ["a"]
    assert await site.completed()
