"""Keys with a lifetime: the same in a table of either database and in Redis, where other programs see them by their names."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from yamchi import Yamchi
from yamchi.clock import SystemClock
from yamchi.errors import InvalidJob
from yamchi.queues.engines.bull.keys import RedisKeys
from yamchi.settings import Settings
from yamchi.storage.database import Database
from yamchi.storage.keys import PRUNE_EVERY, Keys, TableKeys
from yamchi.storage.tables import keys as table
from yamchi.testing import TestApp
from yamchi.testing.waiting import eventually

PLACES = ["sqlite", *(pytest.param(name, marks=pytest.mark.services) for name in ("postgresql", "redis"))]


@pytest.fixture(params=PLACES)
async def keys(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Keys]:
    if request.param == "redis":
        in_redis = RedisKeys(request.getfixturevalue("redis_url"))
        yield in_redis
        await in_redis.close()
        return
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/data.db" if is_sqlite else request.getfixturevalue("postgres_database")().url
    database = Database(url)
    yield TableKeys(database, SystemClock())
    await database.close()


async def test_a_value_is_kept_replaced_and_forgotten(keys: Keys) -> None:
    name = f"email_job:лид {id(keys)}"
    assert await keys.get(name) is None
    await keys.set(name, "job-1", "48h")
    await keys.set(name, "задание 2", "25h")
    assert await keys.get(name) == "задание 2"
    assert await keys.delete(name) is True
    assert await keys.delete(name) is False
    assert await keys.get(name) is None


async def test_a_value_is_gone_when_its_time_is_over(keys: Keys) -> None:
    name = f"zoom_token:{id(keys)}"
    await keys.set(name, "token", "50ms")

    async def is_gone() -> bool:
        return await keys.get(name) is None

    await eventually(is_gone)
    assert await keys.delete(name) is False


async def test_a_counter_loses_no_count_and_its_lifetime_begins_once(keys: Keys) -> None:
    name = f"ai_rate:{id(keys)}"
    numbers = await asyncio.gather(*(keys.incr(name, "1h") for _ in range(50)))
    assert sorted(numbers) == list(range(1, 51))
    assert [await keys.incr(name, "1h", by=by) for by in (1_000, -1_050)] == [1_050, 0]
    short = f"{name}:short"
    await keys.incr(short, "100ms")

    async def begins_anew() -> bool:
        return await keys.incr(short, "1h") == 1

    await eventually(begins_anew)


@pytest.mark.parametrize("name", ["", "x" * 513])
async def test_a_name_that_no_place_can_keep_is_refused(keys: Keys, name: str) -> None:
    with pytest.raises(InvalidJob, match="A key's name has 1 to 512 characters"):
        await keys.set(name, "value")


async def test_what_ran_out_is_deleted_beside_later_writes() -> None:
    async with TestApp() as app:
        await app.keys.set("old", "1", "1m")
        await app.keys.set("lasting", "1")
        await app.clock.advance(PRUNE_EVERY / 1000)
        await app.keys.set("new", "1", "1m")
        count = await app.database.read(lambda c: c.execute(select(func.count()).select_from(table)).scalar())
    assert count == 2


@pytest.mark.services
async def test_with_redis_as_the_engine_other_programs_see_the_keys(redis_url: str, tmp_path: Path) -> None:
    redis = pytest.importorskip("redis.asyncio")
    async with (
        Yamchi(Settings(home=tmp_path, redis_url=redis_url)) as app,
        redis.from_url(redis_url) as client,
    ):
        await app.keys.set("email_job:42", "email2-42", "48h")
        assert await client.get("email_job:42") == b"email2-42"
        assert 0 < await client.ttl("email_job:42") <= 48 * 3600
        await client.set("remind5h_job:42", "theirs")
        assert await app.keys.get("remind5h_job:42") == "theirs"
        await client.delete("email_job:42", "remind5h_job:42")
