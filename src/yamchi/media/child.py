"""What a child process runs: one file, and what became of it."""

from dataclasses import asdict
from typing import Any

from yamchi.errors import MissingExtra, Unrecoverable
from yamchi.media.files import as_outage
from yamchi.media.formats import BadFile
from yamchi.media.processing import Task, process
from yamchi.queues.job import Job


def work(job: Job[Task]) -> dict[str, Any]:
    """The work of `media-processing` and of `watermark`. What is wrong with a file is an answer like any other."""
    try:
        return asdict(process(job.data, tell=job.progress))
    except BadFile as error:
        return {"refused": str(error)}
    except OSError as error:
        raise as_outage(error) from error
    except MissingExtra as error:
        raise Unrecoverable(str(error)) from error
