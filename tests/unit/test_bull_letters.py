"""Dead letters on Redis: a failure costs the same however many letters there are, and a search keeps one page."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from weakref import WeakSet

import pytest
from redis.asyncio import Redis

from yamchi.clock import SystemClock
from yamchi.queues.engines.bull import BullEngine
from yamchi.queues.engines.bull.base import section
from yamchi.testing.conformance.base import claim_all, complete, failure, new_job, settle


async def _calls_of_lrem(redis: Redis) -> int:
    """Redis looks through a list for an element at each of these calls."""
    return int((await redis.info("commandstats")).get("cmdstat_lrem", {"calls": 0})["calls"])


@pytest.mark.services
async def test_a_failed_job_does_not_look_through_all_letters(private_redis: Callable[..., Any]) -> None:
    server = await asyncio.to_thread(private_redis)
    engine, redis = BullEngine(server.url, SystemClock()), Redis.from_url(server.url)
    await engine.open()
    calls: list[int] = [0]
    await engine.add("q", [new_job(f"j{n}") for n in range(20)])
    held = await claim_all(engine, "q", 20)
    await complete(engine, "q", held[:10])
    calls.append(await _calls_of_lrem(redis))
    await settle(engine, "q", [failure(one) for one in held[10:]])
    calls.append(await _calls_of_lrem(redis))
    assert calls[2] - calls[1] == calls[1] - calls[0], "as many as when jobs complete"

    await engine.retry("q", ["j10"])
    (again,) = await claim_all(engine, "q", 1)
    await settle(engine, "q", [failure(again, "it broke again")])
    letters = (await engine.letters("q", "", 0, 20)).letters
    assert sorted(letter.id for letter in letters) == [f"j{n}" for n in range(10, 20)], "one letter a job"
    await redis.aclose()
    await engine.close()


class Found:
    """Something that a search finds."""


async def test_a_search_keeps_no_more_than_its_page() -> None:
    alive: WeakSet[Found] = WeakSet()
    most = 0

    async def search() -> AsyncIterator[Found]:
        nonlocal most
        for _ in range(1_000):
            one = Found()
            alive.add(one)
            most = max(most, len(alive))
            yield one

    kept, total = await section(search(), 500, 10)
    assert (len(kept), total) == (10, 1_000)
    assert most <= 12
