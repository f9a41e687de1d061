"""Every feature shows what it does, on the embedded default and a clock that is moved: days of follow-ups in seconds.

Nothing of the environment is used, so that no letter leaves this machine and no queue of yours gets a job.
"""

import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from yamchi.app import Yamchi
from yamchi.clock import Millis, Span, SystemClock, as_datetime, isoformat
from yamchi.envfile import all_settings
from yamchi.errors import ConfigurationError, MissingExtra
from yamchi.plugins import Plugin, load_attribute
from yamchi.queues.worker import Worker
from yamchi.settings import PER_QUEUE, Settings, variable_of
from yamchi.shipped import add_to
from yamchi.testing.clock import MovableClock

MARK = ".yamchi-demo"
"""The file by which a folder is known to be an earlier demo, which a new one may replace."""

LENGTH = timedelta(days=10)
"""The demo begins so long ago, and ends about now."""

Play = Callable[[Plugin, "Scene"], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened."""

    feature: str
    moment: Millis
    text: str

    def to_dict(self) -> dict[str, str]:
        return {"feature": self.feature, "moment": isoformat(self.moment), "text": self.text}


class DemoApp(Yamchi):
    """What ships, with jobs and tables in the SQLite files of its home; jobs run when its clock is moved."""

    clock: MovableClock

    def __init__(self, home: Path, port: int) -> None:
        clock = MovableClock(as_datetime(SystemClock().now()) - LENGTH)
        super().__init__(Settings(home=home, port=port), clock=clock)
        add_to(self)
        self._demo_worker: Worker | None = None
        clock.attach(self.run_due, self._next_due)

    async def run_due(self) -> None:
        """Run everything that is due now, and what that makes due."""
        if self._demo_worker is None:
            self._demo_worker = self.worker()
        await self._demo_worker.scheduler.fire_due()
        await self._demo_worker.drain()

    async def close(self) -> None:
        if self._demo_worker is not None:
            await self._demo_worker.close()
        await super().close()

    async def _next_due(self) -> Millis | None:
        running = [queue for queue in self.queues if not await queue.is_paused()]
        delayed = [await queue.page("delayed", limit=1) for queue in running]
        moments = [page.jobs[0].run_at for page in delayed if page.jobs]
        moments += [schedule.line.after(self.clock.now()) for schedule in self.schedules()]
        return min(moments, default=None)


@dataclass
class Scene:
    """One feature's turn: what it says is told at once, and kept."""

    app: DemoApp
    feature: str
    tell: Callable[[Step], None]
    places: list[tuple[str, str]] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.tell(Step(self.feature, self.app.clock.now(), text))

    def look(self, path: str, what: str) -> None:
        self.places.append((path, what))

    async def wait(self, span: Span) -> None:
        await self.app.clock.advance(span)


async def play(home: Path, tell: Callable[[Step], None], port: int) -> list[tuple[str, str]]:
    """Let every feature that has a part play it in a fresh home; where to look afterwards. Links in letters lead to `port`."""
    places: list[tuple[str, str]] = []
    _prepare(home)
    with _own_environment():
        async with DemoApp(home, port) as app:
            for plugin in app.plugins.values():
                if plugin.demo is None:
                    continue
                scene = Scene(app, plugin.name, tell)
                part: Play = load_attribute(plugin.demo)
                try:
                    await part(plugin, scene)
                except MissingExtra as error:
                    scene.say(f"left out: {error}")
                places += scene.places
            await app.clock.advance_to(as_datetime(max(SystemClock().now(), app.clock.now())))
    return places


def _prepare(home: Path) -> None:
    """An empty folder; an earlier demo's is emptied, anybody else's is refused."""
    if home.exists() and any(home.iterdir()):
        if not (home / MARK).exists():
            raise ConfigurationError(
                f"{home} is not empty and holds no demo: name another folder with --home."
            )
        shutil.rmtree(home)
    home.mkdir(parents=True, exist_ok=True)
    (home / MARK).write_text("Made by yamchi demo; it is emptied by the next one.\n")


@contextmanager
def _own_environment() -> Iterator[None]:
    """While this lasts, no variable says how Yamchi is to be set up."""
    known = {variable_of(name, one) for kind in all_settings() for name, one in kind.model_fields.items()}
    prefixes = tuple(name.removesuffix(PER_QUEUE) for name in known if name.endswith(PER_QUEUE))
    kept: dict[str, Any] = {
        name: value for name, value in os.environ.items() if name in known or name.startswith(prefixes)
    }
    for name in kept:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(kept)
