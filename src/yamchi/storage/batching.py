"""Concurrent calls become one batch: what many callers ask for at the same time is done in one go.

A caller hands over an item and waits for its answer. What one iteration of the event loop brings, and all that comes while
earlier batches are on their way, makes up the next batch.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from yamchi.errors import EngineUnavailable

T = TypeVar("T")
R = TypeVar("R")
Work = Callable[[Sequence[T]], Awaitable[Sequence[R | Exception]]]
"""Returns an answer for each item, in order. An exception is raised to the caller of that item."""


class Batcher(Generic[T, R]):
    """Collects the items of one event loop's coroutines. At most `in_flight` batches run at once, each of at most `most` items."""

    def __init__(self, work: Work[T, R], *, in_flight: int = 2, most: int = 1_000) -> None:
        self._work = work
        self._free = in_flight
        self._most = most
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def do(self, item: T) -> R:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[R] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._send)
        self._waiting.append((item, answer))
        return await answer

    async def empty(self) -> None:
        """Return when everything collected has been answered."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _send(self) -> None:
        while self._waiting and self._free:
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            self._free -= 1
            task = asyncio.create_task(self._deliver(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _deliver(self, batch: list[tuple[T, "asyncio.Future[R]"]]) -> None:
        try:
            await self._deliver_together(batch)
        except asyncio.CancelledError:  # the event loop is about to end: nothing more is begun on it
            left, self._waiting = [*batch, *self._waiting], []
            for _, answer in left:
                answer.cancel()
            raise
        finally:
            self._free += 1
        self._send()

    async def _deliver_together(self, batch: list[tuple[T, "asyncio.Future[R]"]]) -> None:
        try:
            answers = await self._work([item for item, _ in batch])
        except Exception as error:
            if len(batch) == 1 or isinstance(error, EngineUnavailable):
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                return
            for one in batch:  # one caller's bad item must not be another's error
                await self._deliver_together([one])
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
