"""Slots by provider: a slow one keeps its own jobs waiting and nobody else's; and no run without an end."""

import asyncio
import threading
from collections import Counter
from pathlib import Path

import pytest
from tests.unit.test_lifecycle_worker import working

from yamchi import Job, Yamchi
from yamchi.clock import SystemClock
from yamchi.queues import bulkheads
from yamchi.queues.engines.memory import MemoryEngine
from yamchi.queues.records import Released
from yamchi.settings import Settings
from yamchi.testing import eventually
from yamchi.testing.clock import MovableClock

SLOTS = 4


class Providers:
    """An application whose jobs wait for a provider by name; those of `slow` until they are let go."""

    def __init__(self, home: Path) -> None:
        self.app = Yamchi(Settings(home=home), engine=MemoryEngine(SystemClock()))
        self.go = asyncio.Event()
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.ran: Counter[str] = Counter()
        self.sent_back = 0

        @self.app.job("post", concurrency=SLOTS, attempts=1)
        async def send(job: Job[str]) -> None:
            with job.holding(job.data):
                self.now[job.data] += 1
                self.most[job.data] = max(self.most[job.data], self.now[job.data])
                try:
                    await (self.go.wait() if job.data.startswith("slow") else asyncio.sleep(0))
                finally:
                    self.now[job.data] -= 1
                self.ran[job.data] += 1

        self.app.observers.append(self._count)

    def _count(self, queue: object, outcomes: list[object]) -> None:
        self.sent_back += sum(isinstance(one.verdict, Released) for one in outcomes)

    async def add(self, *names: str) -> None:
        await self.app.queue("post").add_many(list(names))


@pytest.fixture
def providers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Providers:
    monkeypatch.setattr(bulkheads, "LENDS_AFTER_SECONDS", 0.1)
    return Providers(tmp_path)


async def test_slow_providers_keep_only_their_own_jobs_waiting(providers: Providers) -> None:
    async with working(providers.app):
        await providers.add(*["slow-1"] * 30, *["slow-2"] * 30, *["quick"] * 30)
        await eventually(lambda: providers.ran["quick"] == 30)
        assert (providers.ran["slow-1"], providers.ran["slow-2"]) == (0, 0)
        assert providers.most["slow-1"] <= SLOTS
        assert providers.most["slow-2"] <= SLOTS
        await providers.add(*["quick"] * 30)
        await eventually(lambda: providers.ran["quick"] == 60)
        providers.go.set()
        await eventually(lambda: providers.ran["slow-1"] == providers.ran["slow-2"] == 30)
        await eventually_done(providers, 120)


async def eventually_done(providers: Providers, count: int) -> None:
    """All completed at their first attempt, though they have only one and most were sent back."""

    async def is_done() -> bool:
        stats = await providers.app.queue("post").stats()
        assert stats["failed"] == 0
        return stats["waiting"] + stats["active"] + stats["delayed"] == 0

    await eventually(is_done, 60)
    assert sum(providers.ran.values()) == count


async def test_one_quick_provider_alone_is_never_sent_back(providers: Providers) -> None:
    async with working(providers.app):
        await providers.add(*["quick"] * 500)
        await eventually(lambda: providers.ran["quick"] == 500)
    assert providers.sent_back == 0


async def test_one_slow_provider_alone_has_every_slot(providers: Providers) -> None:
    async with working(providers.app):
        await providers.add(*["slow"] * 20)
        await eventually(lambda: providers.sent_back > 0)
        assert providers.now["slow"] == SLOTS
        providers.go.set()
        await eventually(lambda: providers.ran["slow"] == 20)


async def test_plain_handlers_wait_for_providers_too(providers: Providers) -> None:
    go, counting, ran = threading.Event(), threading.Lock(), Counter[str]()
    now, most = Counter[str](), Counter[str]()

    @providers.app.job("calls", concurrency=SLOTS, attempts=1)
    def call(job: Job[str]) -> None:
        with job.holding(job.data):
            with counting:
                now[job.data] += 1
                most[job.data] = max(most[job.data], now[job.data])
            assert job.data == "quick" or go.wait(60)
            with counting:
                now[job.data] -= 1
                ran[job.data] += 1

    async with working(providers.app):
        jobs = await providers.app.queue("calls").add_many([*["slow"] * 12, *["quick"] * 12])
        try:
            await eventually(lambda: ran["quick"] == 12)
            assert (ran["slow"], most["slow"]) == (0, SLOTS)
        finally:
            go.set()
        for job in jobs:
            await job.result(timeout="60s")


