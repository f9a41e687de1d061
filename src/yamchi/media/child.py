"""What a child process runs: one file, and what became of it."""

import ctypes
from dataclasses import asdict
from functools import cache
from typing import Any

from yamchi.errors import MissingExtra, Unrecoverable
from yamchi.media.decoding import read_size
from yamchi.media.files import as_outage
from yamchi.media.formats import BadFile
from yamchi.media.processing import SizeTask, Task, process
from yamchi.queues.job import Job

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_BUFFER = 32 * 1024 * 1024
"""The most that every version of glibc takes."""
KEPT = 128 * 1024 * 1024


def work(job: Job[Task | SizeTask]) -> dict[str, Any]:
    """The work of `media-processing` and of `watermark`. What is wrong with a file is an answer like any other."""
    _keep_freed_memory()
    try:
        if isinstance(job.data, SizeTask):
            width, height = read_size(job.data.size_of, job.data.max_pixels)
            return {"width": width, "height": height}
        return asdict(process(job.data, tell=job.progress))
    except BadFile as error:
        return {"refused": str(error)}
    except OSError as error:
        raise as_outage(error) from error
    except MissingExtra as error:
        raise Unrecoverable(str(error)) from error


@cache
def _keep_freed_memory() -> None:
    """Have glibc keep what a picture's buffers took for the next ones: to get new memory each time takes a tenth of the work."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(M_MMAP_THRESHOLD, LARGEST_BUFFER)
        mallopt(M_TRIM_THRESHOLD, KEPT)
