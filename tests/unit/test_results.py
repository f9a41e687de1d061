"""Waiting for a job's result where it is not the usual way round: gone jobs, cancelled ones, and who listens afterwards."""

import asyncio
from datetime import UTC, datetime

import pytest
from pydantic import BaseModel

from yamchi import Job, JobFailed
from yamchi.errors import UnknownJob
from yamchi.testing import TestApp


class Thumb(BaseModel):
    url: str
    made_at: datetime | None = None


async def test_models_go_in_and_come_out_wherever_they_are() -> None:
    async with TestApp() as app:

        @app.job("thumbs", keep_completed=0)
        async def make(job: Job[list[Thumb]]) -> dict[str, list[Thumb]]:
            moment = datetime(2026, 1, 1, tzinfo=UTC)
            return {"made": [Thumb(url=one.url, made_at=moment) for one in job.data]}

        @app.job("first")
        async def first(job: Job[list[Thumb]]) -> Thumb:
            return job.data[0]

        made = await app.queue("thumbs").add([Thumb(url="cat.jpg")])
        waiting = asyncio.create_task(made.result(timeout="10s"))
        taken = await app.queue("first").add([Thumb(url="dog.jpg")])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await app.drain()
        assert await waiting == {"made": [{"url": "cat.jpg", "made_at": "2026-01-01T00:00:00Z"}]}
        assert await taken.result() == {"url": "dog.jpg", "made_at": None}


async def test_what_is_no_json_is_told_with_its_type() -> None:
    async with TestApp() as app:

        @app.job("odd")
        async def odd(job: Job[int]) -> object:
            return [object()]

        job = await app.queue("odd").add(1)
        await app.drain()
        with pytest.raises(
            JobFailed, match=r"result of odd can't be written as JSON: .* serializable: object"
        ):
            await job.result()


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
