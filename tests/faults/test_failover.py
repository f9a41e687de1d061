"""The broker goes away under load, Yamchi is killed during the outage, both come back: nothing lost, order kept."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import pytest

from tests.faults.harness import ROOT, Tally
from tests.faults.proxy import ChaosProxy
from tests.launcher import Child, launch
from tests.scale import FULL
from yamchi import Job, Queue, Yamchi
from yamchi.errors import EngineUnavailable
from yamchi.queues.probes import ping_engines
from yamchi.settings import Settings
from yamchi.testing import eventually
from yamchi.web.routes.health import scrape

OUTAGE = 20.0 if FULL else 3.0
LATER = 1_000_000
Fallback = Literal["sqlite", "memory"]


class Run:
    """Processes of the application on one broker, and what they wrote down."""

    def __init__(self, folder: Path, url: str, queue: str) -> None:
        self.acked_file, self.ran_file, self.log = folder / "acked", folder / "ran", folder / "log"
        self._environment = {
            **os.environ,
            "QUEUE_URL": url,
            "QUEUE_FALLBACK": "sqlite",
            "YAMCHI_HOME": str(folder),
            "SPOOL_QUEUE": queue,
            "ACKED": str(self.acked_file),
            "RAN": str(self.ran_file),
            "LEASE": "2s",
        }
        self.processes: list[Child] = []

    def start(self, *arguments: str) -> Child:
        self.processes.append(
            launch("tests.faults.spool_app", arguments, cwd=ROOT, env=self._environment, output=self.log)
        )
        return self.processes[-1]

    @property
    def acked(self) -> list[int]:
        return _numbers(self.acked_file)

    @property
    def ran(self) -> list[int]:
        return _numbers(self.ran_file)

    @property
    def switches(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if "queues switched from" in line]


def _numbers(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(url: str, queue: str = "numbers") -> Run:
        runs.append(Run(tmp_path, url, queue))
        return runs[-1]

    yield start
    for run in runs:
        for process in run.processes:
            process.kill()
            process.wait()


ENGINES = {"private_redis": "bull", "private_postgres": "pgmq", "private_kafka": "kafka"}
BROKERS = [
    pytest.param(f"private_{name}", marks=pytest.mark.services) for name in ("redis", "postgres", "kafka")
]


@pytest.mark.parametrize("server_fixture", BROKERS)
async def test_an_outage_with_a_kill_in_it_loses_nothing(
    server_fixture: str,
    request: pytest.FixtureRequest,
    start_run: Callable[..., Run],
    published: Callable[[Tally], None],
) -> None:
    began = monotonic()
    server = await asyncio.to_thread(request.getfixturevalue(server_fixture))
    is_kafka = server_fixture == "private_kafka"
    run = start_run(f"kafka://{server.url}" if is_kafka else server.url)
    producer = run.start("produce", "0")
    await eventually(lambda: len(run.acked) >= 100, within=60)
    await asyncio.to_thread(server.stop)
    at_stop, stopped = len(run.acked), monotonic()
    await eventually(lambda: run.switches, within=60)
    await eventually(
        lambda: monotonic() - stopped >= OUTAGE and len(run.acked) >= at_stop + 50 * OUTAGE,
        within=OUTAGE + 60,
    )
    producer.kill()
    await asyncio.to_thread(producer.wait)
    acked = run.acked
    await asyncio.to_thread(server.start)
    run.start("work")
    await eventually(lambda: set(acked) <= set(run.ran), within=60)
    ran = run.ran
    spooled = [number for number in ran if number >= at_stop]
    lost, doubled = len(set(acked) - set(ran)), len(ran) - len(set(ran))
    fault = f"broker away for {OUTAGE:g} s, SIGKILL in it"
    published(Tally(fault, ENGINES[server_fixture], len(acked), len(ran), 1, 1, doubled, lost, round(monotonic() - began, 1)))  # fmt: skip
    assert lost == 0
    if not is_kafka:  # which keeps the order of a key, and every number here is a key of its own
        once = list(dict.fromkeys(spooled))  # the add under way at the stop may be on both sides
        assert once == sorted(once), "what waited in the spool keeps its order"
    assert doubled <= 1, "at most the add that was under way at the stop"
    # The producer to the spool; the worker to what was left in it, and back.
    assert len(run.switches) == 3, run.switches


@pytest.mark.services
async def test_a_broker_that_froze_runs_nothing_again_that_another_process_ran_in_the_spool(
    private_redis: Callable[..., Any], start_run: Callable[..., Run]
) -> None:
    """When it goes on, it finds the job that was being added in its socket; who had added it is dead by then."""
    server = await asyncio.to_thread(private_redis)
    run = start_run(server.url)
    producer = run.start("produce", "0")
    run.start("work")
    await eventually(lambda: len(run.ran) >= 100, within=60)
    os.kill(server.pid, signal.SIGSTOP)
    at_stop = len(run.acked)
    await eventually(lambda: len(run.switches) == 2 and len(run.ran) >= at_stop + 50, within=60)
    producer.kill()
    await asyncio.to_thread(producer.wait)
    acked = run.acked
    # What the broker has and nobody had claimed when it froze is there until it goes on: perhaps the one on its way, too.
    spooled = set(acked[at_stop + 1 :])
    await eventually(lambda: spooled <= set(run.ran), within=60)
    os.kill(server.pid, signal.SIGCONT)
    await eventually(lambda: len(run.switches) == 3, within=60)
    run.start("produce", str(LATER))
    await eventually(lambda: {*acked, LATER} <= set(run.ran), within=60)
    assert [number for number, times in Counter(run.ran).items() if times > 1] == []


@pytest.mark.services
@pytest.mark.parametrize(("fallback", "kind"), [("sqlite", "sqlite"), ("memory", "in-memory")])
async def test_work_goes_on_in_the_spool_and_moves_back(
    private_redis: Callable[..., Any], tmp_path: Path, fallback: Fallback, kind: str
) -> None:
    server = await asyncio.to_thread(private_redis)
    settings = Settings(
        home=tmp_path,
        plugins=(),
        default_queue_url=server.url,
        queue_fallback=fallback,
        lease=timedelta(seconds=3),
    )
    async with Yamchi(settings) as app:
        ran: list[str] = []

        @app.job("numbers", concurrency=1)
        async def count(job: Job[str]) -> None:
            ran.append(job.data)

        queue = app.queue("numbers")
        worker = app.worker()
        working = asyncio.create_task(worker.run())
        await queue.add("before")
        await eventually(lambda: ran == ["before"])
        assert (await queue.stats())["type"] == "bull"

        await asyncio.to_thread(server.stop)
        await queue.add("during")
        await eventually(lambda: ran == ["before", "during"])
        assert (await queue.stats())["type"] == kind
        later = await queue.add("later", delay="1h")

        await asyncio.to_thread(server.start)
        await eventually(lambda: _type_is(app, "bull"))
        moved = await queue.job(later.id)
        assert moved.state == "delayed"
        assert abs((moved.run_at - later.run_at).total_seconds()) < 0.1, "its moment has not moved"
        await queue.add("after")
        await eventually(lambda: ran == ["before", "during", "after"])
        assert app.metrics.switches == {("bull", kind): 1, (kind, "bull"): 1}
        worker.stop()
        await working


@pytest.mark.parametrize("server_fixture", BROKERS)
async def test_without_a_spool_adding_says_at_once_what_to_do_and_work_goes_on_afterwards(
    server_fixture: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server = await asyncio.to_thread(request.getfixturevalue(server_fixture))
    url = f"kafka://{server.url}" if server_fixture == "private_kafka" else server.url
    settings = Settings(home=tmp_path, plugins=(), default_queue_url=url, queue_fallback="off")
    async with Yamchi(settings) as app:
        ran: list[str] = []

        @app.job("numbers", concurrency=1)
        async def count(job: Job[str]) -> None:
            ran.append(job.data)

        queue, worker = app.queue("numbers"), app.worker()
        await asyncio.to_thread(server.stop)
        working = asyncio.create_task(worker.run())
        with pytest.raises(EngineUnavailable, match=r"check that it runs|is it running"):
            await queue.add("refused")
        await asyncio.to_thread(server.start)
        await eventually(lambda: _is_added(queue, "after"), within=60)
        await eventually(lambda: ran == ["after"], within=60)
        assert queue.type == ENGINES[server_fixture]
        assert app.metrics.switches == {}
        assert not (settings.var / "spool.db").exists()
        worker.stop()
        await working


async def _is_added(queue: Queue, data: str) -> bool:
    try:
        await queue.add(data, id=data)
    except EngineUnavailable:
        return False
    return True


async def _type_is(app: Yamchi, kind: str) -> bool:
    return (await app.queue("numbers").stats())["type"] == kind


async def test_a_broker_that_is_away_is_shown_as_down_while_the_spool_works(
    redis_url: str, tmp_path: Path
) -> None:
    with ChaosProxy(redis_url) as proxy:
        settings = Settings(home=tmp_path, plugins=(), default_queue_url=proxy.through(redis_url))
        async with Yamchi(settings) as app:

            @app.job("numbers")
            async def count(job: Job[str]) -> None: ...

            await app.queue("numbers").add("before")
            assert b'yamchi_engine_up{engine="bull"} 1.0' in await scrape(app)
            proxy.cut()
            await app.queue("numbers").add("spooled")
            assert app.queue("numbers").type == "sqlite"
            assert b'yamchi_engine_up{engine="bull"} 0.0' in await scrape(app)
            (state,) = await ping_engines(app.queues)
            assert (state.type, state.error is None) == ("bull", False)
            proxy.heal()
