"""The guarantees, seen from a handler: a real worker on the engine, each promise a test of its name."""

import asyncio
import threading
import time
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from yamchi.app import Yamchi
from yamchi.clock import SystemClock
from yamchi.errors import JobFailed, Unrecoverable
from yamchi.queues.engines.base import Engine
from yamchi.queues.job import Job
from yamchi.queues.newjobs import New
from yamchi.testing.conformance.apps import MakeApp, Order, in_state, working
from yamchi.testing.conformance.base import Connect, needs
from yamchi.testing.conformance.failures import FailureSuite
from yamchi.testing.waiting import eventually

now = SystemClock().now


class WorkerSuite(FailureSuite):
    """SPEC 2.3 and 2.7 on a real worker."""

    async def test_jobs_run_and_answer(self, app: Yamchi, queue: str) -> None:
        @app.job(queue)
        async def double(job: Job[Order]) -> dict[str, int]:
            return {"twice": job.data.number * 2}

        jobs = await app.queue(queue).add_many([Order(number=n) for n in range(50)])
        async with working(app):
            for job in jobs:
                done = await eventually(partial(in_state, job, "completed"))
                assert done.returned == {"twice": job.data["number"] * 2}
        stats = await app.queue(queue).stats()
        assert stats == {
            "waiting": 0,
            "active": 0,
            "delayed": 0,
            "completed": 50,
            "failed": 0,
            "type": app.queue(queue).engine.type,
        }

    async def test_a_result_is_waited_for(self, app: Yamchi, queue: str) -> None:
        @app.job(queue)
        async def double(job: Job[Order]) -> int:
            if job.data.number < 0:
                raise Unrecoverable("below zero")
            return job.data.number * 2

        good, bad = await app.queue(queue).add_many([Order(number=21), Order(number=-1)])
        with pytest.raises(TimeoutError, match="is not finished after 100 ms"):
            await good.result(timeout="100ms")
        async with working(app):
            assert await good.result(timeout="30s") == 42
            with pytest.raises(JobFailed, match="failed: below zero") as failed:
                await bad.result(timeout="30s")
        assert (good.state, failed.value.state) == ("completed", "failed")
        assert await (await app.queue(queue).job(good.id)).result() == 42

    async def test_a_schedule_may_have_any_name_of_one_line(self, app: Yamchi, queue: str) -> None:
        runs: list[tuple[str, str]] = []

        @app.job(queue)
        async def first(job: Job[Any]) -> None:
            runs.append(("first", job.id))

        @app.cron("* * * * * *", name=f"count: {queue}, 50 %", queue=queue)
        async def count(job: Job[None]) -> None:
            runs.append(("count", job.id))

        async with working(app):
            await eventually(lambda: runs)
        (handler, job_id), *_ = runs
        assert handler == "count"
        assert (await app.queue(queue).job(job_id)).name == f"count: {queue}, 50 %"

    async def test_a_log_line_may_be_any_text(self, app: Yamchi, queue: str) -> None:
        @app.job(queue)
        async def list_files(job: Job[Any]) -> None:
            await job.log("caf\udce9.jpg", "a\0b", "шаг 1")

        job = await app.queue(queue).add({})
        async with working(app):
            await eventually(partial(in_state, job, "completed"))
        assert (await job.refresh()).logs == ["caf\\udce9.jpg", "a\\0b", "шаг 1"]

    async def test_cancel_stops_a_running_job(self, app: Yamchi, queue: str) -> None:
        started, stopped = asyncio.Event(), asyncio.Event()

        @app.job(queue)
        async def long(job: Job[Any]) -> None:
            started.set()
            try:
                await asyncio.sleep(60)
            finally:
                stopped.set()

        job = await app.queue(queue).add({})
        async with working(app):
            await asyncio.wait_for(started.wait(), 20)
            assert await job.cancel() == "active"
            await eventually(lambda: in_state(job, "cancelled"))
        assert stopped.is_set()

    async def test_sync_handlers_run_in_threads(self, app: Yamchi, queue: str) -> None:
        main = threading.get_ident()

        @app.job(queue)
        def plain(job: Job[Any]) -> bool:
            job.progress(30)
            job.log("half way")
            return threading.get_ident() != main

        job = await app.queue(queue).add({})
        async with working(app):
            done = await eventually(lambda: in_state(job, "completed"))
        assert done.returned is True
        assert (done.progress_made, done.logs) == (30, ["half way"])

    async def test_concurrency_is_kept(self, app: Yamchi, queue: str) -> None:
        running = most = finished = 0

        @app.job(queue, concurrency=3)
        async def crowd(job: Job[Any]) -> None:
            nonlocal running, most, finished
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            finished += 1

        await app.queue(queue).add_many([{}] * 20)
        async with working(app):
            await eventually(lambda: finished == 20)
        assert most == 3

    async def test_a_rate_limit_spaces_starts(self, app: Yamchi, queue: str) -> None:
        starts: list[int] = []

        @app.job(queue, rate="20/s")
        async def paced(job: Job[Any]) -> None:
            starts.append(now())

        await app.queue(queue).add_many([{}] * 10)
        began = now()
        async with working(app):
            await eventually(lambda: len(starts) == 10)
        assert starts[-1] >= began + 9 * 50 - 10

    async def test_a_rate_limit_per_key_spares_other_keys(self, app: Yamchi, queue: str) -> None:
        starts: list[tuple[str, int]] = []

        @app.job(queue, key_rate="1/s", key="chat")
        async def chat(job: Job[dict[str, str]]) -> None:
            starts.append((job.data["chat"], now()))

        await app.queue(queue).add_many([{"chat": "slow"}] * 3 + [{"chat": "other"}])
        began = now()
        async with working(app):
            await eventually(lambda: len(starts) == 4)
        assert starts[-1][1] >= began + 2 * 1_000 - 10
        assert "other" in [chat for chat, _ in starts[:2]], "one chat's queue does not hold up another's"

    async def test_a_blocked_loop_keeps_its_lease(
        self, connect: Connect, engine: Engine, queue: str, make_app: MakeApp
    ) -> None:
        needs(engine, "shared")
        app = make_app(engine, lease=timedelta(seconds=2))
        started, over = threading.Event(), threading.Event()
        taken: list[str] = []

        @app.job(queue)
        async def block(job: Job[Any]) -> int:
            started.set()
            _hog_the_loop(seconds=4.5)  # two leases
            over.set()
            return job.attempts_made

        async def covet() -> None:
            other = await connect()
            started.wait(20)
            while not over.wait(0.05):
                taken.extend(job.id for job, _ in await other.recover(queue))
            await other.close()

        rival = threading.Thread(target=asyncio.run, args=(covet(),))
        rival.start()
        job = await app.queue(queue).add({})
        async with working(app):
            done = await eventually(lambda: in_state(job, "completed"))
        await asyncio.to_thread(rival.join)
        assert (done.returned, taken) == (1, [])

    async def test_graceful_stop_gives_back_what_is_not_done(
        self, app: Yamchi, queue: str, make_app: MakeApp, engine: Engine
    ) -> None:
        may_finish, finished = asyncio.Event(), list[str]()

        @app.job(queue)
        async def mixed(job: Job[str]) -> None:
            await (may_finish.wait() if job.data == "short" else asyncio.Event().wait())
            finished.append(job.data)

        impatient = make_app(engine, shutdown_timeout=timedelta(seconds=1))
        impatient._definitions = app._definitions
        await app.queue(queue).add_many([New("short", id="short"), New("endless", id="endless")])
        async with working(impatient) as (worker,):
            await eventually(lambda: _active(app, queue, 2))
            worker.stop()
            await eventually(lambda: worker.runners[0].jobs.is_stopping)
            may_finish.set()
        assert finished == ["short"]
        back = await app.queue(queue).job("endless")
        assert (back.state, back.attempts_made) == ("waiting", 0)

    async def test_events_reach_listeners(self, app: Yamchi, queue: str) -> None:
        heard: list[tuple[Any, ...]] = []

        @app.job(queue, attempts=1)
        async def speak(job: Job[str]) -> str:
            await job.progress(10)
            if job.data == "bad":
                raise ValueError("no")
            return "yes"

        target = app.queue(queue)
        for event in ("completed", "failed", "progress"):
            target.on(event, lambda job, value, event=event: heard.append((event, job.id, value)))
        await target.add_many([New("good", id="g"), New("bad", id="b")])
        async with working(app):
            await eventually(lambda: len(heard) == 4)
        assert sorted(heard) == [
            ("completed", "g", "yes"), ("failed", "b", "ValueError: no"), ("progress", "b", 10), ("progress", "g", 10),
        ]  # fmt: skip

    async def test_a_listener_gets_the_job_as_its_run_left_it(self, app: Yamchi, queue: str) -> None:
        heard: dict[str, tuple[str, Any, str | None]] = {}

        def note(job: Job[Any], _how: object = None) -> None:
            heard[job.id] = (job.state, job.returned, job.failed_reason)

        @app.job(queue, attempts=2, backoff="1h")
        async def judge(job: Job[str]) -> str:
            if job.data == "again":
                raise ValueError("no")
            if job.data == "never":
                raise Unrecoverable("not at all")
            return "yes"

        for event in ("completed", "failed", "retrying"):
            app.queue(queue).on(event, note)
        async with working(app):
            await app.queue(queue).add_many(New(how, id=how) for how in ("fine", "again", "never"))
            await eventually(lambda: len(heard) == 3)
        assert heard == {
            "fine": ("completed", "yes", None),
            "again": ("delayed", None, "ValueError: no"),
            "never": ("failed", None, "not at all"),
        }

    async def test_events_cross_processes(
        self, connect: Connect, app: Yamchi, queue: str, make_app: MakeApp
    ) -> None:
        needs(app.queue(app.define(queue).name).engine, "events")
        other = make_app(await connect())
        other.define(queue)
        heard: list[tuple[str, Any]] = []
        for event in ("completed", "failed"):
            other.queue(queue).on(event, lambda job, value: heard.append((job.id, value)))
        other.listen()

        @app.job(queue, attempts=1)
        async def speak(job: Job[str]) -> str:
            if job.data == "bad":
                raise ValueError("no")
            return "yes"

        async with working(app):

            async def told() -> bool:
                await app.queue(queue).add("again")  # until the listener has taken its place
                return bool(heard)

            await eventually(told)
            for word, answer in (("bad", "ValueError: no"), ("good", "yes")):
                await app.queue(queue).add(word, id=word)
                await eventually(partial(heard.__contains__, (word, answer)))
        assert len(set(heard)) == len(heard), (
            "each is told once, though `on` and `listen` both began to listen"
        )
        await other.close()


def _hog_the_loop(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        threading.Event().wait(0.05)


async def _active(app: Yamchi, queue: str, count: int) -> bool:
    return (await app.queue(queue).engine.counts(queue))["active"] == count
