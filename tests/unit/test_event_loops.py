"""An application outlives the event loop it was first used on: `asyncio.run` may be called again with the same one."""

import asyncio
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from tests.services.gateway import Gateway
from tests.services.mail import MailServer
from tests.services.webserver import Response, WebService
from tests.unit.test_failover import Broker

from yamchi import Job, Yamchi
from yamchi.clock import Millis, SystemClock
from yamchi.http.apikeys import ApiKeys
from yamchi.notifications.channels import apprise
from yamchi.notifications.channels.base import Message
from yamchi.notifications.channels.email.mime import compose
from yamchi.notifications.channels.email.smtp import SmtpPool, SmtpServer
from yamchi.notifications.channels.push.client import PushClient
from yamchi.notifications.schemas.event import Event
from yamchi.notifications.templates.model import Rendered
from yamchi.outgoing import Client
from yamchi.queues import runner
from yamchi.queues.engines.memory import MemoryEngine
from yamchi.queues.engines.sqlite.spool import SqliteSpool
from yamchi.queues.engines.wakeups import Wakeup
from yamchi.queues.failover import with_failover
from yamchi.queues.handlers import QueueDefinition
from yamchi.queues.options import DEFAULT_OPTIONS
from yamchi.queues.processes.limits import ProcessLimits
from yamchi.queues.processes.pool import ProcessPool
from yamchi.queues.queue import Queue
from yamchi.queues.records import JobRecord
from yamchi.queues.timeouts import CallTimeout
from yamchi.settings import Settings
from yamchi.storage.caching import CachedRead
from yamchi.storage.database import Database
from yamchi.testing import MovableClock, eventually

CALLS = 40
"""Calls of the engine during which an idle worker is watched."""


@pytest.fixture(autouse=True)
def tidy() -> Iterator[None]:
    """What ended loops left behind is told of when it is collected: not amid a later test that counts lines."""
    yield
    gc.collect()


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
def test_a_second_event_loop_works_as_the_first_did(
    url: str, closes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "IDLE_WAIT", 3_600_000)  # an idle worker does not ask by itself
    app = Yamchi(Settings(home=tmp_path, default_queue_url=url, plugins=()))
    queue, done = f"again-{token_hex(6)}", list[int]()  # of this test alone: the broker is of the whole run

    @app.job(queue)
    async def count(job: Job[int]) -> None:
        done.append(job.data)

    for number in range(3):
        asyncio.run(_add_while_idle(app, queue, number, done, closes))
    asyncio.run(app.close())
    assert done == [0, 1, 2]


async def _add_while_idle(app: Yamchi, name: str, number: int, done: list[int], closes: bool) -> None:
    queue = app.queue(name)
    watched = _Watched(queue.engine)
    working = asyncio.create_task(app.work())
    await eventually(lambda: watched.begun)
    for _ in range(CALLS):
        await queue.engine.counts(name)
    assert watched.ended < CALLS / 4, "an idle worker asks again only when it is woken"
    await queue.add(number)
    await eventually(lambda: number in done)
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


def test_an_event_is_taken_after_loops_that_ended_amid_others(tmp_path: Path) -> None:
    app = Yamchi(Settings(home=tmp_path, default_queue_url="memory://", plugins=("notifications",)))

    async def tell(event_id: str) -> bool:
        event = Event(event_type="nothing", event_id=event_id)
        return (await app.notifications.service.handle_event(event)).duplicate

    left = []

    async def begin_and_leave(number: int) -> None:
        left.append(asyncio.create_task(tell(f"left-{number}")))
        for _ in range(number):
            await asyncio.sleep(0)

    for number in range(6):  # each leaves a step later
        asyncio.run(begin_and_leave(number))
    assert not asyncio.run(asyncio.wait_for(tell("last"), 20))
    asyncio.run(app.close())


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
    spool = SqliteSpool(tmp_path / "spool.db", SystemClock())
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


# ── What asks others ──────────────────────────────────────────────────────────────────────────────────────────────


