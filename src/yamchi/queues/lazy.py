"""An engine that opens itself when it is first used, so that declaring queues costs nothing and needs no `await`.

It is opened on one event loop, its home: a call from another one (the lease keeper's) does not open it.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

from yamchi.errors import EngineUnavailable
from yamchi.queues.engines.base import Engine, Event


def open_on_first_use(make: Callable[[], Engine]) -> Engine:
    """The engine that `make` gives, which need not be opened by hand."""
    return cast(Engine, _LazyEngine(make))


class _LazyEngine:
    """Passes every call on to the engine, after making and opening it once."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self._make = make
        self._home: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Task[None] | None = None
        self._is_open = False
        self._direct: set[str] = set()

    @functools.cached_property
    def _engine(self) -> Engine:
        return self._make()

    def __getattr__(self, name: str) -> Any:
        target = getattr(self._engine, name)
        if name in ("type", "can") or not callable(target):
            return target
        if self._is_open:
            self._direct.add(name)
            self.__dict__[name] = target  # kept: from now on a call costs nothing more here
            return target

        @functools.wraps(target)
        async def call(*arguments: Any, **named: Any) -> Any:
            await self.open()
            return await target(*arguments, **named)

        return call

    async def open(self) -> None:
        if self._home is None or self._home.is_closed():
            self._home, self._opening = asyncio.get_running_loop(), None
        if self._home is not asyncio.get_running_loop():
            raise EngineUnavailable(f"The {self._engine.type} engine is not open yet.")
        if self._opening is None:
            self._opening = asyncio.create_task(self._engine.open())
        opening = self._opening
        try:
            await asyncio.shield(opening)
            self._is_open = True
        finally:
            # Of many who waited, only those for whom this try is still the last one may call for another.
            if not self._is_open and opening.done() and self._opening is opening:
                self._opening = None

    async def close(self) -> None:
        if self._is_open:
            self._is_open, self._opening = False, None
            while self._direct:
                del self.__dict__[self._direct.pop()]
            await self._engine.close()

    async def events(self) -> AsyncIterator[Event]:
        await self.open()
        async for event in self._engine.events():
            yield event
