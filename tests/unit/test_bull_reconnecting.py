"""Redis goes away and comes back: nothing is lost, and workers go on by themselves."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.faults.proxy import ChaosProxy
from tests.services.redis import Redis

from yamchi.app import Yamchi
from yamchi.clock import SystemClock
from yamchi.errors import EngineUnavailable
from yamchi.queues.engines.bull import BullEngine
from yamchi.queues.job import Job
from yamchi.queues.records import Completed, NewJob
from yamchi.settings import Settings
from yamchi.testing.conformance.worker import working
from yamchi.testing.waiting import eventually

Servers = Callable[..., Redis]
pytestmark = pytest.mark.faults


def make_app(url: str, home: Path) -> Yamchi:
    settings = Settings(
        home=home, plugins=(), lease=timedelta(seconds=2), shutdown_timeout=timedelta(seconds=5)
    )
    return Yamchi(settings, engine=BullEngine(url, SystemClock()))


async def test_workers_go_on_after_a_restart(private_redis: Servers, tmp_path: Path) -> None:
    redis = private_redis("--appendfsync", "always")
    runs: Counter[str] = Counter()
    async with make_app(redis.url, tmp_path) as app:

        @app.job("mail", concurrency=20, attempts=20, keep_completed=10_000)
        async def send(job: Job[Any]) -> None:
            await asyncio.sleep(0.005)
            runs[job.id] += 1

        jobs = await app.queue("mail").add_many([{"n": n} for n in range(1_000)])
        async with working(app):
            for share in (200, 500):
                await eventually(lambda share=share: len(runs) >= share)
                await asyncio.to_thread(redis.restart)
            await eventually(lambda: _completed(app, 1_000), within=60)
        late = await app.queue("mail").add({"n": "late"})
        async with working(app):
            await eventually(lambda: late.id in runs)
    assert {job.id for job in jobs} <= set(runs)
    assert runs.total() - len(runs) <= 3 * 20, "only what was in flight may run twice"


async def _completed(app: Yamchi, count: int) -> bool:
    counts = await app.queue("mail").engine.counts("mail")
    return counts["completed"] >= count and counts["active"] == 0


async def test_workers_go_on_over_a_bad_network(redis_url: str, tmp_path: Path) -> None:
    runs: Counter[str] = Counter()
    heard: Counter[str] = Counter()
    with ChaosProxy(redis_url) as proxy:
        async with (
            make_app(proxy.through(redis_url), tmp_path) as app,
            make_app(redis_url, tmp_path) as onlooker,
        ):
            onlooker.define("mail")

            @app.job("mail", concurrency=20, attempts=20, keep_completed=10_000)
            async def send(job: Job[Any]) -> None:
                await asyncio.sleep(0.005)
                runs[job.id] += 1

            app.queue("mail").on("completed", lambda job, _: heard.update([job.id]))
            await app.queue("mail").add_many([{"n": n} for n in range(1_000)])
            async with working(app):
                for share, trouble in ((200, proxy.cut), (400, lambda: proxy.delay(0.05)), (600, proxy.cut)):
                    await eventually(lambda share=share: len(runs) >= share)
                    trouble()
                    proxy.heal()
                await eventually(lambda: _completed(onlooker, 1_000), within=60)
    assert len(runs) == len(heard) == 1_000
    assert runs.total() - len(runs) <= 2 * 20, "only what was in flight may run twice"


async def test_keys_that_are_no_jobs_are_left_alone(redis_url: str) -> None:
    engine = BullEngine(redis_url, SystemClock())
    await engine.open()
    await engine.add("mail", [NewJob("a", "send", b"1")])
    for name in ("wait", "meta", "events", "ym:minutes", "metrics:completed", "a:lock"):
        assert await engine.get("mail", name) is None
        assert await engine.remove("mail", [name]) == []
        assert await engine.cancel("mail", [name]) == {}
        assert not await engine.update("mail", name, b"2")
    assert (await engine.counts("mail"))["waiting"] == 1
    await engine.close()


async def test_a_cut_connection_fails_the_call_and_not_the_next(redis_url: str) -> None:
    with ChaosProxy(redis_url) as proxy:
        engine = BullEngine(proxy.through(redis_url), SystemClock())
        await engine.open()
        await engine.add("mail", [NewJob("a", "send", b"1")])
        (held,) = (await engine.exchange("mail", [], 1, 10_000, "tester")).claims
        waking = asyncio.create_task(engine.wake("mail", 30_000))
        proxy.cut()
        with pytest.raises(EngineUnavailable):
            await waking
        with pytest.raises(EngineUnavailable, match="can't be reached"):
            await engine.ping()
        proxy.heal()
        assert (await engine.exchange("mail", [Completed(held)], 0, 0, "tester")).settled == ["a"]
        again = await engine.exchange("mail", [Completed(held)], 0, 0, "tester")
        assert again.settled == [], "a verdict sent twice is harmless"
        await engine.close()


async def test_scripts_are_loaded_again(redis_url: str) -> None:
    engine = BullEngine(redis_url, SystemClock())
    await engine.open()
    assert await engine.add("mail", [NewJob("a", "send", b"1")]) == [True]
    await engine._connections.ask(b"*2\r\n$6\r\nSCRIPT\r\n$5\r\nFLUSH\r\n")
    assert await engine.add("mail", [NewJob("b", "send", b"1"), NewJob("a", "send", b"1")]) == [True, False]
    await engine.close()


async def test_calls_from_another_thread_have_their_own_connections(redis_url: str) -> None:
    engine = BullEngine(redis_url, SystemClock())
    await engine.open()
    await engine.add("mail", [NewJob("a", "send", b"1")])
    claims = (await engine.exchange("mail", [], 1, 10_000, "tester")).claims

    def in_thread() -> list[str]:
        async def renew() -> list[str]:
            kept = await engine.renew("mail", claims, 10_000)
            await engine.heartbeat("tester")
            return kept

        return asyncio.run(renew())

    kept, _ = await asyncio.gather(asyncio.to_thread(in_thread), engine.ping())
    assert kept == ["a"]
    await engine.close()


async def test_a_job_that_can_not_be_settled_holds_up_nobody(redis_url: str, tmp_path: Path) -> None:
    """A hash that somebody damaged: BullMQ's script breaks on it, and the other verdicts of its batch are settled."""
    engine = BullEngine(redis_url, SystemClock())
    await engine.open()
    await engine.add("mail", [NewJob(name, "send", b"1") for name in ("a", "b", "c")])
    claims = (await engine.exchange("mail", [], 3, 10_000, "tester")).claims
    await engine._connections.ask(
        b"*4\r\n$4\r\nHSET\r\n$11\r\nbull:mail:b\r\n$6\r\nparent\r\n$8\r\nnot json\r\n"
    )
    got = await engine.exchange("mail", [Completed(held) for held in claims], 0, 0, "tester")
    assert got.settled == ["a", "c"]
    assert (await engine.counts("mail"))["active"] == 0
    (letter,) = (await engine.letters("mail", "", 0, 10)).letters
    assert letter.id == "b"
    assert orjson.loads(letter.body)["raw_value"] == "1"
    assert "could not be settled" in letter.error
    await engine.close()
