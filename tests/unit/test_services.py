"""Background services: whatever one raises, it is logged, shown and started again, and the process lives on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from io import StringIO
from typing import Any, NoReturn

import httpx2
import pytest

from yamchi import Job, Worker, Yamchi
from yamchi.clock import SystemClock
from yamchi.errors import ConfigurationError, Unrecoverable
from yamchi.observe.logging import configure
from yamchi.queues.engines.memory import MemoryEngine
from yamchi.queues.services import LONGEST_PAUSE, STEADY, Service, Services
from yamchi.settings import Settings
from yamchi.testing import MovableClock, eventually
from yamchi.web import create_app

LEASE = "1500ms"
"""Two thirds of it are how long a busy machine may keep a renewal waiting."""


class Unforeseen(BaseException):
    """Not even an Exception."""


class Flaky:
    """A service that raises these one after another, and then works."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.starts = 0
        self.works = asyncio.Event()

    async def run(self) -> None:
        self.starts += 1
        if self.errors:
            raise self.errors.pop(0)
        self.works.set()
        await asyncio.Event().wait()


@asynccontextmanager
async def working(app: Yamchi) -> AsyncIterator[Worker]:
    worker = app.worker()
    running = asyncio.create_task(worker.run())
    try:
        yield worker
        assert not running.done()
    finally:
        worker.stop()
        await running
        await app.close()


@pytest.fixture
def log() -> StringIO:
    lines = StringIO()
    configure("console", "info", lines)
    return lines


async def test_a_service_is_started_again_whatever_it_raises(log: StringIO) -> None:
    clock = MovableClock()
    flaky = Flaky(
        ValueError("odd"), Unrecoverable("said so"), SystemExit(3), KeyboardInterrupt(), Unforeseen(),
        asyncio.CancelledError(), MemoryError(),
    )  # fmt: skip
    service = Service("flaky", flaky.run, clock)
    running = asyncio.create_task(service.run())
    for starts in range(1, 8):
        await eventually(lambda starts=starts: flaky.starts == starts and service.state == "failing")
        await clock.advance("1m")
    await asyncio.wait_for(flaky.works.wait(), 10)
    assert (service.state, service.failures, service.error) == ("running", 7, "MemoryError")
    await clock.advance("1m")
    assert service.error is None
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "The service 'flaky' failed and starts again in 500 ms: odd" in log.getvalue()


async def test_pauses_grow_to_a_minute_and_begin_anew_after_a_good_while() -> None:
    clock = MovableClock()
    service = Service("flaky", _never, clock)
    pauses = []
    for _ in range(12):
        service.begin()
        pauses.append(service.fail(ValueError()))
    assert pauses[:4] == [500, 1_000, 2_000, 4_000]
    assert pauses[-1] == LONGEST_PAUSE
    service.begin()
    await clock.advance(timedelta(milliseconds=STEADY))
    assert service.fail(ValueError()) == 500


async def test_a_service_that_returns_is_not_started_again() -> None:
    services = Services(SystemClock())

    async def once() -> None:
        assert [service.name for service in services.running] == ["once"]

    await services.keep("once", once)
    assert services.running == []


def test_a_worker_runs_the_services_of_its_queues_and_those_of_no_queue() -> None:
    services = Services(SystemClock())
    services.add("always", _never)
    services.add("letters", _never, queues=["mail", "post"])
    assert set(services.declared(["mail"])) == {"always", "letters"}
    assert set(services.declared(["sms"])) == {"always"}


def test_two_services_need_two_names() -> None:
    services = Services(SystemClock())
    services.add("sweeper", _never)
    services.add("sweeper", _never)
    with pytest.raises(ConfigurationError, match="'sweeper'"):
        services.add("sweeper", Flaky().run)


async def test_jobs_run_beside_a_failing_service_and_readyz_shows_it(log: StringIO) -> None:
    app = Yamchi(engine=MemoryEngine(SystemClock()))
    ran = asyncio.Event()

    @app.job("hello")
    async def greet(job: Job[Any]) -> None:
        ran.set()

    async def broken() -> NoReturn:
        raise RuntimeError("password=hunter2 was refused")

    app.services.add("broken", broken)
    async with working(app), _client(app) as client:
        await eventually(lambda: bool(app.metrics.service_failures["broken"]))
        await app.queue("hello").add({})
        await asyncio.wait_for(ran.wait(), 10)
        answer = (await client.get("/readyz")).json()
        shown = {one["name"]: one for one in answer["services"]}
        assert answer["ready"] is True
        assert shown["broken"]["failures"] >= 1
        assert shown["broken"]["error"] == "password=*** was refused"
        assert shown["queue hello"]["state"] == shown["lease keeper"]["state"] == "running"
        metrics = (await client.get("/metrics")).text
        assert 'yamchi_service_failures_total{service="broken"}' in metrics
    assert "The service 'broken' failed" in log.getvalue()


