"""Adding jobs. What is added in one turn of the event loop goes to Redis in one call, whoever added it."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from yamchi.clock import Clock, Millis
from yamchi.queues.engines.bull.address import Address
from yamchi.queues.engines.bull.base import Base
from yamchi.queues.engines.bull.codec import JobArgs, add_args
from yamchi.queues.engines.bull.connection import pack
from yamchi.queues.engines.bull.scripts import script
from yamchi.queues.job import NewJob

CHUNK, CHUNK_BYTES = 200, 1_000_000
"""So many jobs, or so much data, go into one call, so that Redis is not held up for long by one."""


@dataclass(slots=True)
class _Outbox:
    """Jobs of one queue that leave together."""

    jobs: list[JobArgs] = field(default_factory=list)
    parts: list[tuple[int, "asyncio.Future[list[bool]]"]] = field(default_factory=list)


class Producing(Base):
    """add, fire, begin_schedule, last_fired."""

    def __init__(self, address: Address, clock: Clock) -> None:
        super().__init__(address, clock)
        self._outboxes: dict[tuple[int, str], _Outbox] = {}

    async def add(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        base, now = self._base(queue), self._clock.now()
        packed = [add_args(base, job, now) for job in jobs]
        loop = asyncio.get_running_loop()
        outbox = self._outboxes.get((id(loop), queue))
        if outbox is None:
            outbox = self._outboxes[id(loop), queue] = _Outbox()
            loop.call_soon(self._post, queue, id(loop))
        created: asyncio.Future[list[bool]] = loop.create_future()
        outbox.jobs += packed
        outbox.parts.append((len(jobs), created))
        return await created

    def _post(self, queue: str, loop_id: int) -> None:
        outbox = self._outboxes.pop((loop_id, queue))
        self._begin(self._send(queue, outbox))

    async def _send(self, queue: str, outbox: _Outbox) -> None:
        try:
            created = await self._add_all(self._base(queue), outbox.jobs)
        except Exception as error:
            for _, future in outbox.parts:
                if not future.done():
                    future.set_exception(error)
            return
        for count, future in outbox.parts:
            mine, created = created[:count], created[count:]
            if not future.done():
                future.set_result(mine)

    async def _add_all(self, base: str, jobs: Sequence[JobArgs]) -> list[bool]:
        add = script("add")
        calls = [(add, add.call(base, *chain.from_iterable(some))) for some in _in_chunks(jobs)]
        replies = await self._links.run_many(calls, "add")
        return [is_new == 1 for reply in replies for is_new in reply]

    async def fire(self, schedule: str, moment: Millis, queue: str, job: NewJob) -> bool:
        base = self._base(queue)
        args = add_args(base, job, self._clock.now())
        fired = await self._links.run(script("fire"), base, self._schedules, schedule, moment, *args, keys=2)
        return bool(fired)

    async def begin_schedule(self, schedule: str, moment: Millis) -> None:
        await self._links.ask(pack("HSETNX", self._schedules, schedule, moment))

    async def last_fired(self, schedule: str) -> Millis | None:
        (moment,) = await self._links.ask(pack("HGET", self._schedules, schedule))
        return int(moment) if moment is not None else None


def _in_chunks(jobs: Sequence[JobArgs]) -> Iterator[list[JobArgs]]:
    chunk: list[JobArgs] = []
    size = 0
    for job in jobs:
        chunk.append(job)
        size += len(job[3])
        if len(chunk) == CHUNK or size > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
