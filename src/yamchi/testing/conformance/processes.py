"""Handlers in child processes, on this engine: what a child does, and what becomes of its job when it does not."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from yamchi.app import Yamchi
from yamchi.queues.engines.base import Engine
from yamchi.queues.job import Job
from yamchi.settings import Settings
from yamchi.testing.conformance.apps import in_state, working
from yamchi.testing.conformance.base import Connect, Suite, needs
from yamchi.testing.conformance.handlers import Task, behave, count
from yamchi.testing.waiting import eventually


class ProcessSuite(Suite):
    """`@app.job(processes=…, memory=…)` on a real worker."""

    @pytest.fixture
    def make(self, engine: Engine, queue: str, tmp_path: Path) -> Callable[..., Yamchi]:
        def make(**options: Any) -> Yamchi:
            settings = Settings(home=tmp_path, lease=options.pop("lease", timedelta(seconds=30)))
            app = Yamchi(settings, engine=engine)
            app.job(queue, **{"processes": 1, "attempts": 1, **options})(behave)
            app.job(queue, name="count", processes=1)(count)
            return app

        return make

    async def test_a_child_answers_and_tells_how_far_it_is(
        self, make: Callable[..., Yamchi], queue: str, tmp_path: Path
    ) -> None:
        app = make()
        jobs = await app.queue(queue).add_many([Task(do="answer"), Task(do="answer")])
        snoozed = await app.queue(queue).add(Task(do="wait", file=str(tmp_path / "waited")))
        counted = await app.queue(queue).add({"to": 10}, name="count")
        async with working(app):
            first, second = [await _ended(job, "completed") for job in jobs]
            assert (await _ended(counted, "completed")).returned["sum"] == 45
            assert (await _ended(snoozed, "completed")).returned == {"attempt": 1}
        assert first.returned["pid"] == second.returned["pid"]  # a child is kept for the next job
        assert first.progress_made == 50
        assert first.logs == ["half of it", "the rest"]

    async def test_what_ends_a_child_fails_its_own_job_only(
        self, make: Callable[..., Yamchi], queue: str
    ) -> None:
        app = make(memory="256MB")
        ways = ("crash", "leave", "hoard", "grab", "refuse")
        broken = {do: await app.queue(queue).add(Task(do=do)) for do in ways}
        whole = await app.queue(queue).add(Task(do="answer"))
        async with working(app):
            await _ended(whole, "completed")
            said = {do: (await _ended(job, "failed")).failed_reason for do, job in broken.items()}
        assert said == {
            "crash": "The process that ran behave was killed by SIGSEGV",
            "leave": "The process that ran behave ended with exit code 3",
            "hoard": "behave used more than its 256 MB of memory; the process that ran it was ended",
            "grab": "behave used more than its 256 MB of memory; the process that ran it was ended",
            "refuse": "This file is not an image.",
        }

    async def test_the_worker_keeps_the_lease_while_a_child_is_busy(
        self, make: Callable[..., Yamchi], connect: Connect, engine: Engine, queue: str, tmp_path: Path
    ) -> None:
        needs(engine, "shared")
        app, file = make(lease=timedelta(seconds=2), attempts=3), tmp_path / "busy"
        job = await app.queue(queue).add(Task(do="block", file=str(file)))
        rival, taken = await connect(), list[str]()

        async def is_over() -> bool:
            taken.extend(found.id for found, _ in await rival.recover(queue))
            return file.exists() and file.read_text() == "over"

        async with working(app):
            await eventually(is_over, within=60)
            assert (await _ended(job, "completed")).returned == {"attempt": 1}
        await rival.close()
        assert taken == []

    async def test_a_job_is_cancelled_in_its_child(
        self, make: Callable[..., Yamchi], queue: str, tmp_path: Path
    ) -> None:
        app, file = make(), tmp_path / "pid"
        job = await app.queue(queue).add(Task(do="hang", file=str(file)))
        after = await app.queue(queue).add(Task(do="answer"))
        async with working(app):
            await eventually(lambda: file.exists() and file.read_text().isdigit(), within=60)
            await job.cancel()
            await _ended(job, "cancelled")
            await _ended(after, "completed")
            await eventually(lambda: file.read_text() == "cleaned up")

    async def test_a_child_that_takes_too_long_is_ended(
        self, make: Callable[..., Yamchi], queue: str, tmp_path: Path
    ) -> None:
        app, file = make(timeout="3s"), tmp_path / "pid"
        job = await app.queue(queue).add(Task(do="hang", file=str(file)))
        async with working(app):
            failed = await _ended(job, "failed")
            await eventually(lambda: file.read_text() == "cleaned up")
        assert failed.failed_reason == "behave took longer than its timeout of 3 s"


async def _ended(job: Job[Any], state: str) -> Job[Any]:
    return await eventually(partial(in_state, job, state), within=60)
