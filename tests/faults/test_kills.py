"""SIGKILL at random moments: nothing acknowledged is lost, and only what was in flight runs twice."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.faults.conftest import ENGINES
from tests.faults.harness import Monkey, Site, Tally
from tests.scale import scaled

pytestmark = pytest.mark.timeout(600)
MakeSite = Callable[..., Site]
Publish = Callable[[Tally], None]


@pytest.mark.parametrize("engine_name", ENGINES)
async def test_two_workers_share_the_work(make_site: MakeSite, engine_url: str, published: Publish) -> None:
    jobs = scaled(400, 2_000)
    site = make_site(engine_url)
    await site.queue.pause()
    await site.start_producer(0, jobs).ended()
    workers = [site.start_worker() for _ in range(2)]
    await site.all_alive(workers)
    await site.queue.resume()
    await site.all_settled(jobs)
    share = Counter(entry.pid for entry in site.entries("ran"))
    tally = site.tally("two workers", jobs)
    published(tally)
    assert (tally.lost, tally.duplicates, tally.runs) == (0, 0, jobs)
    assert {entry.attempt for entry in site.entries("ran")} == {1}
    assert all(share[worker.pid] >= jobs * 0.2 for worker in workers), f"shares: {share}"


async def test_processes_that_add_and_work_at_once_on_one_file_never_lock_each_other_out(
    make_site: MakeSite, sqlite_url: str, published: Publish
) -> None:
    jobs = scaled(400, 5_000)
    site = make_site(sqlite_url, pause=0.005)
    workers = [site.start_worker() for _ in range(2)]
    producers = [site.start_producer(n * jobs // 2, (n + 1) * jobs // 2) for n in range(2)]
    assert [await producer.ended() for producer in producers] == [0, 0], site.logs()
    await site.all_settled(jobs)
    tally = site.tally("two workers and two producers at once", jobs)
    published(tally)
    assert (tally.lost, tally.duplicates) == (0, 0)
    assert "locked" not in site.logs()
    assert all(worker.exit_code is None for worker in workers)


@pytest.mark.parametrize("engine_name", ENGINES)
async def test_killed_workers_lose_nothing(
    make_site: MakeSite, engine_url: str, engine_name: str, published: Publish
) -> None:
    jobs, kills = scaled(1_500, 5_000 if engine_name == "sqlite" else 10_000), scaled(4, 10)
    site = make_site(engine_url)
    await Monkey(site).rage(kills, jobs)
    await site.all_settled(jobs)
    tally = site.tally("SIGKILL workers at random", jobs)
    published(tally)
    assert (tally.lost, tally.kills) == (0, kills)
    assert tally.duplicates <= tally.in_flight, tally
    assert (await site.queue.stats())["completed"] == jobs


@pytest.mark.parametrize("engine_name", ENGINES)
async def test_a_killed_producer_loses_no_acknowledged_job_and_may_add_them_all_again(
    make_site: MakeSite, engine_url: str, published: Publish
) -> None:
    jobs = scaled(600, 5_000)
    site = make_site(engine_url, pause=0)
    site.start_worker()
    for moment in (jobs // 5, jobs // 2):
        producer = site.start_producer(0, jobs)
        await site.until(lambda moment=moment: len({e.job_id for e in site.entries("acked")}) >= moment)
        producer.kill()
    assert await site.start_producer(0, jobs).ended() == 0
    await site.all_settled(jobs)
    tally = site.tally("SIGKILL the producer twice", jobs)
    published(tally)
    assert (tally.lost, tally.duplicates, tally.runs) == (0, 0, jobs)
