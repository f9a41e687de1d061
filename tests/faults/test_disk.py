"""A full disk and a disk that may not be written: one clear sentence, nothing half-written, and work resumes by itself."""

import asyncio
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.faults.harness import Site, Tally
from tests.smalldisk import Disk
from yamchi import Job, New, Yamchi
from yamchi.errors import EngineError, StorageFull, StorageReadOnly
from yamchi.settings import Settings
from yamchi.testing import eventually
from yamchi.testing.conformance.worker import working


@pytest.fixture
def app(disk: Disk, tmp_path: Path) -> Yamchi:
    app = Yamchi(Settings(home=tmp_path, plugins=(), default_queue_url=f"sqlite:///{disk.folder}/jobs.db"))
    app.define("mail", keep_completed=1_000_000)
    return app


def assert_sentence(error: BaseException, disk: Disk, *words: str) -> None:
    said = str(error)
    assert "\n" not in said
    for word in (str(disk.folder / "jobs.db"), *words):
        assert word in said, said


def assert_sound(disk: Disk) -> None:
    with sqlite3.connect(disk.folder / "jobs.db") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


async def test_a_full_disk_refuses_jobs_whole_and_takes_them_when_there_is_room(
    app: Yamchi, disk: Disk
) -> None:
    queue, acknowledged, refused = app.queue("mail"), set[str](), set[str]()

    async def add(n: int) -> None:
        batch = [New("x" * 2_000, id=f"job-{n}-{part}") for part in range(10)]
        try:
            acknowledged.update(job.id for job in await queue.add_many(batch))
        except StorageFull as error:
            assert_sentence(error, disk, "full", "nothing was written")
            refused.update(str(new.id) for new in batch)

    disk.fill(leave=2_000_000)
    for round_of_adds in range(0, 400, 8):
        await asyncio.gather(*(add(n) for n in range(round_of_adds, round_of_adds + 8)))
    assert acknowledged
    assert refused
    kept = {job.id for job in await queue.jobs(limit=10_000)}
    assert kept == acknowledged, "every job acknowledged is there, every refused one is not"
    assert (await queue.stats())["waiting"] == len(acknowledged)
    assert_sound(disk)
    disk.make_room()
    assert (await queue.add("x" * 2_000, id=min(refused))).is_new, "what was refused can be added now"
    await app.close()
    assert_sound(disk)


async def test_a_worker_keeps_its_verdicts_until_there_is_room_however_long_that_takes(
    disk: Disk, tmp_path: Path
) -> None:
    lease = timedelta(milliseconds=500)
    app = Yamchi(
        Settings(home=tmp_path, plugins=(), default_queue_url=f"sqlite:///{disk.folder}/jobs.db", lease=lease)
    )
    release, runs = asyncio.Event(), list[str]()
    troubles: list[BaseException] = []

    @app.job("mail", concurrency=20, keep_completed=1_000)
    async def send(job: Job[str]) -> str:
        runs.append(job.id)
        await release.wait()
        return "y" * 20_000

    queue = app.queue("mail")
    queue.on("error", troubles.append)
    jobs = await queue.add_many(["letter"] * 20)
    async with working(app):
        await eventually(lambda: len(runs) == 20)
        disk.fill()
        release.set()
        overdue = monotonic() + 2 * lease.total_seconds()
        await eventually(lambda: len(troubles) >= 2 and monotonic() > overdue)
        assert_sentence(troubles[0], disk, "full")
        disk.make_room()
        await eventually(lambda: _completed(app, 20))
        more = await queue.add("another")
        await eventually(lambda: more.id in runs)
    assert sorted(runs) == sorted([*(job.id for job in jobs), more.id]), "each ran once"
    await app.close()
    assert_sound(disk)


async def test_a_worker_process_outlives_a_full_disk(
    make_site: Callable[..., Site], disk: Disk, published: Callable[[Tally], None]
) -> None:
    jobs = 300
    site = make_site(f"sqlite:///{disk.folder}/jobs.db", pause=0.02, lease="30s")
    await site.queue.add_many([New({"pause": 0.02}, id=f"job-{n}", name="work") for n in range(jobs)])
    worker = site.start_worker()
    await site.ran(50)
    disk.fill()
    await site.until(lambda: "is full" in worker.log)
    disk.make_room()
    await site.all_settled(jobs)
    tally = site.tally("a full disk", jobs, added=[f"job-{n}" for n in range(jobs)])
    published(tally)
    assert (tally.lost, tally.duplicates, worker.exit_code) == (0, 0, None)


async def test_a_disk_that_is_full_from_the_start(app: Yamchi, disk: Disk) -> None:
    disk.fill()
    with pytest.raises(StorageFull) as refused:
        await app.queue("mail").add("letter")
    assert_sentence(refused.value, disk, "full")
    disk.make_room()
    assert (await app.queue("mail").add("letter")).is_new
    await app.close()


async def test_a_disk_that_becomes_read_only(app: Yamchi, disk: Disk) -> None:
    queue = app.queue("mail")
    await queue.add("letter", id="first")
    await app.close()
    disk.remount("ro")
    with pytest.raises(StorageReadOnly) as refused:
        await queue.add("letter", id="second")
    assert_sentence(refused.value, disk, "can't be written")
    disk.remount("rw")
    assert (await queue.add("letter", id="second")).is_new
    assert {job.id for job in await queue.jobs()} == {"first", "second"}
    await app.close()


async def test_every_trouble_with_the_disk_is_an_engine_error(app: Yamchi, disk: Disk) -> None:
    async def try_all() -> Any:
        queue = app.queue("mail")
        await queue.stats()
        await queue.pause()

    disk.fill()
    with pytest.raises(EngineError):
        await try_all()


async def _completed(app: Yamchi, count: int) -> bool:
    return bool((await app.queue("mail").stats())["completed"] == count)
