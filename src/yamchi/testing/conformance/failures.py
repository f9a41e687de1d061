"""What goes wrong with a job, seen from a handler: each kind of failure, poison, expiry, timeouts, and dead letters."""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import orjson
import pytest

from yamchi.app import Yamchi
from yamchi.clock import SystemClock, as_datetime
from yamchi.errors import Cancelled, Outage, Snooze, Unrecoverable
from yamchi.queues.job import Job
from yamchi.queues.records import NewJob
from yamchi.testing.conformance.apps import AppSuite, Order, in_state, working
from yamchi.testing.waiting import eventually

now = SystemClock().now


class FailureSuite(AppSuite):
    """The part of `WorkerSuite` that is about failures."""

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

        @app.job(queue, concurrency=1, backoff="1h")
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


async def _letters(app: Yamchi, queue: str, count: int) -> bool:
    return (await app.queue(queue).dead_letters.list()).total == count
