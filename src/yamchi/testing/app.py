"""An application for tests: everything in memory, nothing in the background, time under control."""

from typing import Any

from yamchi.app import Yamchi
from yamchi.clock import Millis
from yamchi.queues.engines.memory import MemoryEngine
from yamchi.queues.worker import Worker
from yamchi.settings import Settings
from yamchi.testing.clock import MovableClock


class TestApp(Yamchi):
    """A `Yamchi` whose jobs run when the test says so: `drain()` runs what is due, `clock.advance()` moves time."""

    __test__ = False  # for pytest, which takes any Test… for a test
    clock: MovableClock

    def __init__(self, **settings: Any) -> None:
        clock = MovableClock()
        self._memory = MemoryEngine(clock)
        super().__init__(Settings(**settings), clock=clock, engine=self._memory)
        self._worker: Worker | None = None
        clock.attach(self.drain, self._next_due)

    async def drain(self) -> None:
        """Run everything that is due now, and what that makes due."""
        if self._worker is None:
            self._worker = self.worker()
        await self._worker.scheduler.fire_due()
        await self._worker.drain()

    async def close(self) -> None:
        if self._worker is not None:
            await self._worker.close()
        await super().close()

    def adopt(self, other: Yamchi) -> None:
        """Take over the queues, handlers and schedules declared on an application, to test them here."""
        self._definitions.update(other._definitions)
        self._crons.update(other._crons)

    async def _next_due(self) -> Millis | None:
        moments = [due for name in self._definitions if (due := self._memory.next_due(name)) is not None]
        moments += [schedule.line.after(self.clock.now()) for schedule in self.schedules()]
        return min(moments, default=None)
