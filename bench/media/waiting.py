"""Waits for the jobs of a queue that this process works on."""

import asyncio
from collections.abc import Iterable
from typing import Any

from yamchi.queues.queue import Queue

LONGEST_SECONDS = 600


class Finished:
    """Which jobs of a queue have ended well; one that failed ends the measurement."""

    def __init__(self, queue: Queue) -> None:
        self._ids: set[str] = set()
        self._failure = ""
        self._news = asyncio.Event()
        queue.on("completed", self._note)
        queue.on("failed", self._note_failure)

    async def wait_for(self, ids: Iterable[str], number: int | None = None) -> None:
        """Until so many of these have ended, or all of them."""
        wanted = set(ids)
        async with asyncio.timeout(LONGEST_SECONDS):
            while len(wanted & self._ids) < (len(wanted) if number is None else number):
                await self._news.wait()
                self._news.clear()
                if self._failure:
                    raise SystemExit(self._failure)

    def _note(self, job: Any, result: Any) -> None:
        self._ids.add(job.id)
        self._news.set()

    def _note_failure(self, job: Any, error: Any) -> None:
        self._failure = f"{job.id} failed: {error}"
        self._news.set()
