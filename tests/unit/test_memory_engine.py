"""The memory engine's heap of delayed jobs: what was left in it by an earlier state of a job counts for nothing."""

import pytest

from yamchi.queues.engines.memory import MemoryEngine
from yamchi.queues.records import Completed, NewJob, Released, RetryAt
from yamchi.testing import MovableClock

LEASE = 30_000
HOUR = 3_600_000


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def engine(clock: MovableClock) -> MemoryEngine:
    return MemoryEngine(clock)


async def _add(engine: MemoryEngine, job_id: str, run_at: int) -> None:
    await engine.add("q", [NewJob(job_id, "work", b"1", run_at=run_at)])


async def _claimed(engine: MemoryEngine) -> list[str]:
    return [claim.job.id for claim in (await engine.exchange("q", [], 10, LEASE, "w")).claims]


async def test_a_job_that_was_promoted_and_then_delayed_again_waits_for_its_new_moment(
    engine: MemoryEngine, clock: MovableClock
) -> None:
    start = clock.now()
    await _add(engine, "a", start + HOUR)
    await engine.promote("q", ["a"])
    (claim,) = (await engine.exchange("q", [], 1, LEASE, "w")).claims
    await engine.exchange("q", [RetryAt(claim, start + 2 * HOUR, "busy")], 0, LEASE, "w")
    assert engine.next_due("q") == start + 2 * HOUR, "the moment of before is no longer one"
    await clock.advance("1h")
    assert await _claimed(engine) == []
    assert (await engine.counts("q"))["delayed"] == 1
    await clock.advance("1h")
    assert await _claimed(engine) == ["a"]


async def test_a_job_that_became_due_sooner_is_due_once(engine: MemoryEngine, clock: MovableClock) -> None:
    start = clock.now()
    await _add(engine, "a", start + 2 * HOUR)
    await engine.promote("q", ["a"])
    (claim,) = (await engine.exchange("q", [], 1, LEASE, "w")).claims
    await engine.exchange("q", [Released(claim, start + HOUR)], 0, LEASE, "w")
    await clock.advance("1h")
    (claim,) = (await engine.exchange("q", [], 1, LEASE, "w")).claims
    await engine.exchange("q", [Completed(claim)], 0, LEASE, "w")
    await clock.advance("1h")
    assert await _claimed(engine) == [], "it is completed; what is left in the heap does not bring it back"
    assert (await engine.counts("q"))["completed"] == 1
    assert engine.next_due("q") is None


async def test_a_delayed_job_that_is_gone_is_due_never(engine: MemoryEngine, clock: MovableClock) -> None:
    start = clock.now()
    for job_id, hours in (("removed", 1), ("cancelled", 2), ("stays", 3)):
        await _add(engine, job_id, start + hours * HOUR)
    await engine.remove("q", ["removed"])
    await engine.cancel("q", ["cancelled"])
    assert engine.next_due("q") == start + 3 * HOUR
    await clock.advance("3h")
    assert await _claimed(engine) == ["stays"]


@pytest.mark.parametrize("act", ["cancel", "retry later", "complete"])
async def test_what_is_left_in_the_heap_brings_nothing_back(
    engine: MemoryEngine, clock: MovableClock, act: str
) -> None:
    """Though nobody asked meanwhile when the next one is due, which would have cleared the heap."""
    due = clock.now() + HOUR
    await _add(engine, "a", due)
    if act == "cancel":
        await engine.cancel("q", ["a"])
    else:
        await engine.promote("q", ["a"])
        (claim,) = (await engine.exchange("q", [], 1, LEASE, "w")).claims
        later = RetryAt(claim, due + HOUR, "busy")
        await engine.exchange("q", [later if act == "retry later" else Completed(claim)], 0, LEASE, "w")
    before = await engine.counts("q")
    await clock.advance("61m")
    assert await _claimed(engine) == []
    assert await engine.counts("q") == before


async def test_delayed_jobs_come_at_their_moments_and_not_a_millisecond_before(
    engine: MemoryEngine, clock: MovableClock
) -> None:
    start = clock.now()
    for job_id, run_at in (("second", start + 2_000), ("first", start + 1_000), ("third", start + 3_000)):
        await _add(engine, job_id, run_at)
    await clock.advance(0.999)
    assert (await _claimed(engine), engine.next_due("q")) == ([], start + 1_000)
    await clock.advance(0.001)
    assert (await _claimed(engine), engine.next_due("q")) == (["first"], start + 2_000)
    await clock.advance("2s")
    assert (await _claimed(engine), engine.next_due("q")) == (["second", "third"], None)
