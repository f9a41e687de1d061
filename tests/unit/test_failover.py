"""A queue is one queue, whichever side is in use: pauses, rate limits, schedules and cleaning hold on both."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from yamchi import Job, Yamchi
from yamchi.errors import EngineUnavailable, StorageFull
from yamchi.queues.engines.base import Engine, Exchange, RateLimit
from yamchi.queues.engines.memory.spool import MemorySpool
from yamchi.queues.engines.sqlite import SqliteEngine
from yamchi.queues.engines.sqlite.spool import SqliteSpool
from yamchi.queues.failover import Spool, with_failover
from yamchi.queues.options import JobOptions
from yamchi.queues.records import Claim, Completed, NewJob
from yamchi.settings import Settings
from yamchi.testing import MovableClock, eventually

LEASE = 30_000
MINUTE = 60_000


def _while_there(name: str) -> Callable[..., Awaitable[Any]]:
    async def call(self: "Broker", *arguments: Any) -> Any:
        if not self.is_there:
            raise EngineUnavailable("Nobody answers.")
        return await getattr(SqliteEngine, name)(self, *arguments)

    return call


class Broker(SqliteEngine):
    """A broker that can be away: then no call is answered."""

    type = "broker"
    is_there = True


for _name in vars(SqliteEngine):
    if (
        not _name.startswith("_")
        and asyncio.iscoroutinefunction(vars(SqliteEngine)[_name])
        and _name != "close"
    ):
        setattr(Broker, _name, _while_there(_name))


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def broker(tmp_path: Path, clock: MovableClock) -> AsyncIterator[Broker]:
    engine = Broker(tmp_path / "broker.db", clock)
    yield engine
    await engine.close()


@pytest.fixture(params=["sqlite", "memory"])
async def spool(request: pytest.FixtureRequest, tmp_path: Path, clock: MovableClock) -> AsyncIterator[Spool]:
    engine = MemorySpool(clock) if request.param == "memory" else SqliteSpool(tmp_path / "spool.db", clock)
    yield engine
    await engine.close()


Open = Callable[[], Awaitable[Engine]]
AddUnanswered = Callable[..., Awaitable[None]]
FallSilent = Callable[[], AbstractContextManager[None]]


@pytest.fixture
async def start(broker: Broker, spool: Spool) -> AsyncIterator[Open]:
    """Each call is another process on the same broker and spool."""
    engines: list[Engine] = []

    async def start() -> Engine:
        engine = with_failover(broker, spool, lambda before, after: None, lambda queue: True)
        await engine.open()
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        await engine.close()


def _job(number: str, **options: Any) -> NewJob:
    return NewJob(id=number, name="count", payload=number.encode(), **options)


async def _claimed(engine: Engine, want: int = 10) -> list[str]:
    return [claim.job.id for claim in await _claims(engine, want)]


async def _claims(engine: Engine, want: int) -> list[Claim]:
    return (await engine.exchange("q", [], want, LEASE, "worker")).claims


async def _back_on(engine: Engine, kind: str) -> None:
    await eventually(lambda: engine.type == kind)


async def test_the_line_of_a_switch_says_why_also_of_a_broker_that_says_nothing(
    start: Open, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        broker.is_there = False
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr("yamchi.queues.failover.sides.CALL_SECONDS", 0.1)
    engine = await start()
    monkeypatch.setattr(broker, "add", hang)
    with capture_logs() as lines:
        assert await engine.add("q", [_job("1")]) == [True]
    (line,) = (line["event"] for line in lines if "switched" in line["event"])
    assert line.endswith(": broker did not answer within 0.1 s")


async def test_a_broker_that_goes_away_as_it_is_asked_once_more_fails_nobody_s_add(
    start: Open, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count()

    async def lose_the_connection(queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        broker.is_there = next(calls) == 0  # the first time it is only the connection
        raise EngineUnavailable("The connection was lost.")

    engine = await start()
    monkeypatch.setattr(broker, "add", lose_the_connection)
    assert await engine.add("q", [_job("1")]) == [True]
    assert engine.type != "broker"


async def test_a_broker_that_is_away_does_not_hide_what_stalled_in_the_spool(
    start: Open, broker: Broker, spool: Spool, clock: MovableClock
) -> None:
    engine = await start()
    await spool.add("q", [_job("1")])
    await spool.exchange("q", [], 1, LEASE, "one that died")
    await clock.advance(2 * LEASE / 1_000)
    broker.is_there = False
    assert [job.id for job, _ in await engine.recover("q")] == ["1"]


@pytest.fixture
def fall_silent(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> FallSilent:
    """Meanwhile the broker takes jobs, and falls silent."""
    add = broker.add

    async def add_and_fall_silent(queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        await add(queue, jobs)
        broker.is_there = False
        raise EngineUnavailable("Nobody answers.")

    @contextmanager
    def fall_silent() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(broker, "add", add_and_fall_silent)
            yield

    return fall_silent


@pytest.fixture
def add_unanswered(fall_silent: FallSilent) -> AddUnanswered:
    """Adds jobs that the broker takes as it falls silent."""

    async def add_unanswered(engine: Engine, *jobs: NewJob) -> None:
        with fall_silent():
            await engine.add("q", jobs)

    return add_unanswered


@pytest.mark.parametrize("keep_completed", [0, 10])
async def test_a_job_that_the_broker_took_without_an_answer_does_not_run_there_once_more(
    start: Open, broker: Broker, add_unanswered: AddUnanswered, keep_completed: int
) -> None:
    engine = await start()
    await add_unanswered(engine, _job("1", options=JobOptions(keep_completed=keep_completed)), _job("2"))
    (held,) = (await engine.exchange("q", [], 1, LEASE, "worker")).claims
    assert held.job.id == "1"
    await engine.exchange("q", [Completed(held)], 0, LEASE, "worker")
    broker.is_there = True
    await _back_on(engine, "broker")
    assert await _claimed(engine) == ["2"], "it waited in the spool, and is one job on the broker"


async def test_a_job_that_the_broker_took_without_an_answer_does_not_begin_there_while_it_runs_here(
    start: Open, broker: Broker, add_unanswered: AddUnanswered
) -> None:
    engine = await start()
    await add_unanswered(engine, _job("1"))
    (held,) = (await engine.exchange("q", [], 1, LEASE, "worker")).claims
    broker.is_there = True
    await _back_on(engine, "broker")
    assert await _claimed(engine) == []
    assert (await engine.exchange("q", [Completed(held)], 0, LEASE, "worker")).settled == ["1"]


async def test_a_job_that_another_process_is_moving_is_left_on_the_broker(
    start: Open, broker: Broker, spool: Spool, add_unanswered: AddUnanswered
) -> None:
    engine = await start()
    await add_unanswered(engine, _job("1"))
    moving = await spool.take_pending("q", 10, LEASE, "another mover")
    broker.is_there = True
    await spool.drop("q", moving)
    await spool.end_move("q", "another mover")
    await _back_on(engine, "broker")
    assert await _claimed(engine) == ["1"]


async def test_what_the_broker_took_without_an_answer_as_it_was_moved_does_not_run_there_once_more(
    start: Open, broker: Broker, fall_silent: FallSilent
) -> None:
    engine = await start()
    broker.is_there = False
    await engine.counts("q")
    await engine.add("q", [_job("1"), _job("2")])
    with fall_silent():
        broker.is_there = True
        await eventually(lambda: not broker.is_there)
        held = await eventually(lambda: _claims(engine, 1))
        await engine.exchange("q", [Completed(held[0])], 0, LEASE, "worker")
    broker.is_there = True
    await _back_on(engine, "broker")
    assert await _claimed(engine) == ["2"]


async def test_a_job_in_doubt_that_was_moved_is_in_doubt_no_longer(
    start: Open, broker: Broker, spool: Spool, add_unanswered: AddUnanswered
) -> None:
    engine = await start()
    await add_unanswered(engine, _job("1"))
    assert await spool.spooled("any") == ["q"]
    broker.is_there = True

    async def is_empty() -> bool:
        return not await spool.spooled("any")

    await eventually(is_empty)
    await _back_on(engine, "broker")


@pytest.mark.parametrize("keep_completed", [0, 10])
async def test_a_job_in_doubt_that_another_process_runs_does_not_run_on_the_broker_once_more(
    start: Open, broker: Broker, add_unanswered: AddUnanswered, keep_completed: int
) -> None:
    producer, worker = await start(), await start()
    await add_unanswered(producer, _job("1", options=JobOptions(keep_completed=keep_completed)))
    (held,) = (await worker.exchange("q", [], 1, LEASE, "worker")).claims
    await worker.exchange("q", [Completed(held)], 0, LEASE, "worker")
    broker.is_there = True
    await _back_on(producer, "broker")
    await _back_on(worker, "broker")
    assert await _claimed(worker) == []


async def test_a_job_in_doubt_is_remembered_though_its_process_dies(
    start: Open, broker: Broker, add_unanswered: AddUnanswered
) -> None:
    producer = await start()
    await add_unanswered(producer, _job("1"))
    await producer.close()
    worker = await start()
    (held,) = (await worker.exchange("q", [], 1, LEASE, "worker")).claims
    await worker.exchange("q", [Completed(held)], 0, LEASE, "worker")
    broker.is_there = True
    await _back_on(worker, "broker")
    assert await _claimed(worker) == []


async def test_a_moment_of_a_schedule_that_the_broker_took_without_an_answer_does_not_run_there_once_more(
    start: Open, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, fire = await start(), broker.fire

    async def fire_and_fall_silent(*given: Any) -> bool:
        await fire(*given)
        broker.is_there = False
        raise EngineUnavailable("Nobody answers.")

    with monkeypatch.context() as patch:
        patch.setattr(broker, "fire", fire_and_fall_silent)
        assert await engine.fire("nightly", 200, "q", _job("nightly@200"))
    (held,) = (await engine.exchange("q", [], 1, LEASE, "worker")).claims
    await engine.exchange("q", [Completed(held)], 0, LEASE, "worker")
    broker.is_there = True
    await _back_on(engine, "broker")
    assert await _claimed(engine) == []


# ── Pauses ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_queue_paused_before_the_outage_runs_nothing_during_it(start: Open, broker: Broker) -> None:
    engine = await start()
    await engine.pause("q")
    broker.is_there = False
    await engine.add("q", [_job("1")])
    assert await engine.paused("q")
    assert await _claimed(engine) == []
    await engine.resume("q")
    assert await _claimed(engine) == ["1"]


async def test_a_queue_paused_elsewhere_runs_nothing_during_the_outage(
    start: Open, broker: Broker, spool: Spool
) -> None:
    engine = await start()
    assert await _claimed(engine) == []
    await broker.pause("q")  # by another machine, or by Bull Board
    await eventually(lambda: spool.paused("q"))
    broker.is_there = False
    await engine.add("q", [_job("1")])
    assert await _claimed(engine) == []


async def test_a_queue_resumed_elsewhere_runs_during_the_outage(
    start: Open, broker: Broker, spool: Spool
) -> None:
    engine = await start()
    await engine.pause("q")
    assert await _claimed(engine) == []
    await broker.resume("q")

    async def is_resumed() -> bool:
        return not await spool.paused("q")

    await eventually(is_resumed)
    broker.is_there = False
    await engine.add("q", [_job("1")])
    assert await _claimed(engine) == ["1"]


async def test_a_pause_set_during_the_outage_holds_afterwards(start: Open, broker: Broker) -> None:
    engine = await start()
    broker.is_there = False
    await engine.add("q", [_job("1")])
    await engine.pause("q")
    broker.is_there = True
    await _back_on(engine, "broker")
    assert await broker.paused("q")
    assert await engine.paused("q")
    assert await _claimed(engine) == []
    assert (await engine.counts("q"))["waiting"] == 1, "it has moved over, and waits there"


async def test_a_resume_during_the_outage_holds_afterwards(start: Open, broker: Broker) -> None:
    engine = await start()
    await engine.pause("q")
    broker.is_there = False
    await engine.resume("q")
    broker.is_there = True
    await _back_on(engine, "broker")
    assert not await broker.paused("q")


async def test_a_pause_set_during_the_outage_survives_the_process(start: Open, broker: Broker) -> None:
    first = await start()
    broker.is_there = False
    await first.pause("q")
    await first.close()
    broker.is_there = True
    second = await start()
    assert second.type != "broker", "the broker hears of the pause before it is used"
    await _back_on(second, "broker")
    assert await broker.paused("q")


async def test_a_paused_worker_runs_nothing_through_an_outage(
    start: Open, broker: Broker, clock: MovableClock, tmp_path: Path
) -> None:
    """As a user sees it: pause, outage, add, back, resume."""
    app = Yamchi(Settings(home=tmp_path), clock=clock, engine=await start())
    ran: list[str] = []

    @app.job("q")
    async def count(job: Job[str]) -> None:
        ran.append(job.data)

    @app.job("other")
    async def note(job: Job[str]) -> None:
        ran.append(job.data)

    worker = app.worker()
    working = asyncio.create_task(worker.run())
    await app.queue("q").pause()
    broker.is_there = False
    await app.queue("q").add("paused")
    await app.queue("other").add("runs")
    await eventually(lambda: ran == ["runs"])
    broker.is_there = True
    await eventually(lambda: app.queue("q").engine.type == "broker")
    await app.queue("other").add("runs again")
    await eventually(lambda: ran == ["runs", "runs again"])
    await app.queue("q").resume()
    await eventually(lambda: ran == ["runs", "runs again", "paused"])
    worker.stop()
    await working
    await app.close()


# ── Rate limits ───────────────────────────────────────────────────────────────────────────────────────────────────

ONE_A_MINUTE = RateLimit.parse("1/min")


async def test_a_permit_taken_on_the_broker_counts_in_the_spool(
    start: Open, broker: Broker, clock: MovableClock
) -> None:
    engine = await start()
    now = clock.now()
    assert await engine.reserve("q", ONE_A_MINUTE, ["a"]) == [now]
    broker.is_there = False
    assert await engine.reserve("q", ONE_A_MINUTE, ["a", "b", "a"]) == [now + MINUTE, now, now + 2 * MINUTE]


async def test_a_permit_taken_on_the_broker_is_given_back_though_it_is_away(
    start: Open, broker: Broker, spool: Spool
) -> None:
    engine = await start()
    await engine.reserve("q", ONE_A_MINUTE, ["a"])
    broker.is_there = False
    await engine.refund("q", ONE_A_MINUTE, "a", 1)
    assert engine.type == spool.type


async def test_a_permit_taken_in_the_spool_counts_on_the_broker(
    start: Open, broker: Broker, clock: MovableClock
) -> None:
    engine = await start()
    broker.is_there = False
    now = clock.now()
    assert await engine.reserve("q", ONE_A_MINUTE, ["a"]) == [now]
    broker.is_there = True
    await _back_on(engine, "broker")
    assert await engine.reserve("q", ONE_A_MINUTE, ["a"]) == [now + MINUTE]
    await engine.refund("q", ONE_A_MINUTE, "a", 1)
    assert await engine.reserve("q", ONE_A_MINUTE, ["a"]) == [now + MINUTE], "given back, and taken again"
    await clock.advance("5m")
    assert await engine.reserve("q", ONE_A_MINUTE, ["a"]) == [clock.now()]


# ── Schedules ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_moment_in_the_outage_fires_and_does_not_look_like_a_new_schedule(
    start: Open, broker: Broker
) -> None:
    engine = await start()
    await engine.begin_schedule("nightly", 100)
    assert await engine.last_fired("nightly") == 100
    broker.is_there = False
    assert await engine.last_fired("nightly") == 100
    assert await engine.fire("nightly", 200, "q", _job("nightly@200"))
    broker.is_there = True
    await _back_on(engine, "broker")
    assert not await engine.fire("nightly", 200, "q", _job("nightly@200"))


async def test_a_moment_that_fired_before_the_outage_does_not_fire_in_it(start: Open, broker: Broker) -> None:
    engine = await start()
    assert await engine.fire("nightly", 200, "q", _job("nightly@200"))
    broker.is_there = False
    await engine.add("other", [_job("1")])
    assert not await engine.fire("nightly", 200, "q", _job("nightly@200"))


# ── Looking and acting ────────────────────────────────────────────────────────────────────────────────────────────


async def test_cleaning_reaches_both_sides(start: Open, broker: Broker, clock: MovableClock) -> None:
    engine = await start()
    for number in range(3):
        broker.is_there = number > 0
        if number == 1:
            await _back_on(engine, "broker")
        await engine.add("q", [_job(str(number))])
        await engine.cancel("q", [str(number)])
    assert (await engine.counts("q"))["cancelled"] == 3
    await clock.advance("1m")
    assert await engine.clean("q", "cancelled", 0, 2) == 2, "no more than asked for"
    assert await engine.clean("q", "cancelled", 0, 10) == 1
    assert (await engine.counts("q"))["cancelled"] == 0


async def test_a_job_that_ran_in_the_spool_is_changed_there(start: Open, broker: Broker) -> None:
    engine = await start()
    broker.is_there = False
    await engine.add("q", [_job("1")])
    await engine.cancel("q", ["1"])
    broker.is_there = True
    await _back_on(engine, "broker")
    assert await engine.update("q", "1", b'"changed"')
    job = await engine.get("q", "1")
    assert job
    assert job.payload == b'"changed"'


async def test_a_job_of_the_spool_logs_there_after_the_broker_is_back(start: Open, broker: Broker) -> None:
    engine = await start()
    broker.is_there = False
    await engine.add("q", [_job("1")])
    assert await _claimed(engine) == ["1"]
    broker.is_there = True
    await _back_on(engine, "broker")
    await engine.log("q", "1", ["halfway"])
    job = await engine.get("q", "1")
    assert job
    assert job.logs == ["halfway"]


async def test_a_running_job_does_not_fail_because_its_progress_can_not_be_told(
    start: Open, broker: Broker
) -> None:
    engine = await start()
    await engine.add("q", [_job("1")])
    (claim,) = (await engine.exchange("q", [], 1, LEASE, "worker")).claims
    broker.is_there = False
    await engine.progress(claim, b"50")


async def test_history_adds_up_both_sides(start: Open, broker: Broker, clock: MovableClock) -> None:
    engine = await start()
    for is_there in (False, True):
        broker.is_there = is_there
        if is_there:
            await _back_on(engine, "broker")
        await engine.add("q", [_job(f"{is_there}")])
        (claim,) = (await engine.exchange("q", [], 1, LEASE, "worker")).claims
        await engine.exchange("q", [Completed(claim)], 0, LEASE, "worker")
    (minute,) = await engine.history("q", 5)
    assert minute.completed == 2


# ── Events ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_who_waits_at_a_broker_that_goes_away_goes_on_at_the_spool(start: Open, broker: Broker) -> None:
    engine = await start()
    broker.is_there = False
    await asyncio.wait_for(engine.wake("q", 60_000), 20)
    assert engine.type != "broker"


async def test_events_of_other_processes_are_heard_during_an_outage_and_after_it(
    tmp_path: Path, broker: Broker, clock: MovableClock
) -> None:
    spool = SqliteSpool(tmp_path / "spool.db", clock)
    engine = with_failover(broker, spool, lambda before, after: None, lambda queue: True)
    heard: list[str] = []
    numbers = count()

    async def is_heard(other: SqliteEngine) -> bool:
        await other.add("q", [_job(str(next(numbers)))])
        (claim,) = (await other.exchange("q", [], 1, LEASE, "another process")).claims
        await other.exchange("q", [Completed(claim)], 0, LEASE, "another process")
        return bool(heard)

    broker.is_there = False
    async with Yamchi(Settings(home=tmp_path, plugins=()), engine=engine) as app:
        app.define("q")
        await engine.open()
        app.queue("q").on("completed", lambda job, result: heard.append(job.id))
        for place in ("spool", "broker"):
            heard.clear()
            other = SqliteEngine(tmp_path / f"{place}.db", clock)
            await other.open()
            await eventually(lambda other=other: is_heard(other))
            await other.close()
            broker.is_there = True
            await _back_on(engine, "broker")
    await spool.close()


# ── A spool in trouble ────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_the_broker_gives_out_is_not_lost_when_the_spool_can_not_settle(
    start: Open, broker: Broker, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await start()
    broker.is_there = False
    await engine.add("q", [_job("1")])
    (local,) = (await engine.exchange("q", [], 1, LEASE, "worker")).claims
    broker.is_there = True
    await _back_on(engine, "broker")
    await engine.add("q", [_job("2")])

    async def refuse(*given: Any) -> Exchange:
        raise StorageFull("The disk is full.")

    done = Completed(local)
    with monkeypatch.context() as trouble:
        trouble.setattr(spool, "exchange", refuse)
        got = await engine.exchange("q", [done], 1, LEASE, "worker")
        assert ([claim.job.id for claim in got.claims], got.unsettled) == (["2"], [done])
    got = await engine.exchange("q", got.unsettled, 0, LEASE, "worker")
    assert (got.settled, got.unsettled) == (["1"], [])


async def test_a_switch_during_an_exchange_settles_nothing_twice_and_claims_no_more_than_was_asked_for(
    start: Open, broker: Broker, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await start()
    await engine.add("q", [_job("1"), _job("2")])
    (claim,) = (await engine.exchange("q", [], 1, LEASE, "worker")).claims
    exchange = broker.exchange

    async def answer_and_go_away(*given: Any) -> Exchange:
        got = await exchange(*given)
        broker.is_there = False
        await engine.add("q", [_job("3")])  # who adds meanwhile notices first
        return got

    monkeypatch.setattr(broker, "exchange", answer_and_go_away)
    got = await engine.exchange("q", [Completed(claim)], 1, LEASE, "worker")
    assert engine.type == spool.type
    assert (got.settled, got.unsettled) == (["1"], [])
    assert [claim.job.id for claim in got.claims] == ["2"]
