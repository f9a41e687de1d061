"""Adds that come at the same time travel together: what one turn of the event loop asks for is one transaction."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

from yamchi.errors import EngineUnavailable
from yamchi.queues.job import NewJob

Write = Callable[[str, Sequence[NewJob]], Awaitable[list[bool]]]
Ticket = tuple[Sequence[NewJob], "asyncio.Future[list[bool]]"]

IN_FLIGHT = 2
"""Batches of one queue on their way at the same time; what comes meanwhile waits for the next one."""


class Mailbag:
    """Collects the adds of one event loop."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._waiting: dict[str, list[Ticket]] = defaultdict(list)
        self._sending: dict[str, int] = defaultdict(int)
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[bool]] = loop.create_future()
        if not self._waiting[queue]:
            loop.call_soon(self._send, queue)
        self._waiting[queue].append((jobs, answer))
        return await answer

    async def empty(self) -> None:
        """Return when everything collected has been answered."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _send(self, queue: str) -> None:
        if self._sending[queue] < IN_FLIGHT and (tickets := self._waiting.pop(queue, None)):
            self._sending[queue] += 1
            task = asyncio.create_task(self._deliver(queue, tickets))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _deliver(self, queue: str, tickets: list[Ticket]) -> None:
        try:
            await self._deliver_together(queue, tickets)
        finally:
            self._sending[queue] -= 1
            self._send(queue)

    async def _deliver_together(self, queue: str, tickets: list[Ticket]) -> None:
        try:
            created = await self._write(queue, [job for jobs, _ in tickets for job in jobs])
        except Exception as error:
            if len(tickets) == 1 or isinstance(error, EngineUnavailable):
                for _, answer in tickets:
                    if not answer.done():
                        answer.set_exception(error)
                return
            for ticket in tickets:  # one caller's bad job must not be another's error
                await self._deliver_together(queue, [ticket])
            return
        begin = 0
        for jobs, answer in tickets:
            if not answer.done():
                answer.set_result(created[begin : begin + len(jobs)])
            begin += len(jobs)
