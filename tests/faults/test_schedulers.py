"""Many schedulers of the same cron line: each moment fires once, and what downtime missed fires once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

import pytest

from tests.faults.conftest import ENGINES, require
from tests.scale import scaled
from yamchi import Yamchi
from yamchi.queues.cron import Scheduler
from yamchi.queues.engines import EngineContext, make_engine
from yamchi.queues.engines.base import Engine
from yamchi.settings import Settings

MINUTE = 60_000
START = round(datetime(2026, 3, 29, tzinfo=UTC).timestamp() * 1000)
MakeScheduler = Callable[[Engine], Scheduler]


class Dial:
    """A clock that the test sets, the same for all schedulers, as machines with the right time have it."""

    moment = START

    def now(self) -> int:
        return self.moment

    async def sleep(self, span: int) -> None:
        raise AssertionError("the test turns the clock, nobody sleeps")


class Town:
    """Several schedulers of one line, each with a connection of its own."""

    def __init__(self, url: str, folder: Path) -> None:
        self.dial = Dial()
        self.name = f"every-minute-{token_hex(6)}"
        self.queue = f"cron-{token_hex(6)}"
        self._url, self._folder = url, folder
        self._apps: list[Yamchi] = []

    def scheduler(self) -> Scheduler:
        app = Yamchi(
            Settings(home=self._folder, plugins=()),
            clock=self.dial,
            engine=make_engine(self._url, EngineContext(self.dial)),
        )

        @app.cron("* * * * *", name=self.name, queue=self.queue)
        async def tick() -> None:
            """Never run here: the jobs are counted, not done."""

        self._apps.append(app)
        return Scheduler(app.schedules(), self.dial)

    async def moments(self) -> list[int]:
        """When the jobs in the queue were scheduled for."""
        jobs = await self._apps[0].queue(self.queue).jobs(limit=10_000)
        return sorted(int(job.id.partition("@")[2]) for job in jobs)

    async def close(self) -> None:
        for app in self._apps:
            await app.close()


@pytest.fixture
def town(engine_url: str, tmp_path: Path) -> Callable[[], "object"]:
    require(engine_url)

    @asynccontextmanager
    async def make() -> AsyncIterator[Town]:
        town = Town(engine_url, tmp_path)
        yield town
        await town.close()

    return make


@pytest.mark.parametrize("engine_name", ENGINES)
async def test_racing_schedulers_fire_each_moment_once(town: Callable[[], object]) -> None:
    count = scaled(60, 200)
    async with town() as site:  # type: ignore[attr-defined]
        schedulers = [site.scheduler() for _ in range(3)]
        for _ in range(count + 1):
            await asyncio.gather(*(scheduler.fire_due() for scheduler in schedulers))
            site.dial.moment += MINUTE
        assert await site.moments() == [START + n * MINUTE for n in range(1, count + 1)]


@pytest.mark.parametrize("engine_name", ENGINES)
async def test_moments_missed_in_downtime_fire_once(town: Callable[[], object]) -> None:
    async with town() as site:  # type: ignore[attr-defined]
        await site.scheduler().fire_due()
        site.dial.moment += 90 * MINUTE + 12_345
        again = [site.scheduler() for _ in range(3)]
        for _ in range(2):
            await asyncio.gather(*(scheduler.fire_due() for scheduler in again))
        assert await site.moments() == [START + 90 * MINUTE], "the latest one, once, and not all ninety"


@pytest.mark.parametrize("engine_name", ENGINES)
async def test_a_scheduler_says_when_the_next_moment_is(town: Callable[[], object]) -> None:
    async with town() as site:  # type: ignore[attr-defined]
        site.dial.moment += 999
        assert await site.scheduler().fire_due() == START + MINUTE
