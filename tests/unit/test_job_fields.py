"""What a handler sees of its job, and what the log says of its progress."""

from structlog.testing import capture_logs

from yamchi import Job
from yamchi.queues.records import Backoff
from yamchi.testing import TestApp


async def test_a_job_knows_its_backoff_and_progress_is_logged() -> None:
    seen: list[Backoff] = []
    async with TestApp(plugins=()) as app:

        @app.job("films")
        async def cut(job: Job[int]) -> None:
            seen.append(job.backoff)
            await job.progress({"percent": 50})

        job = await app.queue("films").add(1)
        with capture_logs() as lines:
            await app.drain()
    assert seen == [job.record.options.backoff]
    said = [(line["log_level"], line["event"]) for line in lines if "progress" in line["event"]]
    assert said == [("debug", f'[films:in-memory] progress of cut {job.id}: {{"percent":50}}')]