def twice(use: Callable[[], Any]) -> None:
    """On one event loop, and on another."""
    asyncio.run(use())
    asyncio.run(use())


def test_keys_are_read_by_many_at_once_on_the_second_event_loop_too(tmp_path: Path) -> None:
    database, clock = Database(f"sqlite:///{tmp_path}/data.db"), MovableClock()
    keys = ApiKeys(database, clock)

    async def use() -> None:
        await clock.advance("1m")
        assert await asyncio.gather(*(keys.get("nobody") for _ in range(5))) == [None] * 5
        await database.close()

    twice(use)


def test_letters_are_sent_on_the_second_event_loop_too() -> None:
    letter = compose(Message("1", "you@example.com", Rendered("hello")), "me@example.com", 0)
    with MailServer() as server:
        pool = SmtpPool(SmtpServer(server.host, server.port, security="none", connections=1))

        async def use() -> None:
            await asyncio.gather(*(pool.send(letter) for _ in range(3)))

        twice(use)
        assert len(server.letters) == 6


def test_sms_are_sent_on_the_second_event_loop_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apprise, "MAX_CONCURRENT", 1)
    messages = [Message(str(n), "+77010000000", Rendered("hello")) for n in range(3)]
    with Gateway() as gateway:
        channel = apprise.SmsChannel(gateway.url)

        async def use() -> None:
            await asyncio.gather(*map(channel.send, messages))

        twice(use)
        assert len(gateway.taken) == 6


class Answering(WebService):
    def respond(self, path: str, headers: dict[str, str], body: bytes) -> Response:
        return Response(200, b"{}", {})


@pytest.fixture
def service() -> Iterator[WebService]:
    with Answering() as service:
        yield service


def test_others_are_asked_on_the_second_event_loop_too(service: WebService) -> None:
    client = Client("telegram", "A test", timeout=5, connections=1)

    async def use() -> None:
        asked = (client.ask("POST", service.origin, seconds=10, most=100) for _ in range(3))
        assert [answer.status for answer in await asyncio.gather(*asked)] == [200] * 3

    twice(use)


def test_push_services_are_asked_on_the_second_event_loop_too(service: WebService) -> None:
    client = PushClient(SystemClock(), allows_private=True)

    async def use() -> None:
        asked = (client.send(f"{service.origin}/{n}", {}, b"", "a test") for n in range(3))
        assert [answer.status for answer in await asyncio.gather(*asked)] == [200] * 3

    twice(use)


class HeardPage:
    """An open page that keeps what it hears."""

    user_id, since = "you", None

    def __init__(self) -> None:
        self.heard: list[str] = []

    def admit(self, frames: Sequence[str]) -> None:
        self.heard.extend(frames)

    def offer(self, frame: str) -> None:
        self.heard.append(frame)

    def beat(self, frame: str, now: Millis) -> None: ...


def test_pages_are_let_in_on_the_second_event_loop_too(tmp_path: Path) -> None:
    hub = Yamchi(Settings(home=tmp_path, plugins=("notifications",))).notifications.hub

    async def use() -> None:
        for _ in range(5):  # who lets them in waits for the next one, and comes to know of it
            page = HeardPage()
            assert hub.join(page)
            await eventually(lambda page=page: page.heard)
            hub.leave(page)

    twice(use)
    asyncio.run(hub.close())


def test_child_processes_run_jobs_on_the_second_event_loop_too() -> None:
    pool = ProcessPool("q", "double", double, ProcessLimits(1))
    queue = Queue(QueueDefinition("q"), MemoryEngine(SystemClock()), SystemClock())
    job: Job[int] = Job(queue, JobRecord("1", "q", "double", b"21", "active", 0, 0, DEFAULT_OPTIONS))

    async def use() -> None:
        assert await asyncio.gather(*(pool.run(job) for _ in range(2))) == [42, 42]

    twice(use)
    asyncio.run(pool.close())


def double(job: Job[int]) -> int:
    return 2 * job.data
