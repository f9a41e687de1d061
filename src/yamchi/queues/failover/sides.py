"""Which of the two is in use, the broker or the spool: a flag, and the calls that decide it.

It turns to the spool when a call fails and the broker does not answer a ping. It turns back only when the spool is empty
(`moving`), so that nothing new overtakes what waited.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from yamchi.errors import EngineUnavailable
from yamchi.queues.engines.base import Engine
from yamchi.queues.engines.wakeups import Wakeup
from yamchi.queues.failover.spool import Spool
from yamchi.queues.timeouts import CallTimeout

log = structlog.get_logger("yamchi.failover")

T = TypeVar("T")
OnSwitch = Callable[[str, str], None]

CALL_SECONDS = 5.0
"""How long a call may take before the broker is asked whether it is there."""


class Sides:
    """The broker, its spool, and which of them is in use."""

    def __init__(self, primary: Engine, spool: Spool, on_switch: OnSwitch) -> None:
        self.primary = primary
        self.spool = spool
        self.on_primary = True
        self.switched = Wakeup()
        """Set at the next switch, and then replaced by a new one."""
        self._listeners = [on_switch]
        self._timeout = CallTimeout(CALL_SECONDS)

    @property
    def current(self) -> Engine:
        return self.primary if self.on_primary else self.spool

    def on_switch(self, listener: OnSwitch) -> None:
        self._listeners.append(listener)

    def close(self) -> None:
        """Let go of the timer, which belongs to an event loop."""
        self._timeout.close()

    async def call(
        self,
        ask: Callable[[Engine], Awaitable[T]],
        ask_doubtful: Callable[[Spool], Awaitable[T]] | None = None,
    ) -> T:
        """Ask the engine in use; what the broker did not answer is asked again where it can be done. `ask_doubtful` asks
        the spool for what the broker may have done all the same."""
        if not self.on_primary:
            return await ask(self.spool)
        is_second = False
        while self.on_primary:
            try:
                work = ask(self.primary)
                return await (work if is_second else self._timeout.wait_for(work))
            except (EngineUnavailable, TimeoutError) as error:
                if not await self.is_primary_there():
                    why = str(error) or f"{self.primary.type} did not answer within {CALL_SECONDS:g} s"
                    self.switch(to_primary=False, why=why)
                elif is_second:
                    raise
                is_second = True
        return await (ask_doubtful or ask)(self.spool)

    async def is_primary_there(self) -> bool:
        """One lost connection is not an outage."""
        try:
            await self._timeout.wait_for(self.primary.ping())
        except (EngineUnavailable, TimeoutError):
            return False
        return True

    async def is_primary_back(self) -> bool:
        """Whether a broker that was away can be opened and answers."""
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await self.primary.open()
                await self.primary.ping()
        except (EngineUnavailable, TimeoutError):
            return False
        return True

    def switch(self, *, to_primary: bool, why: str) -> None:
        if self.on_primary == to_primary:
            return
        before = self.current.type
        self.on_primary = to_primary
        log.warning(f"queues switched from {before} to {self.current.type}: {why}")
        for listener in self._listeners:
            listener(before, self.current.type)
        self.switched.set()
        self.switched = Wakeup()
