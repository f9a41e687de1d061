"""Waiting for a job's result where it is not the usual way round: gone jobs, cancelled ones, and who listens afterwards."""

import asyncio

import pytest

from yamchi import Job, JobFailed
from yamchi.errors import UnknownJob
from yamchi.testing import TestApp


async def test_a_result_that_is_not_kept_is_told_by_the_event() -> None:
    async with TestApp() as app:

        @app.job("once", keep_completed=0)
        async def run(job: Job[int]) -> int:
            return job.data + 1

        job = await app.queue("once").add(1)
        waiting = asyncio.create_task(job.result(timeout="10s"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await app.drain()
        assert await waiting == 2
        with pytest.raises(UnknownJob, match="no longer kept"):
            await job.result()


async def test_a_cancelled_job_has_no_result() -> None:
    async with TestApp() as app:
        app.define("slow")
        job = await app.queue("slow").add(delay="1h")
        await job.cancel()
        with pytest.raises(JobFailed, match=f"Job {job.id} of slow was cancelled") as ended:
            await job.result()
        assert ended.value.state == "cancelled"


async def test_nobody_listens_after_the_wait() -> None:
    async with TestApp() as app:
        app.define("slow")
        job = await app.queue("slow").add(delay="1h")
        with pytest.raises(TimeoutError):
            await job.result(timeout="10ms")
        assert not app.queue("slow").listeners.any
