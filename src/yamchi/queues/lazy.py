"""An engine that opens itself when it is first used, so that declaring queues costs nothing and needs no `await`.

It is opened on one event loop, its home: a call from another one (the lease keeper's) does not open it.
Every method of the contract is listed, so that mypy sees what is missing. Once the engine is open, a call costs one function more
and no coroutine.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from functools import cached_property
from typing import Any, Concatenate, ParamSpec, TypeVar

from yamchi.errors import EngineError, EngineUnavailable
from yamchi.queues.engines.base import Capabilities, Engine, Event, broker_of
from yamchi.queues.forking import begin_anew_after_fork

P = ParamSpec("P")
T = TypeVar("T")
Coro = Coroutine[Any, Any, T]


def _passed_on(
    method: Callable[Concatenate[Engine, P], Coro[T]],
) -> Callable[Concatenate["LazyEngine", P], Coro[T]]:
    """A method of `LazyEngine` that calls this one of its engine."""
    name = method.__name__

    def call(self: "LazyEngine", /, *given: P.args, **named: P.kwargs) -> Coro[T]:
        if not self.is_open:
            return self._open_and_call(name, *given, **named)
        answer: Coro[T] = getattr(self._engine, name)(*given, **named)
        return answer

    return call


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

    async def _open_and_call(self, method: str, *given: Any, **named: Any) -> Any:
        await self.open()
        return await getattr(self._engine, method)(*given, **named)

    # ── The contract ──────────────────────────────────────────────────────────────────────────────────────────────

    ping = _passed_on(Engine.ping)
    add = _passed_on(Engine.add)
    fire = _passed_on(Engine.fire)
    begin_schedule = _passed_on(Engine.begin_schedule)
    last_fired = _passed_on(Engine.last_fired)
    exchange = _passed_on(Engine.exchange)
    renew = _passed_on(Engine.renew)
    recover = _passed_on(Engine.recover)
    wake = _passed_on(Engine.wake)
    reserve = _passed_on(Engine.reserve)
    refund = _passed_on(Engine.refund)
    cancelled = _passed_on(Engine.cancelled)
    heartbeat = _passed_on(Engine.heartbeat)
    get = _passed_on(Engine.get)
    page = _passed_on(Engine.page)
    counts = _passed_on(Engine.counts)
    history = _passed_on(Engine.history)
    queues = _passed_on(Engine.queues)
    workers = _passed_on(Engine.workers)
    remove = _passed_on(Engine.remove)
    cancel = _passed_on(Engine.cancel)
    promote = _passed_on(Engine.promote)
    retry = _passed_on(Engine.retry)
    update = _passed_on(Engine.update)
    progress = _passed_on(Engine.progress)
    log = _passed_on(Engine.log)
    pause = _passed_on(Engine.pause)
    resume = _passed_on(Engine.resume)
    paused = _passed_on(Engine.paused)
    clean = _passed_on(Engine.clean)
    letters = _passed_on(Engine.letters)
    letter = _passed_on(Engine.letter)
    replay = _passed_on(Engine.replay)
    purge = _passed_on(Engine.purge)

    async def events(self) -> AsyncIterator[Event]:
        await self.open()
        async for event in self._engine.events():
            yield event
