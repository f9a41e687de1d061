"""Handlers that run in child processes: a child imports them by name, so they stand in a module of their own."""

import asyncio
import os
import signal
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel

from yamchi.errors import Snooze, Unrecoverable
from yamchi.queues.job import Job

BLOCKED_SECONDS = 4.5
"""Two leases of those who wait for it, each long enough to be renewed by a busy machine."""


class Task(BaseModel):
    """What a child is to do."""

    do: str
    file: str = ""


async def behave(job: Job[Task]) -> Any:
    """Do as the job says: answer, or fail in one of the ways that a decoder of strange files may."""
    return await getattr(_Ways, job.data.do)(job)


def count(job: Job[dict[str, int]]) -> dict[str, int]:
    """A plain function, in the child's main thread."""
    job.log("counting")
    return {"sum": sum(range(job.data["to"])), "pid": os.getpid()}


class _Ways:
    @staticmethod
    async def answer(job: Job[Task]) -> dict[str, Any]:
        await job.progress(50)
        await job.log("half of it", "the rest")
        return {"pid": os.getpid(), "attempt": job.attempts_made}

    @staticmethod
    async def crash(job: Job[Task]) -> NoReturn:
        os.kill(os.getpid(), signal.SIGSEGV)
        raise AssertionError("unreachable")

    @staticmethod
    async def leave(job: Job[Task]) -> NoReturn:
        os._exit(3)

    @staticmethod
    async def hoard(job: Job[Task]) -> NoReturn:
        kept = []
        while True:
            kept.append(os.urandom(8 * 1024 * 1024))
            await asyncio.sleep(0.01)

    @staticmethod
    async def grab(job: Job[Task]) -> int:
        return len(bytearray(64 * 1024**3))

    @staticmethod
    async def block(job: Job[Task]) -> dict[str, int]:
        """As a decoder does that is busy in C: nothing else runs in the child meanwhile."""
        _write(job, str(os.getpid()))
        threading.Event().wait(BLOCKED_SECONDS)
        _write(job, "over")
        return {"attempt": job.attempts_made}

    @staticmethod
    async def hang(job: Job[Task]) -> NoReturn:
        _write(job, str(os.getpid()))
        try:
            await asyncio.Event().wait()
        finally:
            _write(job, "cleaned up")
        raise AssertionError("unreachable")

    @staticmethod
    async def refuse(job: Job[Task]) -> NoReturn:
        raise Unrecoverable("This file is not an image.")

    @staticmethod
    async def wait(job: Job[Task]) -> dict[str, int] | Snooze:
        if _is_first(job):
            return Snooze(timedelta(milliseconds=50))
        return {"attempt": job.attempts_made}


def _write(job: Job[Task], text: str) -> None:
    Path(job.data.file).write_text(text)


def _is_first(job: Job[Task]) -> bool:
    try:
        Path(job.data.file).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
