"""What was claimed on Redis is handed over, whatever goes wrong beside it: else it would wait for the end of its lease."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from yamchi.clock import SystemClock
from yamchi.queues.engines.base import Event
from yamchi.queues.engines.bull import BullEngine
from yamchi.queues.engines.bull.working import CHUNK
from yamchi.queues.records import Completed, Released
from yamchi.testing.conformance.base import claim_all, new_job
from yamchi.testing.waiting import eventually

pytestmark = pytest.mark.services


@pytest.fixture
async def engine(redis_url: str) -> AsyncIterator[BullEngine]:
    engine = BullEngine(redis_url, SystemClock())
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as redis:
        yield redis


async def test_one_part_of_an_exchange_fails_and_the_others_count(engine: BullEngine, redis: Redis) -> None:
    await engine.add("q", [new_job(f"j{n}") for n in range(4 * CHUNK)])
    *held, last = await claim_all(engine, "q", CHUNK + 1)
    await redis.set("bull:q:ym:minutes", "somebody's text: nothing that ends can be counted")
    got = await engine.exchange("q", [*map(Released, held), Completed(last)], 2 * CHUNK, 30_000, "tester")
    assert got.settled == [claim.job.id for claim in held]
    assert len(got.claims) == CHUNK
    assert got.unsettled == [Completed(last)]

    await redis.delete("bull:q:ym:minutes")
    again = await engine.exchange("q", got.unsettled, 0, 30_000, "tester")
    assert again.settled == [last.job.id]
    assert (await engine.counts("q"))["active"] == CHUNK


async def test_a_job_that_is_to_fail_can_not_take_others_along(engine: BullEngine, redis: Redis) -> None:
    await engine.add("q", [new_job("doomed"), new_job("good")])
    await redis.hset("bull:q:doomed", "defa", "a child of it failed")
    await redis.set("bull:q:ym:minutes", "somebody's text: nothing that ends can be counted")
    got = await engine.exchange("q", [], 2, 30_000, "tester")
    assert [claim.job.id for claim in got.claims] == ["good"]

    await redis.delete("bull:q:ym:minutes")
    assert (await engine.exchange("q", [Completed(got.claims[0])], 1, 30_000, "tester")).settled == ["good"]
    doomed = await engine.get("q", "doomed")
    assert doomed
    assert (doomed.state, doomed.failed_reason) == ("failed", "a child of it failed")
    assert [letter.id for letter in (await engine.letters("q", "", 0, 10)).letters] == ["doomed"]


async def test_a_worker_that_lost_its_job_hears_how_it_ended_elsewhere(
    engine: BullEngine, redis: Redis, redis_url: str
) -> None:
    heard: list[Event] = []
    note = heard.append

    async def listen() -> None:
        async for event in engine.events():
            note(event)

    other = BullEngine(redis_url, SystemClock())
    await other.open()
    await engine.add("q", [new_job("j"), new_job("k")])
    listening = asyncio.create_task(listen())
    await eventually(lambda: engine._streams.is_on)
    late, own = await claim_all(engine, "q", 2)
    await redis.delete("bull:q:j:lock")
    assert await other.recover("q")
    (again,) = await claim_all(other, "q", 1)
    assert (await engine.exchange("q", [Completed(late), Completed(own)], 0, 0, "late")).settled == ["k"]
    await other.exchange("q", [Completed(again, b'"done elsewhere"')], 0, 0, "other")
    await eventually(lambda: [one.value for one in heard if one.type == "completed"] == [b'"done elsewhere"'])
    assert {one.job_id for one in heard} == {"j"}
    listening.cancel()
    await asyncio.wait([listening])
    await other.close()