async def test_while_the_clock_stands_nobody_lends_however_slow_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulkheads, "LENDS_AFTER_SECONDS", 0.06)
    clock, lent = MovableClock(), []
    held = bulkheads.Bulkheads(1, clock, lambda: lent.append(True))
    with held.hold("slow"):
        await asyncio.sleep(0.2)
        assert lent == []
        await clock.advance("1s")
        await eventually(lambda: lent == [True])


async def test_among_many_slots_a_job_that_waits_for_the_others_lends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hundred jobs at a provider that ends a thousand a second take a tenth of a second each, and none of them is held up."""
    monkeypatch.setattr(bulkheads, "LENDS_AFTER_SECONDS", 0.06)
    monkeypatch.setattr(bulkheads, "QUICK_PER_SECOND", 500.0)
    clock, lent = MovableClock(), []
    held = bulkheads.Bulkheads(100, clock, lambda: lent.append(True))
    with held.hold("busy"):
        await clock.advance("100ms")
        await asyncio.sleep(0.3)
        assert lent == []
        await clock.advance("100ms")
        await eventually(lambda: lent == [True])


async def test_those_sent_back_come_in_order_and_not_all_at_once() -> None:
    held = bulkheads.Bulkheads(2, MovableClock(), lambda: None)
    full = bulkheads._Bulkhead(held=2, typical=10.0)
    places = [held._seconds_to_return(full) for _ in range(20_000)]
    assert places == sorted(places)
    assert places[0] >= bulkheads.SHORTEST_WAIT_SECONDS
    assert places[-1] >= 20_000 / bulkheads.RETURNS_PER_SECOND - 1


async def test_a_run_without_an_end_is_ended_by_its_queue(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, job_timeout="300ms")
    app = Yamchi(settings, engine=MemoryEngine(SystemClock()))
    ended: list[str] = []

    @app.job("endless", attempts=1)
    async def endless(job: Job[str]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(job.id)

    @app.job("patient", attempts=1, timeout="1h")
    async def patient(job: Job[str]) -> str:
        await asyncio.sleep(1.5)
        return "done"

    async with working(app):
        await app.queue("endless").add("x", id="endless")
        kept = await app.queue("endless").add("x", id="own", timeout="1h")
        await app.queue("patient").add("x", id="patient")
        await eventually(lambda: "endless" in ended)
        failed = await eventually(lambda: finished(app, "endless"))
        assert failed.failed_reason == "endless took longer than the 300 ms that endless allows"
        await eventually(lambda: is_active(kept))
        assert (await eventually(lambda: finished(app, "patient"))).returned == "done"
        await kept.cancel()


async def is_active(job: Job[str]) -> bool:
    return (await job.refresh()).state == "active"


async def finished(app: Yamchi, name: str) -> Job[str] | None:
    job = await app.queue(name).job(name)
    return job if job.state in ("completed", "failed") else None


def test_no_limit_if_one_says_so(tmp_path: Path) -> None:
    app = Yamchi(Settings(home=tmp_path, job_timeout="0"), engine=MemoryEngine(SystemClock()))
    assert app.define("any").timeout is None
    assert Yamchi(Settings(home=tmp_path)).define("any").timeout == 3_600_000
    assert app.define("short", timeout="5s").timeout == 5_000


async def test_names_that_nobody_waits_for_any_more_are_forgotten() -> None:
    """A handler may hold the host of each customer, for as long as the process runs."""
    all_of_them = bulkheads.Bulkheads(SLOTS, SystemClock(), lambda: None)
    with all_of_them.hold("slow"):
        for number in range(3 * bulkheads.MOST_KNOWN):
            with all_of_them.hold(f"customer-{number}"):
                assert len(all_of_them._bulkheads) <= bulkheads.MOST_KNOWN
        assert all_of_them._bulkheads["slow"].held == 1
    assert all_of_them._bulkheads["slow"].held == 0