@pytest.mark.parametrize("part", ["exchange", "wake", "recover"])
async def test_a_lane_that_fails_starts_again_and_its_running_jobs_go_on(part: str, log: StringIO) -> None:
    """Nobody knows why it would fail: so each of its calls raises what nobody catches, once, while a job runs."""
    engine = _Clumsy()
    app = Yamchi(Settings(lease=LEASE), engine=engine)
    began, finish = asyncio.Event(), asyncio.Event()
    runs: list[Any] = []

    @app.job("hello")
    async def greet(job: Job[Any]) -> None:
        began.set()
        await finish.wait()
        runs.append((job.data, job.attempts_made))

    async with working(app) as worker:
        await app.queue("hello").add(1)
        await asyncio.wait_for(began.wait(), 10)
        engine.fails_at = part
        await app.queue("hello").add(2)
        await eventually(lambda: bool(app.metrics.service_failures["queue hello"]))
        engine.fails_at = ""
        finish.set()
        await eventually(lambda: sorted(runs) == [(1, 1), (2, 1)])
        await eventually(lambda: all(runner.is_idle for runner in worker.runners))
        assert (await app.queue("hello").stats())["completed"] == 2
    assert "The work of queue hello was interrupted" in log.getvalue()


async def test_a_lane_that_fails_can_be_stopped_at_any_time() -> None:
    engine = _Clumsy()
    engine.fails_at = "exchange"
    app = Yamchi(engine=engine)

    @app.job("hello")
    async def greet(job: Job[Any]) -> None: ...

    async with working(app):
        await eventually(lambda: app.metrics.service_failures["queue hello"] >= 1)


async def test_the_lease_keeper_starts_again() -> None:
    engine = _Clumsy()
    engine.fails_at = "renew"
    app = Yamchi(Settings(lease=LEASE), engine=engine)
    finish = asyncio.Event()

    @app.job("hello")
    async def greet(job: Job[Any]) -> int:
        await finish.wait()
        return job.attempts_made

    async with working(app):
        await app.queue("hello").add({}, id="one")
        await eventually(lambda: app.metrics.service_failures["lease keeper"] >= 1)
        engine.fails_at = ""
        renewed = engine.renewals
        await eventually(lambda: engine.renewals > renewed + 3)
        finish.set()
        await eventually(lambda: app.metrics.jobs["hello", "greet", "completed"])


class _Clumsy(MemoryEngine):
    """One of its calls raises what nobody catches."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.fails_at, self.renewals = "", 0

    async def exchange(self, *arguments: Any) -> Any:
        self._may_fail("exchange")
        return await super().exchange(*arguments)

    async def wake(self, *arguments: Any) -> None:
        await super().wake(*arguments)
        self._may_fail("wake")

    async def recover(self, *arguments: Any) -> Any:
        self._may_fail("recover")
        return await super().recover(*arguments)

    async def renew(self, *arguments: Any) -> Any:
        self.renewals += 1
        self._may_fail("renew")
        return await super().renew(*arguments)

    def _may_fail(self, call: str) -> None:
        if call == self.fails_at:
            raise Unforeseen(call)


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt("^C"), Unforeseen("odd"), ValueError("half a pair: \ud83d"), ValueError("nul \0")],
    ids=["interrupt", "base", "surrogate", "nul"],
)
async def test_a_handler_may_raise_anything(error: BaseException) -> None:
    app = Yamchi(engine=MemoryEngine(SystemClock()))

    @app.job("hello", attempts=1)
    async def greet(job: Job[Any]) -> None:
        raise error

    async with working(app) as worker:
        await app.queue("hello").add({}, id="one")
        await eventually(lambda: bool(app.metrics.jobs) and all(runner.is_idle for runner in worker.runners))
        job = await app.queue("hello").job("one")
        assert job.state == "failed"
        assert type(error).__name__ in (job.failed_reason or "")
        letter = await app.queue("hello").dead_letters.get("one")
        assert letter.body.decode()


async def _never() -> None:
    await asyncio.Event().wait()


def _client(app: Yamchi) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(create_app(app))
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost")
