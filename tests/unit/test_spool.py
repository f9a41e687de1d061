"""A spool that is moved elsewhere: in order, by one mover at a time, and nobody runs what comes later meanwhile."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from yamchi.errors import ConfigurationError, EngineUnavailable, InvalidJob
from yamchi.queues.engines.memory.spool import MemorySpool
from yamchi.queues.engines.sqlite import SqliteEngine
from yamchi.queues.engines.sqlite.spool import SqliteSpool
from yamchi.queues.failover import Spool, moving, with_failover
from yamchi.queues.options import JobOptions
from yamchi.queues.records import Claim, NewJob
from yamchi.testing import MovableClock, eventually

LEASE = 30_000
FIVE = ["1", "2", "3", "4", "5"]


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture(params=["memory", "sqlite"])
async def spool(request: pytest.FixtureRequest, tmp_path: Path, clock: MovableClock) -> AsyncIterator[Spool]:
    engine = MemorySpool(clock) if request.param == "memory" else SqliteSpool(tmp_path / "spool.db", clock)
    await engine.open()
    await engine.add("q", [_job(number) for number in FIVE])
    yield engine
    await engine.close()


@pytest.fixture
async def shared(tmp_path: Path, clock: MovableClock) -> AsyncIterator[SqliteSpool]:
    """A spool that several processes share."""
    engine = SqliteSpool(tmp_path / "shared.db", clock)
    await engine.open()
    await engine.add("q", [_job(number) for number in FIVE])
    yield engine
    await engine.close()


def _job(number: str) -> NewJob:
    return NewJob(id=number, name="count", payload=number.encode(), options=JobOptions(attempts=2))


def _ids(claims: Sequence[Claim]) -> list[str]:
    return [claim.job.id for claim in claims]


async def _taken(spool: Spool) -> list[Claim]:
    return (await spool.exchange("q", [], 10, LEASE, "worker")).claims


async def test_what_is_carried_is_not_begun_and_comes_back_in_its_place(spool: Spool) -> None:
    assert _ids(await spool.take_pending("q", 2, LEASE, "a")) == ["1", "2"]
    assert await spool.spooled("b") == ["q"]
    assert await _taken(spool) == []
    await spool.end_move("q", "a")
    claims = await _taken(spool)
    assert _ids(claims) == FIVE
    assert {claim.job.attempts_made for claim in claims} == {1}, "being moved is no attempt"
    assert await spool.spooled("b") == ["q"], "they may have arrived where they were going"
    assert await spool.take_pending("q", 5, LEASE, "b") == [], "what runs here does not wait"
    assert sorted(await spool.doubtful_begun("q", "b")) == ["1", "2"]
    await spool.forget_doubts("q", ["1", "2"])
    await spool.end_move("q", "b")
    assert await spool.spooled("b") == []


async def test_no_more_is_carried_than_was_asked_for(spool: Spool, clock: MovableClock) -> None:
    later = [replace(_job(number), run_at=clock.now() + 60_000) for number in ("6", "7", "8")]
    await spool.add("q", later)
    assert _ids(await spool.take_pending("q", 6, LEASE, "a")) == [*FIVE, "6"]
    assert _ids(await spool.take_pending("q", 6, LEASE, "a")) == ["7", "8"]


async def test_what_has_been_carried_is_gone(spool: Spool) -> None:
    await spool.drop("q", await spool.take_pending("q", 3, LEASE, "a"))
    held = await spool.take_pending("q", 3, LEASE, "a")
    assert (await spool.spooled("a"), await spool.spooled("b")) == ([], ["q"]), (
        "on its way, in hands of another"
    )
    assert _ids(held) == ["4", "5"]
    await spool.end_move("q", "a")
    assert _ids(await _taken(spool)) == ["4", "5"]


async def test_one_carries_at_a_time(shared: SqliteSpool) -> None:
    assert _ids(await shared.take_pending("q", 2, LEASE, "a")) == ["1", "2"]
    assert await shared.take_pending("q", 2, LEASE, "b") == []
    await shared.end_move("q", "a")
    assert _ids(await shared.take_pending("q", 2, LEASE, "b")) == ["1", "2"]


async def test_what_a_dead_mover_left_is_moved_first(shared: SqliteSpool, clock: MovableClock) -> None:
    await shared.take_pending("q", 2, LEASE, "dead")
    await clock.advance(LEASE / 1000 + 1)
    assert _ids(await shared.take_pending("q", 10, LEASE, "b")) == FIVE


async def test_what_a_dead_mover_left_is_run_first(shared: SqliteSpool, clock: MovableClock) -> None:
    await shared.take_pending("q", 2, LEASE, "dead")
    await clock.advance(LEASE / 1000 + 1)
    assert await shared.recover("q") == [], "nobody ran it, so it has not stalled"
    claims = await _taken(shared)
    assert _ids(claims) == FIVE
    assert {claim.job.attempts_made for claim in claims} == {1}


async def test_what_began_here_when_a_move_took_too_long_stays_in_doubt(
    shared: SqliteSpool, clock: MovableClock
) -> None:
    slow = await shared.take_pending("q", 5, LEASE, "slow")
    await clock.advance(LEASE / 1000 + 1)
    assert _ids(await _taken(shared)) == FIVE
    await shared.drop("q", slow)
    await shared.take_pending("q", 5, LEASE, "b")
    assert await shared.doubtful_begun("q", "b") == FIVE


class Broker(SqliteEngine):
    """A broker that can be away."""

    type = "broker"
    is_there = True

    async def add(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        await self.ping()
        return await super().add(queue, jobs)

    async def ping(self) -> None:
        if not Broker.is_there:
            raise EngineUnavailable("Nobody answers.")


async def test_a_broker_that_goes_away_while_the_spool_is_carried_gets_it_later(
    spool: Spool, tmp_path: Path, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(tmp_path / "broker.db", clock)
    engine = with_failover(broker, spool, lambda origin, target: None, lambda queue: True)
    refused = []

    async def refuse(self: Broker, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        refused.append([job.id for job in jobs])
        raise EngineUnavailable("The connection was lost.")

    with monkeypatch.context() as patch:
        patch.setattr(Broker, "add", refuse)
        await engine.open()
        await eventually(lambda: refused)
    await eventually(lambda: _is_waiting(broker, FIVE))
    await engine.close()


async def _is_waiting(broker: Broker, ids: Sequence[str]) -> bool:
    return [job.id for job in (await broker.page("q", "waiting", "", 0, 10)).jobs] == list(ids)


@pytest.mark.parametrize("moment", ["once it is on the broker", "when those that were cancelled are known"])
async def test_a_job_that_is_cancelled_while_it_is_carried_is_not_run(
    spool: Spool, tmp_path: Path, clock: MovableClock, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    broker = Broker(tmp_path / "broker.db", clock)
    engine = with_failover(broker, spool, lambda origin, target: None, lambda queue: True)
    act = broker.add if moment == "once it is on the broker" else spool.cancelled
    outcomes = []

    async def act_beside_a_cancellation(queue: str, given: Sequence[Any]) -> Any:
        answer = await act(queue, given)
        outcomes.append(await engine.cancel("q", ["3"]))
        return answer

    monkeypatch.setattr(act.__self__, act.__name__, act_beside_a_cancellation)
    await engine.open()
    await eventually(lambda: _is_waiting(broker, ["1", "2", "4", "5"]))
    assert outcomes == [{"3": "active"}], "whoever moves it is asked to stop"
    await eventually(lambda: engine.type == "broker")
    cancelled = await engine.get("q", "3")
    assert cancelled
    assert cancelled.state == "cancelled"
    await engine.close()


async def test_the_broker_is_not_used_while_another_process_carries(
    shared: SqliteSpool, tmp_path: Path, clock: MovableClock
) -> None:
    held = await shared.take_pending("q", 10, LEASE, "another process")
    broker = Broker(tmp_path / "broker.db", clock)
    engine = with_failover(broker, shared, lambda origin, target: None, lambda queue: True)
    await engine.open()
    assert engine.type == "sqlite"
    await engine.add("q", [_job("6")])
    assert await broker.counts("q") == {**await broker.counts("q"), "waiting": 0}
    await broker.add("q", [_job(claim.job.id) for claim in held])
    await shared.drop("q", held)
    await shared.end_move("q", "another process")
    await eventually(lambda: _is_waiting(broker, [*FIVE, "6"]))
    await eventually(lambda: engine.type == "broker")
    await engine.close()


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_start_on_the_spool_is_told_as_every_switch_is(
    shared: SqliteSpool, tmp_path: Path, clock: MovableClock, is_there: bool
) -> None:
    switches: list[tuple[str, str]] = []
    broker = (Broker if is_there else AbsentBroker)(tmp_path / "broker.db", clock)
    engine = with_failover(
        broker, shared, lambda origin, target: switches.append((origin, target)), lambda queue: True
    )
    with capture_logs() as lines:
        await engine.open()
    assert engine.type == "sqlite"
    assert switches == [("broker", "sqlite")]
    told = [line["log_level"] for line in lines if "queues switched from broker to sqlite" in line["event"]]
    assert told == ["warning"]
    await engine.close()


class AbsentBroker(Broker):
    """A broker that nobody can reach."""

    async def open(self) -> None:
        raise EngineUnavailable("Nobody answers.")

    async def ping(self) -> None:
        raise EngineUnavailable("Nobody answers.")


class PickyBroker(Broker):
    """A broker that can't keep one of the jobs, and then keeps none of its batch."""

    async def add(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        if any(job.id == "3" for job in jobs):
            raise InvalidJob("The broker can't keep job 3.")
        return await super().add(queue, jobs)


async def test_a_job_that_the_broker_refuses_does_not_hold_up_the_others(
    spool: Spool, tmp_path: Path, clock: MovableClock
) -> None:
    await spool.add("z", [_job("6")])
    broker = PickyBroker(tmp_path / "broker.db", clock)
    engine = with_failover(broker, spool, lambda origin, target: None, lambda queue: True)
    await engine.open()
    await eventually(lambda: engine.type == "broker")
    assert await _is_waiting(broker, ["1", "2", "4", "5"])
    assert (await broker.counts("z"))["waiting"] == 1
    refused = await engine.get("q", "3")
    assert refused
    assert (refused.state, refused.failed_reason) == ("failed", "The broker can't keep job 3.")
    assert [letter.id for letter in (await engine.letters("q", "", 0, 10)).letters] == ["3"]
    await engine.close()


class RefusingBroker(AbsentBroker):
    """A broker that answers, and takes our password or certificate no longer."""

    looks = 0

    async def open(self) -> None:
        self.looks += 1
        if self.looks == 1:
            raise EngineUnavailable("Nobody answers.")
        raise ConfigurationError("The broker refuses the password: correct it in the URL.")


async def test_a_broker_that_refuses_us_is_told_of_once(
    shared: SqliteSpool, tmp_path: Path, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "PROBE_SECONDS", 0.01)
    broker = RefusingBroker(tmp_path / "broker.db", clock)
    engine = with_failover(broker, shared, lambda origin, target: None, lambda queue: True)
    with capture_logs() as lines:
        await engine.open()
        await eventually(lambda: broker.looks > 5)
        await engine.close()
    told = [line for line in lines if line["log_level"] in ("warning", "error") and "moved" in line["event"]]
    assert [line["event"] for line in told] == [
        "the spool can't be moved: The broker refuses the password: correct it in the URL."
    ]


class ShakyBroker(Broker):
    """A broker that is lost during the first move, and then refuses one job for good."""

    adds = 0

    async def add(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        self.adds += 1
        if self.adds == 1:
            raise EngineUnavailable("The connection was lost.")
        if any(job.id == "3" for job in jobs):
            raise InvalidJob("Job 3 is too large.")
        return await super().add(queue, jobs)


async def test_a_job_in_doubt_that_the_broker_refuses_does_not_keep_the_others_in_the_spool(
    spool: Spool, tmp_path: Path, clock: MovableClock
) -> None:
    broker = ShakyBroker(tmp_path / "broker.db", clock)
    engine = with_failover(broker, spool, lambda origin, target: None, lambda queue: True)
    await engine.open()
    await eventually(lambda: engine.type == "broker")
    assert await _is_waiting(broker, ["1", "2", "4", "5"])
    refused = await engine.get("q", "3")
    assert refused
    assert refused.state == "failed"
    await engine.close()


async def test_a_job_in_doubt_that_was_cancelled_on_its_way_does_not_keep_the_others_in_the_spool(
    spool: Spool, tmp_path: Path, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(tmp_path / "broker.db", clock)
    engine = with_failover(broker, spool, lambda origin, target: None, lambda queue: True)
    asked = []

    async def cancel_and_be_lost(queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        asked.append(await spool.cancel("q", ["3"]))
        raise EngineUnavailable("The connection was lost.")

    with monkeypatch.context() as patch:
        patch.setattr(broker, "add", cancel_and_be_lost)
        await engine.open()
        await eventually(lambda: asked)
    await eventually(lambda: engine.type == "broker")
    assert await _is_waiting(broker, ["1", "2", "4", "5"])
    await engine.close()
