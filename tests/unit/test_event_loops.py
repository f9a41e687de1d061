"""An application outlives the event loop it was first used on: `asyncio.run` may be called again with the same one."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_failover import Broker

from yamchi import Job, Yamchi
from yamchi.clock import Millis, SystemClock
from yamchi.queues.engines.sqlite import SqliteEngine
from yamchi.queues.engines.wakeups import Wakeup
from yamchi.queues.failover import with_failover
from yamchi.queues.timeouts import CallTimeout
from yamchi.settings import Settings
from yamchi.storage.caching import CachedRead
from yamchi.storage.database import Database
from yamchi.testing import eventually

CALLS = 40
"""Calls of the engine during which an idle worker is watched."""


@pytest.fixture(params=["memory", "sqlite", "redis", "pgmq", "kafka"])
def url(request: pytest.FixtureRequest) -> str:
    match request.param:
        case "redis":
            return str(request.getfixturevalue("redis_url"))
        case "pgmq":
            return str(request.getfixturevalue("postgres_url"))
        case "kafka":
            return f"kafka://{request.getfixturevalue('kafka_bootstrap')}?partitions=1"
        case "sqlite":
            return "sqlite:///jobs.db"
    return "memory://"


@pytest.mark.parametrize("closes", [True, False], ids=["closed between", "left open"])
def test_a_second_event_loop_works_as_the_first_did(url: str, closes: bool, tmp_path: Path) -> None:
    app = Yamchi(Settings(home=tmp_path, default_queue_url=url, plugins=()))
    done: list[int] = []

    @app.job("again")
    async def count(job: Job[int]) -> None:
        done.append(job.data)

    for number in range(3):
        asyncio.run(_add_while_idle(app, number, done, closes))
    asyncio.run(app.close())
    assert done == [0, 1, 2]


async def _add_while_idle(app: Yamchi, number: int, done: list[int], closes: bool) -> None:
    queue = app.queue("again")
    watched = _Watched(queue.engine)
    working = asyncio.create_task(app.work())
    await eventually(lambda: watched.begun)
    for _ in range(CALLS):
        await queue.engine.counts("again")
    assert watched.ended < CALLS / 4, "an idle worker asks again only when it is woken"
    await queue.add(number)
    await eventually(lambda: number in done, within=4)  # sooner than an idle worker asks by itself
    assert watched.errors == []
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working
    if closes:
        await app.close()


class _Watched:
    """Counts how often a worker waits to be woken."""

    def __init__(self, engine: Any) -> None:
        self.begun = self.ended = 0
        self.errors: list[Exception] = []
        self._wake: Callable[[str, Millis], Any] = type(engine).wake.__get__(engine)
        engine.wake = self.wake

    async def wake(self, queue: str, timeout: Millis) -> None:
        self.begun += 1
        try:
            await self._wake(queue, timeout)
        except Exception as error:
            self.errors.append(error)
            raise
        self.ended += 1


def test_events_of_other_processes_are_heard_on_the_second_event_loop_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    app, other = (Yamchi(Settings(home=tmp_path, default_queue_url=url, plugins=())) for _ in range(2))
    app.define("again")
    heard: list[str] = []

    @other.job("again")
    async def work(job: Job[int]) -> None: ...

    async def hear() -> None:
        heard.clear()
        app.queue("again").on("completed", lambda job, result: heard.append(job.id))
        async with other:
            working = asyncio.create_task(other.work())
            await eventually(is_heard)
            working.cancel()

    async def is_heard() -> bool:
        await other.queue("again").add(1)
        return bool(heard)

    asyncio.run(hear())
    asyncio.run(hear())
    asyncio.run(app.close())


def test_a_spool_is_moved_on_the_second_event_loop_too(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker.db", SystemClock())
    spool = SqliteEngine(tmp_path / "spool.db", SystemClock())
    engine = with_failover(broker, spool, lambda before, after: None, lambda queue: True)
    app = Yamchi(Settings(home=tmp_path, plugins=()), engine=engine)

    @app.job("again")
    async def count(job: Job[int]) -> None: ...

    async def outage() -> None:
        broker.is_there = False
        await app.queue("again").add(1)
        assert engine.type == "sqlite"

    async def back() -> None:
        broker.is_there = True
        async with app:
            working = asyncio.create_task(app.work())
            await eventually(lambda: engine.type == "broker")
            working.cancel()

    asyncio.run(outage())
    asyncio.run(back())
    asyncio.run(spool.close())


def test_calls_are_given_up_on_the_second_event_loop_too() -> None:
    timeout = CallTimeout(0.01)

    async def hang() -> None:
        with pytest.raises(TimeoutError):
            await timeout.wait_for(asyncio.Event().wait())

    async def answer() -> None:
        await timeout.wait_for(asyncio.sleep(0))

    asyncio.run(answer())
    asyncio.run(hang())


def test_who_waited_on_an_event_loop_that_ended_costs_nobody_anything() -> None:
    wakeup = Wakeup()
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(wakeup.wait())
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    wakeup.set()
    asyncio.run(asyncio.wait_for(wakeup.wait(), 1))
    assert not waiting.done()
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]


def test_tables_are_opened_and_views_read_by_many_at_once_on_the_second_event_loop_too(
    tmp_path: Path,
) -> None:
    database = Database(f"sqlite:///{tmp_path}/data.db")
    view = CachedRead(lambda: database.read(lambda connection: None), SystemClock(), max_age=0)

    async def use() -> None:
        await asyncio.gather(*(database.write(lambda connection: None) for _ in range(5)))
        await asyncio.gather(*(view.refresh() for _ in range(5)))
        await database.close()

    asyncio.run(use())
    asyncio.run(use())
