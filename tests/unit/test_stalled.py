"""A job whose worker died for the last time has failed, and is told, logged and counted as any other that did."""

import asyncio
from datetime import timedelta
from pathlib import Path

from structlog.testing import capture_logs

from yamchi import Job, Yamchi
from yamchi.clock import SystemClock
from yamchi.queues.engines.memory import MemoryEngine
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
    said = [(line["log_level"], line["event"]) for line in lines if job.id in line["event"]]
    assert said == [
        ("warning", f"[deadly:in-memory] stalled die {job.id}: failed, its attempts are used up"),
        ("error", f"[deadly:in-memory] failed die {job.id} after 1 attempt: {why}"),
    ]
