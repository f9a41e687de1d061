"""Adding jobs. What is added in one iteration of the event loop goes to Redis in few calls, whoever added it."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from yamchi.clock import Millis
from yamchi.errors import EngineError
from yamchi.queues.engines.bull.base import Context, Part
from yamchi.queues.engines.bull.codec import JobArgs, add_args
from yamchi.queues.engines.bull.connection import Connection, pack
from yamchi.queues.engines.bull.connections import is_unknown
from yamchi.queues.engines.bull.scripts import script
from yamchi.queues.records import NewJob

CHUNK, CHUNK_BYTES = 200, 1_000_000
"""So many jobs, or so much data, go into one call, so that Redis is not held up for long by one."""

SHARED_CALL = 25
"""Callers who add at the same time share a call until it has so many jobs: while Redis works on one, others come back."""


@dataclass(slots=True)
class _AddBatch:
    """Jobs of one queue that leave together, and whoever waits to hear which of them are new."""

    jobs: list[JobArgs] = field(default_factory=list)
    parts: list[tuple[int, "asyncio.Future[list[bool]]"]] = field(default_factory=list)

    def calls(self, base: str) -> list[bytes]:
        """As few calls as Redis can be asked to do without a pause."""
        add = script("add")
        if len(self.jobs) == 1:
            return [add.call(base, *self.jobs[0])]
        return [add.call(base, *chain.from_iterable(some)) for some in _in_chunks(self.jobs)]

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
class _AddReply:
    """Takes Redis's answer the moment it is here: no task, and no iteration of the event loop, in between."""

    batch: _AddBatch
    check: Callable[[Any], Any]
    send_again: Callable[[], None]

    def done(self) -> bool:
        return False

    def set_result(self, replies: list[Any]) -> None:
        if is_unknown(replies[0]):
            self.send_again()  # with the script this time
            return
        try:
            self.batch.answer(_created(map(self.check, replies)))
        except EngineError as error:
            self.batch.fail(error)

    def set_exception(self, error: BaseException) -> None:
        self.batch.fail(error)

    def exception(self) -> None:
        """The error is where it belongs: with those who wait."""


class Producing(Part):
    """add, fire, begin_schedule, last_fired."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._batches: dict[tuple[int, str], list[_AddBatch]] = {}

    async def add(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        base, now = self._base(queue), self._clock.now()
        packed = [add_args(base, job, now) for job in jobs]
        loop = asyncio.get_running_loop()
        created: asyncio.Future[list[bool]] = loop.create_future()
        connection = self._connections.ready("add")
        if connection and not connection.pending and (id(loop), queue) not in self._batches:
            batch = _AddBatch(packed, [(len(jobs), created)])  # nobody to share a call with
            self._post(queue, batch, connection)
        else:
            self._collect(queue, loop, packed, created)
        return await created

    def _collect(
        self,
        queue: str,
        loop: asyncio.AbstractEventLoop,
        packed: list[JobArgs],
        created: "asyncio.Future[list[bool]]",
    ) -> None:
        """Leave with whoever else adds in this iteration of the event loop."""
        batches = self._batches.get((id(loop), queue))
        if batches is None:
            batches = self._batches[id(loop), queue] = [_AddBatch()]
            loop.call_soon(self._post_all, queue, id(loop))
        if len(batches[-1].jobs) >= SHARED_CALL:
            batches.append(_AddBatch())
        batches[-1].jobs += packed
        batches[-1].parts.append((len(packed), created))

    def _post_all(self, queue: str, loop_id: int) -> None:
        connection = self._connections.ready("add")
        for batch in self._batches.pop((loop_id, queue)):
            self._post(queue, batch, connection)

    def _post(self, queue: str, batch: _AddBatch, connection: Connection | None) -> None:
        calls = batch.calls(self._base(queue))
        if connection and len(calls) == 1:
            check = partial(self._connections.checked, connection)
            connection.post(calls, _AddReply(batch, check, lambda: self._begin(self._send(calls, batch))))
        else:
            self._begin(self._send(calls, batch))

    async def _send(self, calls: Sequence[bytes], batch: _AddBatch) -> None:
        """The long way: the connection may have to be made, or the script loaded."""
        add = script("add")
        try:
            batch.answer(_created(await self._connections.run_many([(add, call) for call in calls], "add")))
        except Exception as error:
            batch.fail(error)

    async def fire(self, schedule: str, moment: Millis, queue: str, job: NewJob) -> bool:
        base = self._base(queue)
        args = add_args(base, job, self._clock.now())
        fired = await self._connections.run(
            script("fire"), base, self._schedules, schedule, moment, *args, keys=2
        )
        return bool(fired)

    async def begin_schedule(self, schedule: str, moment: Millis) -> None:
        await self._connections.ask(pack("HSETNX", self._schedules, schedule, moment))

    async def last_fired(self, schedule: str) -> Millis | None:
        (moment,) = await self._connections.ask(pack("HGET", self._schedules, schedule))
        return int(moment) if moment is not None else None


def _created(replies: Iterable[Sequence[int]]) -> list[bool]:
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
