"""An application for tests: everything in memory, nothing in the background, time under control."""

import secrets
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from yamchi.app import Yamchi
from yamchi.clock import Millis
from yamchi.plugins import Plugin
from yamchi.queues.engines.memory import MemoryEngine
from yamchi.queues.throttle import WHOLE_QUEUE
from yamchi.queues.worker import Worker
from yamchi.settings import Settings
from yamchi.testing.adopting import Adoption
from yamchi.testing.clock import MovableClock


class TestApp(Yamchi):
    """A `Yamchi` whose jobs run when the test says so: `drain()` runs what is due, `clock.advance()` moves time.

    Its tables are SQLite, in `home` if that is given and else in a temporary folder, whatever DATABASE_URL says;
    `database_url=…` chooses another database. `plugins` are classes of one's own beside what ships, or names of what ships.
    """

    __test__ = False  # for pytest, which takes any Test… for a test
    clock: MovableClock

    def __init__(self, *, plugins: Sequence[type[Plugin] | str] | None = None, **settings: Any) -> None:
        clock = MovableClock()
        self._memory = MemoryEngine(clock)
        self._folder = Path(tempfile.gettempdir()) / f"yamchi-test-{secrets.token_hex(8)}"
        self._adoptions: list[Adoption] = []
        if not settings.get("database_url"):
            tables = Path(settings["home"]) / "var" if "home" in settings else self._folder
            settings["database_url"] = f"sqlite:///{tables.absolute() / 'data.db'}"
        own = [one for one in plugins or () if isinstance(one, type)]
        if plugins is not None and not own:
            settings["plugins"] = tuple(plugins)
        super().__init__(Settings(**settings), clock=clock, engine=self._memory, plugins=own)
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
        while self._adoptions:
            self._adoptions.pop().end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def adopt(self, other: Yamchi) -> None:
        """Test an application here: its queues, handlers and schedules, and whatever its handlers reach through it.

        Until this application is closed, the other one *is* this one: its queues are in memory, its tables and its clock
        are these. What was taken from it before and can't be moved refuses to be used.
        """
        self._adoptions.append(Adoption(self, other))

    async def _next_due(self) -> Millis | None:
        now = self.clock.now()
        moments = [due for name in self._definitions if (due := self._memory.next_due(name)) is not None]
        permits = (self._memory.next_permit(name, WHOLE_QUEUE) for name in self._definitions)
        moments += [permit for permit in permits if permit is not None and permit > now]
        moments += [schedule.line.after(now) for schedule in self.schedules()]
        return min(moments, default=None)
