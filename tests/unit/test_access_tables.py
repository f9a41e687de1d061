"""Keys, sessions and the audit in their tables, on SQLite and on PostgreSQL: twice, at once, and after the other process."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from yamchi.errors import ConfigurationError, UnknownJob
from yamchi.http.apikeys import ApiKeys, digest_of, parts_of
from yamchi.http.audit import AuditLog, Entry
from yamchi.http.sessions import Sessions
from yamchi.storage.database import Database
from yamchi.testing import MovableClock


@pytest.fixture
async def databases(database_url: str) -> AsyncIterator[list[Database]]:
    """The same tables as three processes have them."""
    found = [Database(database_url) for _ in range(3)]
    yield found
    for database in found:
        await database.close()


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


async def test_the_same_name_at_once_is_one_key(databases: list[Database], clock: MovableClock) -> None:
    stores = [ApiKeys(database, clock) for database in databases]
    made = await asyncio.gather(
        *(store.create("shop", ["send"], by="test") for store in stores for _ in range(4)),
        return_exceptions=True,
    )
    refused = [one for one in made if isinstance(one, ConfigurationError)]
    (kept,) = [one for one in made if not isinstance(one, BaseException)]
    assert len(refused) == len(made) - 1, made
    assert (await stores[1].find(kept[1])) is not None


async def test_rotating_at_once_leaves_one_text(databases: list[Database], clock: MovableClock) -> None:
    stores = [ApiKeys(database, clock) for database in databases]
    await stores[0].create("shop", ["send"], by="test")
    rotated = await asyncio.gather(
        *(store.rotate("shop") for store in stores for _ in range(3)), return_exceptions=True
    )
    assert all(isinstance(one, tuple | UnknownJob) for one in rotated), rotated
    await clock.advance("3s")
    texts = [one[1] for one in rotated if isinstance(one, tuple)]
    good = [text for text in texts if await stores[0].find(text)]
    assert len(good) == 1


async def test_a_key_is_gone_in_every_process(databases: list[Database], clock: MovableClock) -> None:
    first, second, third = (ApiKeys(database, clock) for database in databases)
    _, text = await first.create("shop", ["send", "read"], by="test", expires_in="1h")
    for store in (first, second, third):
        found = await store.find(text)
        assert found is not None
        assert found.scopes == ("send", "read")
    await second.revoke("shop")
    with pytest.raises(UnknownJob):
        await first.revoke("shop")
    await clock.advance("2s")
    assert [await store.find(text) for store in (first, second, third)] == [None] * 3
    assert [key.state(clock.now()) for key in await third.list()] == ["revoked"]


async def test_keys_go_on_while_the_database_is_away(databases: list[Database], clock: MovableClock) -> None:
    """Nobody can revoke one then either."""
    store = ApiKeys(databases[0], clock)
    _, text = await store.create("shop", ["send"], by="test")
    assert await store.find(text) is not None
    away = Database("postgresql://nobody:nothing@127.0.0.1:1/none?connect_timeout=1")
    store._database = away
    await clock.advance("1m")
    assert await store.find(text) is not None
    await away.close()


async def test_a_session_is_everybodys(databases: list[Database], clock: MovableClock) -> None:
    first, second, third = (Sessions(database, clock, b"the admin's token") for database in databases)
    cookie = await first.begin(None, "127.0.0.1")
    for store in (first, second, third):
        assert await store.find(cookie) is not None
    assert await Sessions(databases[0], clock, b"another token").find(cookie) is None
    await second.end(cookie)
    assert await second.find(cookie) is None
    await clock.advance("2s")
    assert [await store.find(cookie) for store in (first, third)] == [None, None]
    again = await first.begin(None, "127.0.0.1")
    await clock.advance("8d")
    assert await second.find(again) is None


async def test_no_session_survives_a_rotation_at_the_same_moment(
    databases: list[Database], clock: MovableClock
) -> None:
    keys, *stores = ApiKeys(databases[0], clock), *(Sessions(one, clock, b"x") for one in databases)
    key, text = await keys.create("eye", ["read"], by="test")
    digest = digest_of(parts_of(text)[1])
    signing_in = [store.begin(key.key_id, "127.0.0.1", digest=digest) for _ in range(5) for store in stores]
    *cookies, _ = await asyncio.gather(*signing_in, keys.rotate("eye"))
    await clock.advance("3s")
    assert [await stores[0].find(cookie) for cookie in cookies if cookie] == [None] * sum(map(bool, cookies))
    assert await stores[1].begin(key.key_id, "127.0.0.1", digest=digest) is None


async def test_entries_of_all_processes_are_in_one_audit(
    databases: list[Database], clock: MovableClock
) -> None:
    logs = [AuditLog(database, clock, timedelta(days=1)) for database in databases]

    async def change(log: AuditLog, number: int) -> None:
        entry = Entry("admin", "POST /x", f"/x/{number}", before={"n": number}, after=b'{"n": "\\u0000"}')
        await log.begin(entry)
        await log.finish(entry, "200")

    await asyncio.gather(*(change(log, number) for log in logs for number in range(20)))
    rows = await logs[0].page(limit=100)
    assert len(rows) == 60
    assert {row["outcome"] for row in rows} == {"200"}
    assert len(await logs[1].page(target="/x/7")) == 3
    assert await logs[1].page(target="%") == []
