"""Metrics are kept by job name, and others may write jobs of any name: only names that have a handler are kept."""

from yamchi import Job
from yamchi.queues.options import JobOptions
from yamchi.queues.records import NewJob
from yamchi.testing import TestApp

STRANGE = [f"name-{n}" for n in range(50)]


async def test_names_that_nobody_handles_are_counted_together() -> None:
    async with TestApp(plugins=[]) as app:

        @app.job("sums")
        async def add_up(job: Job[int]) -> None: ...

        once = JobOptions(attempts=1)
        jobs = [NewJob(name or "nameless", name, b"1", once) for name in ("add_up", "sums", "", *STRANGE)]
        await app.queue("sums").engine.add("sums", jobs)
        await app.drain()
        counted = app.metrics.jobs
    assert {name for _, name, _ in counted} == {"add_up", "sums", "(other)"}
    assert counted["sums", "(other)", "failed"] == len(STRANGE)
    assert {name for _, name in app.metrics.durations} <= {"add_up", "sums", "(other)"}
