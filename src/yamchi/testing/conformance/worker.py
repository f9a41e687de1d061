"""The guarantees, seen from a handler: a real worker on the engine, each promise a test of its name."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from yamchi.app import Yamchi
from yamchi.clock import SystemClock, as_datetime
from yamchi.errors import Cancelled, JobFailed, Outage, Snooze, Unrecoverable
from yamchi.queues.engines.base import Engine
from yamchi.queues.job import Job
from yamchi.queues.queue import New
from yamchi.queues.records import NewJob
from yamchi.settings import Settings
from yamchi.testing.conformance.base import Connect, Suite, needs
from yamchi.testing.waiting import eventually

now = SystemClock().now
MakeApp = Callable[..., Yamchi]


class Order(BaseModel):
    number: int


@asynccontextmanager
async def working(*apps: Yamchi) -> AsyncIterator[None]:
    """Workers of these applications, stopped gracefully at the end."""
    workers = [app.worker() for app in apps]
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*tasks)


class WorkerSuite(Suite):
    """SPEC 2.3 and 2.7 on a real worker."""

    @pytest.fixture
    def make_app(self, tmp_path: Any) -> Callable[..., Yamchi]:
        def make(engine: Engine, **settings: Any) -> Yamchi:
            settings = {"lease": timedelta(seconds=3), "shutdown_timeout": timedelta(seconds=5), **settings}
            return Yamchi(Settings(home=tmp_path, plugins=(), **settings), engine=engine)

        return make

    @pytest.fixture
    def app(self, engine: Engine, make_app: MakeApp) -> Yamchi:
        return make_app(engine)

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

    async def test_failures_are_retried_with_backoff_then_dead(self, app: Yamchi, queue: str) -> None:
        runs: list[tuple[int, int]] = []

        @app.job(queue, attempts=3, backoff=["100ms", "200ms"])
        async def broken(job: Job[dict[str, Any]]) -> None:
            runs.append((job.attempts_made, now()))
            raise ValueError("no luck")

        job = await app.queue(queue).add({"n": 1})
        async with working(app):
            failed = await eventually(lambda: in_state(job, "failed"))
        assert [made for made, _ in runs] == [1, 2, 3]
        assert runs[1][1] - runs[0][1] >= 90
        assert runs[2][1] - runs[1][1] >= 190
        assert failed.failed_reason == "ValueError: no luck"
        assert "raise ValueError" in (failed.stacktrace or "")
        letter = await app.queue(queue).dead_letters.get(job.id)
        body = orjson.loads(letter.body)
        assert (body["job"], body["error_message"]) == ({"n": 1}, "ValueError: no luck")
        assert body["failed_at"].endswith("Z")

    async def test_a_retry_occupies_no_slot(self, app: Yamchi, queue: str) -> None:
        done: list[str] = []

        @app.job(queue, concurrency=1, backoff="10s")
        async def sometimes(job: Job[str]) -> None:
            if job.data == "bad":
                raise ValueError("later")
            done.append(job.data)

        await app.queue(queue).add("bad")
        await app.queue(queue).add("good")
        async with working(app):
            await eventually(lambda: done == ["good"])

    async def test_unrecoverable_skips_the_other_attempts(self, app: Yamchi, queue: str) -> None:
        runs: list[int] = []

        @app.job(queue)
        async def hopeless(job: Job[Any]) -> None:
            runs.append(job.attempts_made)
            raise Unrecoverable("User has no email")

        job = await app.queue(queue).add({})
        async with working(app):
            failed = await eventually(lambda: in_state(job, "failed"))
        assert (runs, failed.failed_reason) == ([1], "User has no email")

    async def test_outage_and_snooze_cost_no_attempt(self, app: Yamchi, queue: str) -> None:
        runs: list[int] = []

        @app.job(queue, attempts=1)
        async def patient(job: Job[Any]) -> str:
            runs.append(job.attempts_made)
            if len(runs) == 1:
                raise Outage("SMTP is down", retry_after=timedelta(milliseconds=50))
            if len(runs) == 2:
                raise Snooze(timedelta(milliseconds=50))
            return "sent"

        job = await app.queue(queue).add({})
        async with working(app):
            done = await eventually(lambda: in_state(job, "completed"))
        assert (runs, done.returned) == ([1, 1, 1], "sent")

    async def test_a_failure_kind_may_be_returned(self, app: Yamchi, queue: str) -> None:
        @app.job(queue)
        async def polite(job: Job[Any]) -> Any:
            return Cancelled()

        job = await app.queue(queue).add({})
        async with working(app):
            await eventually(lambda: in_state(job, "cancelled"))
        assert (await app.queue(queue).dead_letters.list()).total == 0

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

    @pytest.mark.parametrize("way", ["alone", "with all"])
    async def test_a_replayed_job_is_run_as_it_was_added(self, app: Yamchi, queue: str, way: str) -> None:
        runs: list[tuple[int, int | None]] = []

        @app.job(queue)
        async def send(job: Job[Any]) -> None:
            runs.append((job.attempts, job.record.options.timeout))
            if len(runs) == 1:
                raise Unrecoverable("not yet")

        target = app.queue(queue)
        job = await target.add({}, attempts=7, timeout="2m")
        async with working(app):
            await eventually(partial(in_state, job, "failed"))
            if way == "alone":
                await target.dead_letters.replay(job.id)
            else:
                assert await target.dead_letters.replay_all() == 1
            await eventually(partial(in_state, job, "completed"))
        assert runs == [(7, 120_000)] * 2

    async def test_poison_never_blocks(self, app: Yamchi, queue: str) -> None:
        seen: list[int] = []

        @app.job(queue, concurrency=1)
        async def strict(job: Job[Order]) -> None:
            seen.append(job.data.number)

        target = app.queue(queue)
        await target.add(Order(number=1))
        await target.engine.add(queue, [NewJob("not-an-order", "strict", b'{"number":"many"}')])
        await target.engine.add(queue, [NewJob("not-a-job", "unheard-of", b"{}")])
        await target.add(Order(number=2))
        async with working(app):
            await eventually(lambda: sorted(seen) == [1, 2])
            await eventually(lambda: _letters(app, queue, 2))
        body = orjson.loads((await target.dead_letters.get("not-an-order")).body)
        assert orjson.loads(body["raw_value"]) == {"number": "many"}
        assert "number" in body["error_message"]
        assert "unheard-of" in (await target.dead_letters.get("not-a-job")).error

    async def test_an_expired_job_never_runs(self, app: Yamchi, queue: str) -> None:
        runs: list[str] = []

        @app.job(queue)
        async def late(job: Job[str]) -> None:
            runs.append(job.data)

        target = app.queue(queue)
        old = await target.add("old", expires_at=as_datetime(now() - 1))
        await target.add("fresh", expires_at=as_datetime(now() + 60_000))
        async with working(app):
            await eventually(lambda: runs == ["fresh"])
            await eventually(lambda: in_state(old, "expired"))
        assert (await target.dead_letters.list()).total == 0

    async def test_timeout_fails_the_attempt(self, app: Yamchi, queue: str) -> None:
        @app.job(queue, attempts=1)
        async def slow(job: Job[Any]) -> None:
            await asyncio.sleep(60)

        job = await app.queue(queue).add({}, timeout="50ms")
        async with working(app):
            failed = await eventually(lambda: in_state(job, "failed"))
        assert "longer than its timeout of 50 ms" in (failed.failed_reason or "")

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
        app = make_app(engine, lease=timedelta(seconds=1))
        started, over = threading.Event(), threading.Event()
        taken: list[str] = []

        @app.job(queue)
        async def block(job: Job[Any]) -> int:
            started.set()
            _hog_the_loop(seconds=2)  # two leases
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
        started = asyncio.Event()
        finished: list[str] = []

        @app.job(queue)
        async def mixed(job: Job[str]) -> None:
            started.set()
            await asyncio.sleep(0.3 if job.data == "short" else 60)
            finished.append(job.data)

        impatient = make_app(engine, shutdown_timeout=timedelta(seconds=1))
        impatient._definitions = app._definitions
        await app.queue(queue).add_many([New("short", id="short"), New("endless", id="endless")])
        async with working(impatient):
            await asyncio.wait_for(started.wait(), 20)
            await eventually(lambda: _active(app, queue, 2))
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


async def in_state(job: Job[Any], state: str) -> Job[Any] | None:
    current = await job.refresh()
    return current if current.state == state else None


async def _letters(app: Yamchi, queue: str, count: int) -> bool:
    return (await app.queue(queue).dead_letters.list()).total == count


async def _active(app: Yamchi, queue: str, count: int) -> bool:
    return (await app.queue(queue).engine.counts(queue))["active"] == count
