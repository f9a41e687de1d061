"""The child processes that work on pictures, as this process sees them: no stranger's file is decoded here."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from yamchi.clock import Clock, Millis
from yamchi.errors import Retryable, Unrecoverable
from yamchi.media.child import work
from yamchi.media.files import Files
from yamchi.media.formats import BadFile
from yamchi.media.model import Picture
from yamchi.media.processing import Made, SizeTask, Task, Variant
from yamchi.media.reporting import OnNews, ReportingJob
from yamchi.queues.executor import run_within
from yamchi.queues.job import Job
from yamchi.queues.processes.limits import ProcessLimits
from yamchi.queues.processes.pool import ProcessPool
from yamchi.queues.queue import Queue
from yamchi.queues.records import JobRecord

PROCESS = "process"
ACCEPTED = 5
"""Percent of the work, when a child has been asked for it."""


class PictureProcesses:
    """Asks a child for the variants or the size of a picture.

    The time that it may take begins when a child is free: one that hangs costs no other picture an attempt.
    """

    def __init__(
        self,
        queue: Queue,
        files: Files,
        limits: ProcessLimits,
        timeout: Millis,
        max_pixels: int,
        clock: Clock,
        on_news: OnNews,
    ) -> None:
        self.max_pixels = max_pixels
        self._queue = queue
        self._files = files
        self._pool = ProcessPool(queue.name, "picture", work, limits)
        self._cores = limits.processes
        self._at_work = 0
        self._timeout = timeout
        self._clock = clock
        self._on_news = on_news

    async def close(self) -> None:
        await self._pool.close()

    async def make(self, found: Picture, task: Task, job: Job[Any] | None = None) -> Made:
        """All variants; the uploader's page hears how far they are. Without a job, for a caller that waits itself.

        There is a child for each core. A picture by itself gets the cores of the others, too.
        """
        await asyncio.to_thread(self._files.check_room)
        record = self._record(found.id) if job is None else job.record
        reporting = ReportingJob(record, found, self._on_news, job)
        await reporting.progress({"percent": ACCEPTED})
        self._at_work += 1
        try:
            threads = max(self._cores // self._at_work, 1)
            answer = await self._ask(reporting, task.model_copy(update={"threads": threads}))
        finally:
            self._at_work -= 1
        return Made(**{**answer, "variants": [Variant(**one) for one in answer["variants"]]})

    async def size_of(self, picture: Path) -> tuple[int, int]:
        """Width and height."""
        job: Job[Any] = Job(self._queue, self._record(picture.name))
        try:
            answer = await self._ask(job, SizeTask(size_of=picture, max_pixels=self.max_pixels))
        except (Retryable, Unrecoverable) as error:
            raise BadFile(str(error)) from error
        return int(answer["width"]), int(answer["height"])

    async def _ask(self, job: Any, task: Task | SizeTask) -> dict[str, Any]:
        """A child's answer; `BadFile` if it is a refusal."""
        within = partial(run_within, self._timeout, job)
        answer: dict[str, Any] = await self._pool.run(job, task.model_dump_json().encode(), within=within)
        if "refused" in answer:
            raise BadFile(str(answer["refused"]))
        return answer

    def _record(self, job_id: str) -> JobRecord:
        """For work without a job of its own."""
        now = self._clock.now()
        return JobRecord(job_id, self._queue.name, PROCESS, b"", "active", now, now)
