"""An engine that opens itself when it is first used, so that declaring queues costs nothing and needs no `await`.

It is opened on one event loop, its home: a call from another one (the lease keeper's) does not open it.
Every method of the contract is written out, so that mypy sees what is missing. Once the engine is open, a call costs one
function more and no coroutine.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, TypeVar

from yamchi.clock import Millis
from yamchi.errors import EngineError, EngineUnavailable
from yamchi.queues.engines.base import (
    Capabilities,
    Engine,
    Event,
    Exchange,
    LetterPage,
    Minute,
    Page,
    RateLimit,
    WorkerInfo,
    broker_of,
)
from yamchi.queues.forking import begin_anew_after_fork
from yamchi.queues.records import Claim, DeadLetter, JobRecord, NewJob, State, Verdict

T = TypeVar("T")
Coro = Coroutine[Any, Any, T]


class LazyEngine:
    """Passes every call on to the engine that `make` gives, after making and opening it once."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self._make = make
        self._home: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._of_parents: list[Engine] = []
        """Engines of the processes this one was forked from: kept, so that nothing of theirs is closed here."""
        self.is_open = False
        begin_anew_after_fork(self)

    @cached_property
    def _engine(self) -> Engine:
        return self._make()

    def begin_anew(self) -> None:
        if engine := self.__dict__.pop("_engine", None):
            self._of_parents.append(engine)
        self._home, self._opening, self._closing, self.is_open = None, None, None, False

    @property
    def home(self) -> asyncio.AbstractEventLoop | None:
        """The event loop on which it was opened, or is about to be."""
        return self._home

    @property
    def primary(self) -> Engine:
        """The engine itself; behind a spool, the broker."""
        return broker_of(self._engine)

    @property
    def type(self) -> str:
        return self._engine.type

    @cached_property
    def can(self) -> Capabilities:
        return self._engine.can

    # ── Opening ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        if self.is_open:
            return
        if self._home is None or self._home.is_closed():
            self._home, self._opening = asyncio.get_running_loop(), None
        if self._home is not asyncio.get_running_loop():
            raise EngineUnavailable(f"The {self._engine.type} engine is not open yet.")
        await self._be_closed()
        if self._opening is None:
            self._opening = asyncio.create_task(self._engine.open())
        opening = self._opening
        await asyncio.wait([opening])  # who gives up waiting leaves it to the others
        is_last = self._opening is opening
        if not opening.cancelled() and (error := opening.exception()):
            # Of many who waited, only those for whom this try is still the last one may call for another.
            self._opening = None if is_last else self._opening
            raise error
        if not is_last:
            raise EngineUnavailable(f"The {self._engine.type} engine was closed while it was being opened.")
        self.is_open = True

    async def close(self) -> None:
        opening, self._opening, self.is_open = self._opening, None, False
        if opening:
            await self._close_at(self._home, opening)

    async def _close_at(
        self, home: asyncio.AbstractEventLoop | None, opening: "asyncio.Task[None] | None" = None
    ) -> None:
        """What it opened may belong to its home's event loop, so it is closed there."""
        if home and home.is_running() and home is not asyncio.get_running_loop():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._close_here(opening), home))
        else:
            await self._close_here(opening)

    async def _close_here(self, opening: "asyncio.Task[None] | None") -> None:
        await self._be_closed()
        self._closing = asyncio.create_task(self._end(opening))
        await asyncio.shield(self._closing)

    async def _end(self, opening: "asyncio.Task[None] | None") -> None:
        if opening and not opening.done() and opening.get_loop() is asyncio.get_running_loop():
            opening.cancel()
            await asyncio.wait([opening])
        await self._engine.close()

    async def _be_closed(self) -> None:
        """Wait while it closes: what is opened meanwhile would be closed with the rest, and taken for open."""
        while (
            (closing := self._closing)
            and not closing.done()
            and closing.get_loop() is asyncio.get_running_loop()
        ):
            await asyncio.wait([closing])

    async def move_here(self) -> None:
        """From now on its home is the event loop that runs here. Who calls on the old one meanwhile is told to come here."""
        here, home = asyncio.get_running_loop(), self._home
        if home is None or home is here or not home.is_running():
            return
        if self._opening and not self.is_open:  # whether or not it succeeds
            await asyncio.wait([asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.open(), home))])
        was_open, self.is_open, self._home, self._opening = self.is_open, False, here, None
        if was_open:
            self._opening = asyncio.create_task(self._reopen(home))
            with suppress(EngineError):  # the next call tries again
                await self.open()

    async def _reopen(self, old: asyncio.AbstractEventLoop) -> None:
        await self._close_at(old)
        await self._engine.open()

    def _call(self, ask: Callable[[Engine], Coro[T]]) -> Coro[T]:
        return ask(self._engine) if self.is_open else self._open_and_call(ask)

    async def _open_and_call(self, ask: Callable[[Engine], Coro[T]]) -> T:
        await self.open()
        return await ask(self._engine)

    # ── The contract ──────────────────────────────────────────────────────────────────────────────────────────────

    def ping(self) -> Coro[None]:
        return self._call(lambda engine: engine.ping())

    def add(self, queue: str, jobs: Sequence[NewJob]) -> Coro[list[bool]]:
        return self._call(lambda engine: engine.add(queue, jobs))

    def fire(self, schedule: str, moment: Millis, queue: str, job: NewJob) -> Coro[bool]:
        return self._call(lambda engine: engine.fire(schedule, moment, queue, job))

    def begin_schedule(self, schedule: str, moment: Millis) -> Coro[None]:
        return self._call(lambda engine: engine.begin_schedule(schedule, moment))

    def last_fired(self, schedule: str) -> Coro[Millis | None]:
        return self._call(lambda engine: engine.last_fired(schedule))

    def exchange(
        self, queue: str, verdicts: Sequence[Verdict], want: int, lease: Millis, worker: str
    ) -> Coro[Exchange]:
        return self._call(lambda engine: engine.exchange(queue, verdicts, want, lease, worker))

    def renew(self, queue: str, claims: Sequence[Claim], lease: Millis) -> Coro[list[str]]:
        return self._call(lambda engine: engine.renew(queue, claims, lease))

    def recover(self, queue: str) -> Coro[list[tuple[JobRecord, bool]]]:
        return self._call(lambda engine: engine.recover(queue))

    def wake(self, queue: str, timeout: Millis) -> Coro[None]:
        return self._call(lambda engine: engine.wake(queue, timeout))

    def reserve(self, queue: str, limit: RateLimit, keys: Sequence[str]) -> Coro[list[Millis]]:
        return self._call(lambda engine: engine.reserve(queue, limit, keys))

    def refund(self, queue: str, limit: RateLimit, key: str, permits: int) -> Coro[None]:
        return self._call(lambda engine: engine.refund(queue, limit, key, permits))

    def cancelled(self, queue: str, claims: Sequence[Claim]) -> Coro[list[str]]:
        return self._call(lambda engine: engine.cancelled(queue, claims))

    def heartbeat(self, worker: WorkerInfo | str) -> Coro[None]:
        return self._call(lambda engine: engine.heartbeat(worker))

    def get(self, queue: str, job_id: str) -> Coro[JobRecord | None]:
        return self._call(lambda engine: engine.get(queue, job_id))

    def page(self, queue: str, state: State | None, search: str, offset: int, limit: int) -> Coro[Page]:
        return self._call(lambda engine: engine.page(queue, state, search, offset, limit))

    def counts(self, queue: str) -> Coro[dict[State, int]]:
        return self._call(lambda engine: engine.counts(queue))

    def history(self, queue: str, minutes: int) -> Coro[list[Minute]]:
        return self._call(lambda engine: engine.history(queue, minutes))

    def queues(self) -> Coro[list[str]]:
        return self._call(lambda engine: engine.queues())

    def workers(self) -> Coro[list[WorkerInfo]]:
        return self._call(lambda engine: engine.workers())

    def remove(self, queue: str, job_ids: Sequence[str]) -> Coro[list[str]]:
        return self._call(lambda engine: engine.remove(queue, job_ids))

    def cancel(self, queue: str, job_ids: Sequence[str]) -> Coro[dict[str, State]]:
        return self._call(lambda engine: engine.cancel(queue, job_ids))

    def promote(self, queue: str, job_ids: Sequence[str]) -> Coro[list[str]]:
        return self._call(lambda engine: engine.promote(queue, job_ids))

    def retry(self, queue: str, job_ids: Sequence[str]) -> Coro[list[str]]:
        return self._call(lambda engine: engine.retry(queue, job_ids))

    def update(self, queue: str, job_id: str, payload: bytes) -> Coro[bool]:
        return self._call(lambda engine: engine.update(queue, job_id, payload))

    def progress(self, claim: Claim, value: bytes) -> Coro[None]:
        return self._call(lambda engine: engine.progress(claim, value))

    def log(self, queue: str, job_id: str, lines: Sequence[str]) -> Coro[None]:
        return self._call(lambda engine: engine.log(queue, job_id, lines))

    def pause(self, queue: str) -> Coro[None]:
        return self._call(lambda engine: engine.pause(queue))

    def resume(self, queue: str) -> Coro[None]:
        return self._call(lambda engine: engine.resume(queue))

    def paused(self, queue: str) -> Coro[bool]:
        return self._call(lambda engine: engine.paused(queue))

    def clean(self, queue: str, state: State, older_than: Millis, limit: int) -> Coro[int]:
        return self._call(lambda engine: engine.clean(queue, state, older_than, limit))

    def letters(self, queue: str, search: str, offset: int, limit: int) -> Coro[LetterPage]:
        return self._call(lambda engine: engine.letters(queue, search, offset, limit))

    def letter(self, queue: str, letter_id: str) -> Coro[DeadLetter | None]:
        return self._call(lambda engine: engine.letter(queue, letter_id))

    def replay(self, queue: str, jobs: Mapping[str, NewJob]) -> Coro[list[str]]:
        return self._call(lambda engine: engine.replay(queue, jobs))

    def purge(self, queue: str, letter_ids: Sequence[str] | None) -> Coro[int]:
        return self._call(lambda engine: engine.purge(queue, letter_ids))

    async def events(self) -> AsyncIterator[Event]:
        await self.open()
        async for event in self._engine.events():
            yield event
