"""Concurrent adds are one batch: what one iteration of the event loop asks for is one transaction."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from yamchi.queues.records import NewJob
from yamchi.storage.batching import Batcher

Write = Callable[[str, Sequence[NewJob]], Awaitable[list[bool]]]


class AddBatcher:
    """Batches the adds of one event loop, by queue."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._batchers: dict[str, Batcher[Sequence[NewJob], list[bool]]] = {}

    async def add(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        batcher = self._batchers.get(queue)
        if batcher is None:
            batcher = self._batchers[queue] = Batcher(lambda pieces: self._deliver(queue, pieces))
        return await batcher.do(jobs)

    async def empty(self) -> None:
        """Return when everything collected has been answered."""
        await asyncio.gather(*(batcher.empty() for batcher in self._batchers.values()))

    async def _deliver(self, queue: str, pieces: Sequence[Sequence[NewJob]]) -> list[list[bool]]:
        created = iter(await self._write(queue, [job for jobs in pieces for job in jobs]))
        return [[next(created) for _ in jobs] for jobs in pieces]
