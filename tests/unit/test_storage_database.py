"""Yamchi's own tables: made by themselves where embedded, written together, read beside, explained when in trouble."""

import asyncio
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, func, insert, inspect, select, text

from yamchi.errors import EngineError, EngineUnavailable, UnstorableValue
from yamchi.notifications.plugin import Notifications
from yamchi.notifications.tables import events, metadata
from yamchi.plugins import shipped_plugins
from yamchi.storage.database import MOST_KEYS, Database, Op
from yamchi.storage.groupcommit import GroupCommit
from yamchi.storage.revisions import CORE, Migrations
from yamchi.testing import eventually

TIMEOUT_SECONDS = 30.0

NEW_EVENT = insert(events)


def row(number: int) -> dict[str, object]:
    return {
        "event_id": f"e{number}",
        "event_type": "user_registered",
        "data": {"имя": "Нуржан"},
        "occurred_at": 1_763_123_710_000 + number,
        "received_at": 1_763_123_710_000,
        "state": "accepted",
    }


@pytest.fixture
async def database(database_url: str):
    database = Database(database_url, [Notifications.schema()])
    await database.migrate()
    yield database
    await database.close()


async def test_migrations_make_the_tables_of_the_code(database: Database) -> None:
    def columns(connection):
        found = inspect(connection)
        return {name: {c["name"] for c in found.get_columns(name)} for name in metadata.tables}

    assert await database.read(columns) == {
        name: set(table.columns.keys()) for name, table in metadata.tables.items()
    }


async def test_migrating_twice_and_at_once_is_harmless(database_url: str) -> None:
    databases = [Database(database_url, [Notifications.schema()]) for _ in range(4)]
    await asyncio.gather(*(database.migrate() for database in databases))
    await databases[0].migrate()
    assert (
        await databases[0].read(lambda c: c.execute(select(func.count()).select_from(events)).scalar()) == 0
    )
    await databases[0].close()


async def test_databases_of_several_applications_are_migrated_at_once(tmp_path: Path) -> None:
    """Alembic works with globals; what it says of migrations of the user's own is for the user to choose."""
    logger = logging.getLogger("alembic")
    before = logger.level
    logger.setLevel(logging.INFO)
    databases = [
        Database(f"sqlite:///{tmp_path}/{number}.db", [Notifications.schema()]) for number in range(4)
    ]
    try:
        await asyncio.gather(*(database.open() for database in databases))
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)
        await asyncio.gather(*(database.close() for database in databases))


async def test_what_is_put_together_is_kept_and_read_back(database: Database) -> None:
    await asyncio.gather(*(database.put(NEW_EVENT, row(number)) for number in range(500)))
    found = await database.read(lambda c: c.execute(select(events).order_by(events.c.occurred_at)).all())
    assert [one.event_id for one in found] == [f"e{number}" for number in range(500)]
    assert found[3].occurred_at == 1_763_123_710_003
    assert found[3].data == {"имя": "Нуржан"}


async def test_one_bad_row_does_not_hurt_its_neighbors(database: Database) -> None:
    await database.put(NEW_EVENT, row(1))
    outcomes = await asyncio.gather(
        *(database.put(NEW_EVENT, row(number)) for number in (0, 1, 2)), return_exceptions=True
    )
    assert [isinstance(outcome, EngineError) for outcome in outcomes] == [False, True, False]
    assert await database.read(lambda c: c.execute(select(func.count()).select_from(events)).scalar()) == 3


async def test_what_is_looked_up_at_once_is_one_query_for_each_key_and_nothing_is_cached(
    database: Database,
) -> None:
    asked: list[list[str]] = []

    def moments(connection: Connection, ids: Sequence[str]) -> dict[str, int]:
        asked.append(list(ids))
        query = select(events.c.event_id, events.c.occurred_at).where(events.c.event_id.in_(ids))
        return dict(connection.execute(query).all())

    await asyncio.gather(*(database.put(NEW_EVENT, row(number)) for number in (1, 2)))
    found = await asyncio.gather(*(database.get(moments, one) for one in ("e1", "e2", "e1", "e3")))
    assert found == [1_763_123_710_001, 1_763_123_710_002, 1_763_123_710_001, None]
    await database.put(NEW_EVENT, row(3))
    assert await database.get(moments, "e3") == 1_763_123_710_003
    assert asked == [["e1", "e2", "e3"], ["e3"]]


async def test_a_key_that_can_not_be_looked_up_is_its_own_callers_error(database: Database) -> None:
    def lengths(connection: Connection, keys: Sequence[str]) -> dict[str, int]:
        if "bad" in keys:
            raise ValueError("bad")
        return {key: len(key) for key in keys}

    found = await asyncio.gather(
        *(database.get(lengths, key) for key in ("a", "bad", "bb")), return_exceptions=True
    )
    assert [found[0], found[2]] == [1, 2]
    assert isinstance(found[1], ValueError)


async def test_more_keys_than_a_query_may_have_are_looked_up_in_parts(database: Database) -> None:
    await database.open()
    asked: list[int] = []

    def known(connection: Connection, keys: Sequence[int]) -> dict[int, int]:
        asked.append(len(keys))
        return {key: -key for key in keys}

    found = await asyncio.gather(*(database.get(known, key) for key in range(2 * MOST_KEYS + 1)))
    assert found == [-key for key in range(2 * MOST_KEYS + 1)]
    assert asked == [MOST_KEYS, MOST_KEYS, 1]


