"""What the parts of the engine share: the clock, the connections, the names of keys."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

from yamchi.clock import Clock
from yamchi.errors import EngineError
from yamchi.queues.engines.bull.address import Address
from yamchi.queues.engines.bull.connection import pack
from yamchi.queues.engines.bull.connections import Connections

T = TypeVar("T")


async def section(found: AsyncIterator[T], offset: int, limit: int) -> tuple[list[T], int]:
    """What is found from an offset on, and how much there is in all; the rest is counted and not kept."""
    kept, total = [], 0
    async for one in found:
        if offset <= total < offset + limit:
            kept.append(one)
        total += 1
    return kept, total


class Context:
    """Made once for an engine, and given to each of its parts."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self.prefix = address.prefix
        self.clock = clock
        self.connections = Connections(address)
        self.begun: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside; `close` waits for it."""
        task = asyncio.create_task(work)
        self.begun.add(task)
        task.add_done_callback(self.begun.discard)


class Part:
    """A part of the engine. Parts know the context, and no other part."""

    def __init__(self, context: Context) -> None:
        self._prefix = context.prefix
        self._clock = context.clock
        self._connections = context.connections
        self._begin = context.begin

    def _base(self, queue: str) -> str:
        """The prefix of a queue's keys."""
        return f"{self._prefix}:{queue}:"

    @property
    def _schedules(self) -> str:
        return f"{self._prefix}:ym@schedules"

    @property
    def _workers(self) -> str:
        return f"{self._prefix}:ym@workers"

    async def _hashes(self, base: str, ids: Sequence[bytes]) -> list[list[bytes]]:
        """The hashes of jobs; one that is none, since somebody wrote something else there, says so."""
        try:
            return await self._connections.ask(*(pack("HGETALL", base.encode() + job_id) for job_id in ids))
        except EngineError as error:
            if "WRONGTYPE" not in str(error):
                raise
        if len(ids) == 1:
            return [[b"failedReason", b"What lies under this id is no job"]]
        return [flat for job_id in ids for flat in await self._hashes(base, [job_id])]
