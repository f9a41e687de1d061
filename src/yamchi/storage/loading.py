"""Looking up many rows at once: what one turn of the event loop asks for by key becomes one query."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
Fetch = Callable[[Sequence[K]], Awaitable[Mapping[K, V]]]

MOST = 500
"""Keys in one query."""


class Loader(Generic[K, V]):
    """`get(key)` for many callers, one `fetch(keys)` for all of them. Nothing is remembered between turns."""

    def __init__(self, fetch: Fetch[K, V]) -> None:
        self._fetch = fetch
        self._wanted: dict[K, asyncio.Future[V | None]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def get(self, key: K) -> V | None:
        future = self._wanted.get(key)
        if future is None:
            loop = asyncio.get_running_loop()
            future = self._wanted[key] = loop.create_future()
            if len(self._wanted) == 1:
                loop.call_soon(self._start)
        return await asyncio.shield(future)

    def _start(self) -> None:
        wanted, self._wanted = self._wanted, {}
        keys = list(wanted)
        for start in range(0, len(keys), MOST):
            task = asyncio.create_task(self._load({key: wanted[key] for key in keys[start : start + MOST]}))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _load(self, wanted: Mapping[K, "asyncio.Future[V | None]"]) -> None:
        try:
            found = await self._fetch(list(wanted))
        except Exception as error:
            for future in wanted.values():
                future.set_exception(error)
            return
        for key, future in wanted.items():
            future.set_result(found.get(key))
