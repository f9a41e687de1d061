"""What a child process runs: one file, and what became of it."""

from dataclasses import asdict
from typing import Any

from yamchi.errors import MissingExtra, Unrecoverable
from yamchi.media.processing import Task, process
from yamchi.queues.job import Job


def work(job: Job[Task]) -> dict[str, Any]:
    """The work of `media-processing` and of `watermark`."""
    try:
        return asdict(process(job.data, tell=job.progress))
    except MissingExtra as error:
        raise Unrecoverable(str(error)) from error
