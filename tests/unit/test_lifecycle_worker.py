"""The worker's own life: it opens what it needs, outlives an engine in trouble, and always ends when asked to."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from yamchi import Job, Worker, Yamchi
from yamchi.clock import Millis, SystemClock
from yamchi.errors import EngineUnavailable
from yamchi.observe.logging import configure
from yamchi.queues import leases
from yamchi.queues.engines.base import Exchange, RateLimit
from yamchi.queues.engines.memory import MemoryEngine
from yamchi.queues.engines.sqlite import SqliteEngine
from yamchi.queues.overview import engines_of
from yamchi.queues.records import JobRecord, Verdict
from yamchi.settings import Settings
from yamchi.testing import eventually


class Troubled(MemoryEngine):
    """An engine with a switch: while it is `away`, the worker's calls fail; while it is `slow`, they do not return."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.away = False
        self.present = asyncio.Event()
        self.present.set()
        self.failures = 0
        self.trouble: Exception = EngineUnavailable("The broker is away.")

    async def exchange(
        self, queue: str, verdicts: Sequence[Verdict], want: int, lease: int, worker: str
    ) -> Exchange:
        got = None if self.away else await super().exchange(queue, verdicts, want, lease, worker)
        await self.present.wait()
        if got is None or self.away:
            self.failures += 1
            raise self.trouble
        return got


@asynccontextmanager
async def working(app: Yamchi) -> AsyncIterator[Worker]:
    """A worker of this application, stopped gracefully in the end."""
    worker = app.worker()
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await running
        await app.close()


@pytest.fixture
def said() -> Iterator[StringIO]:
    """What is logged."""
    stream = StringIO()
    configure(stream=stream)
    yield stream
    configure()


@pytest.fixture
def engine() -> Troubled:
    return Troubled()


@pytest.fixture
def app(engine: Troubled) -> Yamchi:
    return Yamchi(Settings(plugins=(), shutdown_timeout=timedelta(seconds=1)), engine=engine)


async def test_verdicts_outlive_an_engine_that_is_away(app: Yamchi, engine: Troubled) -> None:
    release = asyncio.Event()

    @app.job("mail", concurrency=5)
    async def send(job: Job[Any]) -> str:
        await release.wait()
        return "sent"

    jobs = await app.queue("mail").add_many([{}] * 5)
    async with working(app):
        await eventually(lambda: _count(engine, "active", 5))
        engine.away = True
        release.set()
        await eventually(lambda: engine.failures >= 2)
        engine.away = False
        await eventually(lambda: _count(engine, "completed", 5))
    assert [(await job.refresh()).attempts_made for job in jobs] == [1] * 5


@pytest.mark.parametrize("trouble", [EngineUnavailable("The broker is away."), KeyError("a fault of ours")])
async def test_where_it_failed_is_told_only_of_what_nobody_expected(
    app: Yamchi, engine: Troubled, said: StringIO, trouble: Exception
) -> None:
    @app.job("mail")
    async def send(job: Job[Any]) -> None:
        raise AssertionError("nothing comes")

    engine.trouble, engine.away = trouble, True
    async with working(app):
        await eventually(lambda: f"Error reading from queue: {trouble}" in said.getvalue())
    assert ("Traceback" in said.getvalue()) is isinstance(trouble, KeyError)


async def test_a_stop_does_not_wait_for_threads_that_handlers_left_behind(app: Yamchi) -> None:
    """asyncio.to_thread has a few threads; handlers that were interrupted may have left all of them busy."""
    release, busy = threading.Event(), [0]
    threads = ThreadPoolExecutor(2)
    asyncio.get_running_loop().set_default_executor(threads)

    def block() -> None:
        busy[0] += 1
        release.wait(60)

    @app.job("mail", concurrency=2)
    async def send(job: Job[Any]) -> None:
        await asyncio.to_thread(block)

    await app.queue("mail").add_many([{}] * 2)
    worker = app.worker()
    running = asyncio.create_task(worker.run())
    try:
        await eventually(lambda: busy == [2])
        worker.stop()
        await asyncio.wait_for(running, 20)
    finally:
        release.set()
    await app.close()


async def test_a_stop_does_not_wait_for_ever_for_an_engine_that_is_away(
    app: Yamchi, engine: Troubled, said: StringIO
) -> None:
    started = asyncio.Event()

    @app.job("mail")
    async def send(job: Job[Any]) -> None:
        started.set()
        await asyncio.sleep(0.05)

    await app.queue("mail").add({})
    async with working(app):
        await started.wait()
        engine.away = True
        began = monotonic()
    assert monotonic() - began < 1 + 5 + 4, (
        "the time for running jobs, that for the last verdicts, and a little more"
    )
    assert "1 outcomes that could not be settled" in said.getvalue()


