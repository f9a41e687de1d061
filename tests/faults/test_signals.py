"""What a signal does to a worker in the middle of its work: asked to stop, gone at once, or asleep past its lease."""

import signal
from collections import Counter
from collections.abc import Callable

import pytest

from tests.faults.conftest import ENGINES
from tests.faults.harness import Site, Tally
from tests.scale import scaled
from yamchi import New

pytestmark = [pytest.mark.timeout(300), pytest.mark.parametrize("engine_name", ENGINES)]
MakeSite = Callable[..., Site]
Publish = Callable[[Tally], None]


async def test_sigterm_burns_no_attempt_and_runs_nothing_twice(
    make_site: MakeSite, engine_url: str, published: Publish
) -> None:
    jobs, stops = scaled(600, 5_000), scaled(3, 10)
    site = make_site(engine_url)
    await site.start_producer(0, jobs).ended()
    for stop in range(1, stops + 1):
        worker = site.start_worker()
        await site.ran(jobs * stop // (stops + 1))
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0, worker.log
    site.start_worker()
    await site.all_settled(jobs)
    tally = site.tally("SIGTERM workers", jobs)
    published(tally)
    assert (tally.lost, tally.duplicates) == (0, 0)
    assert Counter(entry.attempt for entry in site.entries("ran")) == {1: jobs}


async def test_sigterm_gives_back_what_is_not_done_in_time(make_site: MakeSite, engine_url: str) -> None:
    site = make_site(engine_url, attempts=1, settings={"SHUTDOWN_TIMEOUT": "300ms"})
    await site.queue.add_many([New({}, id=f"long-{n}", name="hold") for n in range(5)])
    first = site.start_worker()
    await site.until(lambda: len(site.entries("began")) == 5)
    first.signal(signal.SIGTERM)
    assert await first.ended() == 0, first.log
    site.open_gate()
    site.start_worker()
    await site.all_settled(5)
    assert (await site.queue.stats())["completed"] == 5, "the one attempt was given back, or they had failed"
    assert {entry.attempt for entry in site.entries("ran")} == {1}


async def test_a_job_that_kills_its_worker_fails_after_its_attempts(
    make_site: MakeSite, engine_url: str, published: Publish
) -> None:
    jobs, attempts = scaled(100, 1_000), 3
    site = make_site(engine_url, lease="1s")
    await site.queue.add({}, id="deadly", name="suicide", attempts=attempts)
    await site.start_producer(0, jobs).ended()
    for attempt in range(1, attempts + 1):
        worker = site.start_worker()
        await site.until(lambda n=attempt: len(site.entries("began")) == n)
        await worker.ended()
        site.kills += 1
        site.in_flight += await site.held_by(worker) - 1
    survivor = site.start_worker()
    await site.all_settled(jobs + 1)
    tally = site.tally("a job that kills its worker", jobs)
    published(tally)
    assert [entry.attempt for entry in site.entries("began")] == [1, 2, 3]
    failed = await site.queue.job("deadly")
    assert (failed.state, failed.attempts_made) == ("failed", attempts)
    assert "The worker stopped or lost its lease during attempt 3 of 3" in (failed.failed_reason or "")
    assert (await site.queue.dead_letters.get("deadly")).error == failed.failed_reason
    assert survivor.exit_code is None
    assert (tally.lost, (await site.queue.stats())["failed"]) == (0, 1)


async def test_the_neighbors_of_a_job_that_kills_its_worker_outlive_it(
    make_site: MakeSite, engine_url: str
) -> None:
    neighbors, attempts = 9, 3
    site = make_site(engine_url, lease="1s", pause=0, attempts=attempts)
    deadly = New({}, id="deadly", name="suicide")
    await site.queue.add_many([deadly, *(New({}, id=f"n{n}", name="work") for n in range(neighbors))])
    for attempt in range(1, attempts + 1):
        worker = site.start_worker()
        await site.until(lambda n=attempt: len(site.entries("began")) == n)
        await worker.ended()
    site.start_worker()
    await site.all_settled(neighbors + 1)
    failed = [job.id for job in await site.queue.jobs("failed")]
    assert "deadly" in failed
    assert len(failed) <= 3, "whoever ran beside it every time would have failed with it"


async def test_a_stale_worker_settles_nothing(make_site: MakeSite, engine_url: str) -> None:
    site = make_site(engine_url, lease="3s")
    await site.queue.add({}, id="held", name="hold")
    stale = site.start_worker()
    await site.until(lambda: site.entries("began"))
    await site.stall(stale)
    rival = site.start_worker()
    await site.until(lambda: [e for e in site.entries("began") if e.pid == rival.pid])
    site.open_gate()
    await site.all_settled(1)
    stale.signal(signal.SIGCONT)
    await site.until(lambda: "lost the lease" in stale.log or "its lease was lost" in stale.log)
    await site.queue.add({}, id="next", name="hold")
    await site.all_settled(2)
    kept = await site.queue.job("held")
    assert (kept.returned, kept.attempts_made) == ({"pid": rival.pid}, 2)
    assert (await site.queue.stats())["completed"] == 2


async def test_a_blocked_event_loop_keeps_its_lease(make_site: MakeSite, engine_url: str) -> None:
    site = make_site(engine_url, lease="3s")
    await site.queue.add({"seconds": 6.5}, id="long", name="block")
    busy = site.start_worker()
    await site.until(lambda: site.entries("began"))
    rival = site.start_worker()
    await site.all_settled(1)
    await site.queue.add({}, id="after", name="work")
    await site.all_settled(2)
    runs = [entry for entry in site.entries("began") if entry.job_id == "long"]
    assert [(entry.pid, entry.attempt) for entry in runs] == [(busy.pid, 1)]
    assert rival.exit_code is None
    assert "stalled" not in rival.log
