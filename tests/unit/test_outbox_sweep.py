"""The sweeper of the outbox on PostgreSQL, beside somebody's open transaction that keeps every dead row."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, Select, text
from sqlalchemy.dialects import postgresql
from tests.services.databases import Database as Empty

from yamchi.clock import SystemClock
from yamchi.notifications.plugin import Notifications
from yamchi.notifications.tables import events
from yamchi.storage.database import Database
from yamchi.storage.outbox import LATE, MOST_TRIES, SWEEP_AFTER, Outbox

NOW = SystemClock().now()
ROUND, ROUNDS = 500, 5


@pytest.fixture
def empty(postgres_database: Callable[[], Empty]) -> Empty:
    return postgres_database()


@pytest.fixture
async def database(empty: Empty) -> AsyncIterator[Database]:
    database = Database(empty.url, [Notifications.schema()])
    await database.migrate()
    yield database
    await database.close()


@pytest.fixture
def finished() -> list[str]:
    return []


@pytest.fixture
def outbox(database: Database, finished: list[str]) -> Outbox:
    async def finish(key: str) -> None:
        finished.append(key)
        await outbox.mark([key])

    async def give_up(key: str, why: str) -> None:
        raise AssertionError(f"{key}: {why}")

    columns = events.c
    outbox = Outbox(
        database, SystemClock(), key=columns.event_id, state=columns.state, since=columns.received_at,
        finish=finish, give_up=give_up, what="events",
    )  # fmt: skip
    return outbox


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(f"sqlite:///{tmp_path}/data.db", [Notifications.schema()])
    await database.migrate()
    yield database
    await database.close()


async def _store(database: Database, outbox: Outbox, keys: list[str], at: int) -> None:
    rows = [
        {"event_id": key, "event_type": "t", "data": {}, "occurred_at": at, "received_at": at} for key in keys
    ]
    await database.write(lambda connection: outbox.store(connection, rows))


async def _touched(database: Database, query: Select[str]) -> int:
    """How many buffers it touches: those of a busy machine are no more."""
    statement = query.compile(dialect=postgresql.dialect(), compile_kwargs={"literal_binds": True})

    def explain(connection: Connection) -> int:
        for way in ("seqscan", "bitmapscan"):  # which a table as short as this one would get
            connection.execute(text(f"SET LOCAL enable_{way} = off"))
        plan = connection.execute(text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}")).scalar_one()
        return int(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])

    return await database.read(explain)


async def test_a_sweep_that_goes_on_walks_over_no_dead_rows(
    empty: Empty, database: Database, outbox: Outbox
) -> None:
    short, whole = [], []
    with psycopg.connect(empty.url) as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT count(*) FROM events")
        for number in range(ROUNDS):
            at = NOW - 3_600_000 + number * 2 * LATE
            keys = [f"{number}-{n}" for n in range(ROUND)]
            await _store(database, outbox, keys, at)
            await outbox.mark(keys)
            short.append(await _touched(database, outbox.interrupted(at + 2 * LATE, at + LATE)))
            whole.append(await _touched(database, outbox.interrupted(at + 2 * LATE, None)))
    assert whole[-1] > 2 * whole[0], "nothing is dead: this shows nothing"
    assert short[-1] <= short[0] + 10, (short, whole)


async def test_what_is_interrupted_is_found_where_a_sweep_goes_on(
    database: Database, outbox: Outbox, finished: list[str]
) -> None:
    assert await outbox.sweep() == 0
    assert outbox._sweep.since is not None
    outbox._sweep._next_full = float("inf")  # as after one that took very long
    await _store(database, outbox, ["late"], SystemClock().now() - SWEEP_AFTER - LATE // 2)
    assert await outbox.sweep() == 1
    assert finished == ["late"]


async def test_a_commit_later_than_that_is_found_by_the_next_sweep_over_everything(
    database: Database, outbox: Outbox, finished: list[str]
) -> None:
    assert await outbox.sweep() == 0
    outbox._sweep._next_full = float("inf")
    await _store(database, outbox, ["very-late"], SystemClock().now() - 3 * LATE)
    assert await outbox.sweep() == 0
    outbox._sweep._next_full = 0.0
    assert await outbox.sweep() == 1
    assert finished == ["very-late"]


async def test_what_can_never_be_finished_is_given_up_and_keeps_nobody_waiting(here: Database) -> None:
    """Whatever it raises: a sweeper that died of it began with the same event after every start."""
    finished, given_up = [], {}

    async def finish(key: str) -> None:
        if key == "odd":
            raise ZeroDivisionError("of all things")
        finished.append(key)
        await outbox.mark([key])

    async def give_up(key: str, why: str) -> None:
        given_up[key] = why
        await outbox.mark([key])

    columns = events.c
    outbox = Outbox(
        here, SystemClock(), key=columns.event_id, state=columns.state, since=columns.received_at,
        finish=finish, give_up=give_up, what="events",
    )  # fmt: skip
    await _store(here, outbox, ["odd", "plain"], NOW - 3_600_000)
    for _ in range(MOST_TRIES):
        assert given_up == {}
        await outbox.sweep()
    assert finished == ["plain"]
    assert given_up == {"odd": "It could not be queued: of all things"}
    assert await outbox.sweep() == 0