async def test_while_a_database_is_away_only_one_of_many_waits_for_it() -> None:
    tried: list[int] = []

    def transact(connection: None, ops: Sequence[object]) -> list[object]:
        tried.append(len(ops))
        raise EngineUnavailable("away")

    shared: GroupCommit[None] = GroupCommit("away", None, transact, lambda error: error)
    answers = await asyncio.gather(*(shared.run(lambda _: 1) for _ in range(100)), return_exceptions=True)
    shared.stop()
    assert [type(answer) for answer in answers] == [EngineUnavailable] * 100
    assert tried == [100, 1]


@pytest.mark.parametrize("odd", [{"event_id": "a\0b"}, {"event_id": "x" * 5_000}, {"data": [[]]}])
async def test_a_value_that_no_table_can_keep_is_the_callers_error(
    database: Database, odd: dict[str, object]
) -> None:
    """Not one that passes: whoever tries again after an EngineError would try for ever."""
    if "data" in odd:
        deep: list[object] = []
        for _ in range(300):  # deeper than it can be written
            deep = [deep]
        odd = {"data": deep}
    if database.is_embedded and "event_id" in odd:
        await database.put(NEW_EVENT, {**row(1), **odd})  # SQLite keeps any text
        return
    with pytest.raises(UnstorableValue):
        await database.put(NEW_EVENT, {**row(1), **odd})
    await database.put(NEW_EVENT, row(2))


@pytest.mark.services
async def test_a_role_that_may_not_create_tables_is_told_what_to_do(postgres_database) -> None:
    database = Database(postgres_database().unprivileged_url(), [Notifications.schema()])
    with pytest.raises(EngineError, match="yamchi doctor --migrate"):
        await database.open()


async def test_a_database_of_a_newer_version_is_left_alone(database: Database, tmp_path: Path) -> None:
    def move_on(connection) -> None:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")

    await database.write(move_on)
    await database.close()
    with pytest.raises(EngineError, match=r"alembic_version is at 9999\): update Yamchi"):
        await database.open()


@pytest.mark.parametrize("migrations", [CORE, *filter(None, (kind.schema() for kind in shipped_plugins()))])
def test_the_newest_revision_is_the_one_in_the_last_file(migrations: Migrations) -> None:
    last = max(migrations.folder.glob("[0-9]*.py"))
    assert f'revision = "{migrations.head}"' in last.read_text()


async def test_a_closed_database_holds_nothing_open(database_url: str) -> None:
    def next_descriptor() -> int:
        number = os.dup(0)
        os.close(number)
        return number

    async def use() -> int:
        database = Database(database_url, [Notifications.schema()])
        await database.read(lambda connection: connection.execute(select(func.count()).select_from(events)))
        await database.close()
        return next_descriptor()

    first, *later = [await use() for _ in range(4)]
    assert later == [first] * 3


async def test_who_reads_while_it_closes_gets_an_answer_and_so_do_those_who_come_later(
    database: Database,
) -> None:
    await database.open()
    is_writing, may_end = threading.Event(), threading.Event()

    def write(connection: Connection) -> bool:
        is_writing.set()
        return may_end.wait(TIMEOUT_SECONDS)

    async def read() -> int | None:
        return await asyncio.wait_for(database.read(lambda connection: connection.scalar(select(1))), 10)

    writing = asyncio.create_task(database.write(write))
    await eventually(is_writing.is_set)
    closing = asyncio.create_task(database.close())
    await eventually(lambda: not database._writer._inbox.empty())
    assert await read() == 1
    may_end.set()
    assert await writing
    await closing
    assert await read() == 1


async def test_who_gives_up_while_it_is_opened_leaves_nothing_behind(database_url: str) -> None:
    database = Database(database_url, [Notifications.schema()])
    await database.migrate()
    before = threading.active_count()
    upgrade, is_opening, may_open = database._upgrade, threading.Event(), threading.Event()

    def upgrade_slowly(engine: Engine) -> None:
        is_opening.set()
        may_open.wait(TIMEOUT_SECONDS)
        upgrade(engine)

    database._upgrade = upgrade_slowly  # type: ignore[method-assign]
    opening = asyncio.create_task(database.open())
    await eventually(is_opening.is_set)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    again = asyncio.create_task(database.open())
    may_open.set()
    await again
    await database.close()
    await eventually(lambda: threading.active_count() <= before, within=5)


@pytest.mark.services
async def test_work_of_several_callers_gives_way_before_it_is_a_deadlock(postgres_database) -> None:
    """Two processes, each with two callers' work in one transaction, take the same rows in opposite orders."""
    url = postgres_database().url
    one, other = Database(url), Database(url)
    both_began = threading.Barrier(2)

    def take(row: int, *, waits: bool = False) -> Op[int]:
        waiting = iter([waits])

        def op(connection: Connection) -> int:
            change = text("UPDATE places SET taken = taken + 1 WHERE id = :id")
            taken = connection.execute(change, {"id": row}).rowcount
            if next(waiting, False):
                both_began.wait(TIMEOUT_SECONDS)
            return taken

        return op

    try:
        for statement in (
            "CREATE TABLE places (id int, taken int)",
            "INSERT INTO places VALUES (1, 0), (2, 0)",
        ):
            await one.write(lambda c, statement=statement: c.execute(text(statement)).rowcount)
        await other.read(lambda c: c.execute(text("SELECT 1")).scalar_one())
        done = await asyncio.gather(
            one.write(take(1, waits=True)),
            one.write(take(2)),
            other.write(take(2, waits=True)),
            other.write(take(1)),
        )
        assert done == [1, 1, 1, 1]
        taken = text("SELECT sum(taken) FROM places")
        assert await one.read(lambda c: c.execute(taken).scalar_one()) == 4
        deadlocks = text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        assert await one.read(lambda c: c.execute(deadlocks).scalar_one()) == 0
    finally:
        await one.close()
        await other.close()
