"""A job whose worker died for the last time has failed, and is told, logged and counted as any other that did."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from structlog.testing import capture_logs

from yamchi import Job, Yamchi
from yamchi.clock import Millis, SystemClock
from yamchi.queues.engines.memory import MemoryEngine
from yamchi.queues.records import Claim
from yamchi.queues.runner import Outcome
from yamchi.settings import Settings
from yamchi.testing import eventually


async def test_a_job_that_kills_its_worker_is_counted_logged_and_told_once(tmp_path: Path) -> None:
    engine = MemoryEngine(SystemClock())
    settings = Settings(home=tmp_path, plugins=(), lease=timedelta(milliseconds=300))
    told: list[tuple[str, str]] = []
    async with Yamchi(settings, engine=engine) as app:

        @app.job("deadly", attempts=1)
        async def die(job: Job[int]) -> None: ...

        app.queue("deadly").on("failed", lambda job, error: told.append((job.id, error)))
        job = await app.queue("deadly").add(1)
        await engine.exchange("deadly", [], 1, 1, "a worker that dies")
        outcomes: list[Outcome] = []
        app.observers.append(lambda queue, some: outcomes.extend(some))
        worker = app.worker()
        with capture_logs() as lines:
            working = asyncio.create_task(worker.run())
            await eventually(lambda: told)
            worker.stop()
            await working
        counted = {status: number for (_, _, status), number in app.metrics.jobs.items()}
    why = "The worker stopped or lost its lease during attempt 1 of 1"
    assert told == [(job.id, why)]
    assert counted == {"failed": 1}
    assert [0 <= outcome.seconds < 120 for outcome in outcomes] == [True], "since it was claimed"
    said = [(line["log_level"], line["event"]) for line in lines if job.id in line["event"]]
    assert said == [
        ("warning", f"[deadly:in-memory] stalled die {job.id}: failed, its attempts are used up"),
        ("error", f"[deadly:in-memory] failed die {job.id} after 1 attempt: {why}"),
    ]


class SettableClock(SystemClock):
    """The machine's time, as somebody has set it."""

    ahead = 0

    def now(self) -> Millis:
        return super().now() + self.ahead


class Broker(MemoryEngine):
    """One with a clock of its own, that counts how often it is asked to renew leases."""

    renewals = 0

    async def renew(self, queue: str, claims: Sequence[Claim], lease: Millis) -> list[str]:
        self.renewals += 1
        return await super().renew(queue, claims, lease)


async def test_a_job_keeps_its_lease_though_the_clock_of_its_worker_is_set_back(tmp_path: Path) -> None:
    """A broker goes by its own clock, and gives a job whose lease is not renewed to another worker."""
    broker, clock = Broker(SystemClock()), SettableClock()
    settings = Settings(home=tmp_path, plugins=(), lease=timedelta(milliseconds=1_500))
    runs: list[int] = []
    async with Yamchi(settings, engine=broker, clock=clock) as app:
        may_end = asyncio.Event()

        @app.job("long")
        async def take_long(job: Job[int]) -> None:
            runs.append(job.attempts_made)
            await may_end.wait()

        job = await app.queue("long").add(1)
        working = asyncio.create_task(app.work())
        await eventually(lambda: broker.renewals)
        clock.ahead, before = -3_600_000, broker.renewals
        await eventually(lambda: broker.renewals > before + 3)
        may_end.set()
        await job.result(timeout=20)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    assert runs == [1]
