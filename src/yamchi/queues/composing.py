"""Which engine each queue lives on: made from the settings, opened when first used, with a spool beside each broker."""

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from yamchi.clock import Clock
from yamchi.queues.engines import EngineContext, find_scheme, is_embedded, make_engine, make_keys, make_spool
from yamchi.queues.engines.base import Engine
from yamchi.queues.failover import Spool, with_failover
from yamchi.queues.forking import MadeAnew, begin_anew_after_fork
from yamchi.queues.lazy import LazyEngine
from yamchi.settings import Settings
from yamchi.storage.private import close_folder

if TYPE_CHECKING:
    from yamchi.storage.keys import Keys


class Switches(Protocol):
    """Counts moves between brokers and their spools."""

    def expect_switches(self, one: str, other: str) -> None:
        """Queues may move between these types of engines."""

    def count_switch(self, origin: str, target: str) -> None:
        """A queue has moved."""


class Engines:
    """The engines of an application, one for each URL; or the one that it was given for all its queues."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        switches: Switches,
        topic_of: Callable[[str], str | None],
        given: Engine | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._switches = switches
        self._context = EngineContext(clock, settings.var, settings, topic_of)
        self._given = LazyEngine(_giving(given)) if given else None
        self._by_url: dict[str, LazyEngine] = {}
        self._spool: Spool | None = None
        self._of_parents: list[Spool] = []
        self.home: asyncio.AbstractEventLoop | None = None
        """The event loop on which the application is used; after it has ended, the next one."""
        begin_anew_after_fork(self)
        for url in settings.all_queue_urls:
            find_scheme(url)  # a wrong one is told at once

    def of(self, queue: str) -> Engine:
        """The engine of a queue, not opened yet."""
        if self._given:
            return self._given
        url = self._settings.queue_url(queue)
        if url not in self._by_url:
            self._by_url[url] = LazyEngine(partial(self._make, url))
        return self._by_url[url]

    @property
    def is_open(self) -> bool:
        """Whether any engine has been opened."""
        return any(engine.is_open for engine in (*self._by_url.values(), self._given) if engine)

    @property
    def is_settled(self) -> bool:
        return self.home is not None and self.home.is_running()

    async def settle_here(self) -> None:
        """Use the application on this event loop: engines that `app.sync` opened on its own loop move here."""
        for engine in (*self._by_url.values(), self._given):
            if engine:
                await engine.move_here()
        self.home = asyncio.get_running_loop()

    def begin_anew(self) -> None:
        self.home = None
        if self._spool:
            self._of_parents.append(self._spool)
            self._spool = None

    def keys(self) -> "Keys | None":
        """Keys with a lifetime on the broker, if it has a place for them."""
        return None if self._given else make_keys(self._settings.queue_url(""))

    async def close(self) -> None:
        for engine in (*self._by_url.values(), self._given, self._spool):
            if engine:
                await engine.close()

    def _make(self, url: str) -> Engine:
        """A broker gets a local spool to fall back on; an embedded engine is local already."""
        close_folder(self._settings.var)
        engine = make_engine(url, self._context)
        fallback = self._settings.queue_fallback
        if fallback == "off" or is_embedded(url):
            return engine
        if self._spool is None:
            self._spool = make_spool(fallback, self._settings.var / "spool.db", self._clock)
        self._switches.expect_switches(engine.type, self._spool.type)
        return with_failover(
            engine,
            self._spool,
            self._switches.count_switch,
            lambda queue: self._settings.queue_url(queue) == url,
        )


def _giving(engine: Engine) -> Callable[[], Engine]:
    """Returns the engine. A forked process can't use what its parent has opened, and gets another engine that is made like it."""
    process = os.getpid()

    def give() -> Engine:
        return engine.anew() if os.getpid() != process and isinstance(engine, MadeAnew) else engine

    return give
