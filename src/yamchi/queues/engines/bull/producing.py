"""Adding jobs. What is added in one turn of the event loop goes to Redis in few calls, whoever added it."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from yamchi.clock import Clock, Millis
from yamchi.errors import EngineError
from yamchi.queues.engines.bull.address import Address
from yamchi.queues.engines.bull.base import Base
from yamchi.queues.engines.bull.codec import JobArgs, add_args
from yamchi.queues.engines.bull.connection import pack
from yamchi.queues.engines.bull.links import is_unknown
from yamchi.queues.engines.bull.scripts import Script, script
from yamchi.queues.job import NewJob

CHUNK, CHUNK_BYTES = 200, 1_000_000
"""So many jobs, or so much data, go into one call, so that Redis is not held up for long by one."""

SHARE = 25
"""Callers who add at the same time share a call until it has so many jobs: while Redis works on one, others come back."""


@dataclass(slots=True)
class _Outbox:
    """Jobs of one queue that leave together, and whoever waits to hear which of them are new."""

    jobs: list[JobArgs] = field(default_factory=list)
    parts: list[tuple[int, "asyncio.Future[list[bool]]"]] = field(default_factory=list)

    def answer(self, created: Sequence[bool]) -> None:
        begin = 0
        for count, future in self.parts:
            if not future.done():
                future.set_result(list(created[begin : begin + count]))
            begin += count

    def fail(self, error: BaseException) -> None:
        for _, future in self.parts:
            if not future.done():
                future.set_exception(error)


@dataclass(slots=True)
class _Reception:
    """Takes Redis's answer the moment it is here: no task, and no turn of the event loop, in between."""

    outbox: _Outbox
    read: Callable[[Any], list[bool]]
    send_again: Callable[[], None]

    def done(self) -> bool:
        return False

    def set_result(self, replies: list[Any]) -> None:
        if is_unknown(replies[0]):
            self.send_again()  # with the script this time
            return
        try:
            self.outbox.answer(self.read(replies[0]))
        except EngineError as error:
            self.outbox.fail(error)

    def set_exception(self, error: BaseException) -> None:
        self.outbox.fail(error)

    def exception(self) -> None:
        """The error is where it belongs: with those who wait."""


class Producing(Base):
    """add, fire, begin_schedule, last_fired."""

    def __init__(self, address: Address, clock: Clock) -> None:
        super().__init__(address, clock)
        self._outboxes: dict[tuple[int, str], list[_Outbox]] = {}

    async def add(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        base, now = self._base(queue), self._clock.now()
        packed = [add_args(base, job, now) for job in jobs]
        loop = asyncio.get_running_loop()
        outboxes = self._outboxes.get((id(loop), queue))
        if outboxes is None:
            outboxes = self._outboxes[id(loop), queue] = [_Outbox()]
            loop.call_soon(self._post_all, queue, id(loop))
        if len(outboxes[-1].jobs) >= SHARE:
            outboxes.append(_Outbox())
        created: asyncio.Future[list[bool]] = loop.create_future()
        outboxes[-1].jobs += packed
        outboxes[-1].parts.append((len(jobs), created))
        return await created

    def _post_all(self, queue: str, loop_id: int) -> None:
        for outbox in self._outboxes.pop((loop_id, queue)):
            self._post(queue, outbox)

    def _post(self, queue: str, outbox: _Outbox) -> None:
        add, base = script("add"), self._base(queue)
        calls = [(add, add.call(base, *chain.from_iterable(some))) for some in _in_chunks(outbox.jobs)]
        connection = self._links.ready("add")
        if connection is None or len(calls) != 1:
            self._begin(self._send(calls, outbox))
            return
        reception = _Reception(
            outbox,
            lambda reply: _created([self._links.checked(connection, reply)]),
            lambda: self._begin(self._send(calls, outbox)),
        )
        connection.post([calls[0][1]], reception)

    async def _send(self, calls: Sequence[tuple[Script, bytes]], outbox: _Outbox) -> None:
        try:
            outbox.answer(_created(await self._links.run_many(calls, "add")))
        except Exception as error:
            outbox.fail(error)

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


def _created(replies: Sequence[Sequence[int]]) -> list[bool]:
    return [is_new == 1 for reply in replies for is_new in reply]


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