async def test_a_job_that_was_interrupted_may_tidy_up(engine: Troubled) -> None:
    app = Yamchi(Settings(plugins=(), job_timeout=timedelta(milliseconds=50)), engine=engine)
    interrupted, tidied = {"first": asyncio.Event(), "second": asyncio.Event()}, []

    @app.job("slow", attempts=1)
    async def work(job: Job[str]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            interrupted[job.data].set()
            await interrupted["second"].wait()  # then it was looked for slow ones again
            tidied.append(job.data)

    async with working(app):
        await app.queue("slow").add("first")
        await asyncio.wait_for(interrupted["first"].wait(), 20)
        await app.queue("slow").add("second")
        await eventually(lambda: sorted(tidied) == ["first", "second"])


async def test_a_job_that_arrives_after_the_stop_goes_back_untouched(app: Yamchi, engine: Troubled) -> None:
    runs: list[str] = []

    @app.job("mail")
    async def send(job: Job[Any]) -> None:
        runs.append(job.id)
        await asyncio.sleep(60)

    engine.present.clear()
    job = await app.queue("mail").add({})
    async with working(app) as worker:
        await eventually(lambda: _count(engine, "active", 1))
        worker.stop()
        await eventually(lambda: worker.runners[0].jobs.is_stopping)
        engine.present.set()
    back = await job.refresh()
    assert (back.state, back.attempts_made, runs) == ("waiting", 0, [])


class Opening(MemoryEngine):
    """One that does not get open."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.has_begun = asyncio.Event()

    async def open(self) -> None:
        self.has_begun.set()
        await asyncio.Event().wait()


async def test_a_worker_that_is_cancelled_while_it_starts_leaves_nothing_behind() -> None:
    engine, before = Opening(), asyncio.all_tasks()
    app = Yamchi(Settings(plugins=()), engine=engine)

    @app.job("mail")
    async def send(job: Job[Any]) -> None:
        """Nothing to do."""

    running = asyncio.create_task(app.worker().run())
    await engine.has_begun.wait()
    running.cancel()
    await asyncio.wait([running])
    await app.close()
    await app.close()
    assert asyncio.all_tasks() == before


class Confused(Troubled):
    """While an exchange is under way, its look for stalled jobs meets a cancelled future; the exchange is answered a little later."""

    async def recover(self, queue: str) -> list[tuple[JobRecord, bool]]:
        if not self.present.is_set():
            asyncio.get_running_loop().call_later(0.1, self.present.set)
            raise asyncio.CancelledError
        return await super().recover(queue)


async def test_what_an_exchange_brings_is_run_though_the_queue_was_interrupted_meanwhile() -> None:
    engine = Confused()
    app = Yamchi(Settings(plugins=(), lease=timedelta(seconds=9)), engine=engine)

    @app.job("mail")
    async def send(job: Job[Any]) -> None:
        """Nothing to do."""

    engine.present.clear()
    job = await app.queue("mail").add({})
    async with working(app):
        await eventually(lambda: _states([job], ["completed"]))
    assert (await job.refresh()).attempts_made == 1


class AskedOverANetwork(MemoryEngine):
    """Two exchanges at once, and permits that take a moment to come. `most_held` is how many jobs were held at once."""

    can = replace(MemoryEngine.can, overlaps=True)

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.most_held = 0

    async def exchange(
        self, queue: str, verdicts: Sequence[Verdict], want: int, lease: int, worker: str
    ) -> Exchange:
        got = await super().exchange(queue, verdicts, want, lease, worker)
        self.most_held = max(self.most_held, (await self.counts(queue))["active"])
        return got

    async def reserve(self, queue: str, limit: RateLimit, keys: Sequence[str]) -> list[Millis]:
        await _take_turns(5)
        return await super().reserve(queue, limit, keys)


async def _take_turns(number: int) -> None:
    """Let others run so often."""
    for _ in range(number):
        await asyncio.sleep(0)


async def test_no_more_jobs_are_claimed_than_there_are_slots_though_their_permits_take_long() -> None:
    engine = AskedOverANetwork()
    app = Yamchi(Settings(plugins=()), engine=engine)

    @app.job("mail", concurrency=2, key_rate="1000/s", key="to")
    async def send(job: Job[dict[str, int]]) -> None:
        await _take_turns(job.data["to"] % 5)

    jobs = await app.queue("mail").add_many([{"to": n} for n in range(50)])
    async with working(app):
        await eventually(lambda: _states(jobs, ["completed"] * 50))
    assert engine.most_held == 2


async def test_an_engine_that_appears_late_is_used_when_it_does(tmp_path: Path) -> None:
    place = tmp_path / "not-yet"
    place.write_text("a file where a folder should be")
    app = Yamchi(Settings(plugins=()), engine=SqliteEngine(place / "jobs.db", SystemClock()))
    done: list[str] = []

    @app.job("mail")
    async def send(job: Job[Any]) -> None:
        done.append(job.id)

    async with working(app):
        with pytest.raises(EngineUnavailable, match=r"jobs\.db can't be opened"):
            await app.queue("mail").add({})
        place.unlink()
        job = await app.queue("mail").add({})
        await eventually(lambda: done == [job.id])


async def test_a_worker_is_listed_as_soon_as_it_runs(
    tmp_path: Path, said: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT", 3_600_000)  # so it is not the second heartbeat that lists it
    app = Yamchi(Settings(home=tmp_path, plugins=()))

    @app.job("mail")
    async def send(job: Job[Any]) -> None:
        """Nothing to do."""

    async with working(app):
        await eventually(lambda: _listed(app))
    assert not await _listed(app)
    await app.close()
    assert "could not be tended" not in said.getvalue()


async def test_a_handler_that_exits_or_cancels_itself_costs_only_its_own_attempt(app: Yamchi) -> None:
    done: list[str] = []

    @app.job("mail", attempts=1)
    async def send(job: Job[str]) -> None:
        if job.data == "exit":
            raise SystemExit(3)
        if job.data == "cancel":
            raise asyncio.CancelledError
        done.append(job.data)

    queue = app.queue("mail")
    jobs = await queue.add_many(["exit", "cancel", "fine"])
    async with working(app):
        await eventually(lambda: _states(jobs, ["failed", "failed", "completed"]))
    assert done == ["fine"]


async def _count(engine: Troubled, state: Any, expected: int) -> bool:
    return (await engine.counts("mail"))[state] == expected


async def _listed(app: Yamchi) -> bool:
    return bool(await engines_of(app.queues)[0].workers())


async def _states(jobs: Sequence[Job[Any]], expected: list[str]) -> bool:
    return [(await job.refresh()).state for job in jobs] == expected
