"""What somebody else wrote to Redis under a job's id and is no hash: no act on many jobs stops at it."""

from collections.abc import AsyncIterator
from secrets import token_hex
from typing import Any

import pytest
from redis.asyncio import Redis

from yamchi.clock import SystemClock
from yamchi.queues.deadletters import DeadLetters
from yamchi.queues.engines.bull import BullEngine
from yamchi.queues.handlers import QueueDefinition
from yamchi.queues.records import State
from yamchi.testing.conformance.base import claim_all, failure, new_job, settle

pytestmark = pytest.mark.services

STRAY, GOOD = "stray", "good"
PLACES: dict[State, str] = {"failed": "failed", "completed": "completed", "delayed": "delayed"}


@pytest.fixture
def queue() -> str:
    return f"q-{token_hex(4)}"


@pytest.fixture
async def engine(redis_url: str) -> AsyncIterator[BullEngine]:
    engine = BullEngine(redis_url, SystemClock())
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    redis = Redis.from_url(redis_url)
    yield redis
    await redis.aclose()


async def put(redis: Redis, queue: str, state: State) -> None:
    """A stray, and behind it a job, in the set of a state."""
    base = f"bull:{queue}:"
    await redis.rpush(f"{base}{STRAY}", "a", "list")  # type: ignore[misc]
    fields: Any = {
        "name": "x",
        "data": "{}",
        "opts": "{}",
        "timestamp": 1,
        "priority": "nan",
        "finishedOn": 1,
    }
    await redis.hset(f"{base}{GOOD}", mapping=fields)  # type: ignore[misc]
    await redis.zadd(f"{base}{PLACES[state]}", {STRAY: 1, GOOD: 2})


async def ids(engine: BullEngine, queue: str, state: State) -> set[str]:
    return {job.id for job in (await engine.page(queue, state, "", 0, 10)).jobs}


@pytest.mark.parametrize("state", PLACES)
async def test_it_can_be_removed(engine: BullEngine, redis: Redis, queue: str, state: State) -> None:
    await put(redis, queue, state)
    assert await ids(engine, queue, state) == {STRAY, GOOD}, "it is shown"
    assert await engine.remove(queue, [STRAY, GOOD]) == [STRAY, GOOD]
    assert await ids(engine, queue, state) == set()


@pytest.mark.parametrize("state", PLACES)
async def test_cleaning_takes_it_along(engine: BullEngine, redis: Redis, queue: str, state: State) -> None:
    await put(redis, queue, state)
    assert await engine.clean(queue, state, 0, 100) == 2
    assert await ids(engine, queue, state) == set()


@pytest.mark.parametrize("state", ["failed", "completed"])
async def test_those_behind_it_are_put_back(
    engine: BullEngine, redis: Redis, queue: str, state: State
) -> None:
    await put(redis, queue, state)
    assert await engine.retry(queue, [STRAY, GOOD]) == [GOOD]
    assert (await ids(engine, queue, state), await ids(engine, queue, "waiting")) == ({STRAY}, {GOOD})


async def test_those_behind_it_are_promoted(engine: BullEngine, redis: Redis, queue: str) -> None:
    await put(redis, queue, "delayed")
    assert await engine.promote(queue, [STRAY, GOOD]) == [GOOD]
    assert await ids(engine, queue, "delayed") == {STRAY}


async def test_those_behind_it_are_cancelled(engine: BullEngine, redis: Redis, queue: str) -> None:
    await put(redis, queue, "delayed")
    assert await engine.cancel(queue, [STRAY, GOOD]) == {GOOD: "cancelled"}


async def test_it_has_no_data_to_change(engine: BullEngine, redis: Redis, queue: str) -> None:
    await put(redis, queue, "failed")
    assert not await engine.update(queue, STRAY, b"{}")


async def test_a_letter_that_it_stands_in_the_way_of_stays(
    engine: BullEngine, redis: Redis, queue: str
) -> None:
    await engine.add(queue, [new_job(STRAY), new_job(GOOD)])
    await settle(engine, queue, [failure(claim) for claim in await claim_all(engine, queue, 2)])
    base = f"bull:{queue}:"
    await redis.delete(f"{base}{STRAY}")
    await redis.rpush(f"{base}{STRAY}", "a", "list")  # type: ignore[misc]
    letters = DeadLetters(QueueDefinition(queue), engine)
    assert await letters.replay_all() == 1
    assert [letter.id for letter in (await letters.list()).letters] == [STRAY]


async def test_a_letter_that_is_none_is_shown_as_such(engine: BullEngine, redis: Redis, queue: str) -> None:
    dlq = f"bull:{queue}.dlq:"
    await redis.rpush(f"{dlq}{STRAY}", "a", "list")  # type: ignore[misc]
    await redis.lpush(f"{dlq}wait", STRAY)  # type: ignore[misc]
    (listed,) = (await engine.letters(queue, "", 0, 10)).letters
    assert (listed.id, await engine.letter(queue, STRAY)) == (STRAY, listed)
    assert await engine.letter(queue, "wait") is None, "which is a key of the queue's own"
    assert await engine.purge(queue, [STRAY]) == 1
