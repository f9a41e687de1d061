"""Holds: one process at a time has a row, and what a dead one held is taken up when its hold has run out."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import Column, MetaData, String, Table, insert, select, update

from yamchi.storage.holds import HOLD, Holds
from yamchi.storage.tables import Moment
from yamchi.testing import TestApp

rows = Table(
    "rows",
    MetaData(),
    Column("name", String(16), primary_key=True),
    Column("holder", String(64)),
    Column("held_until", Moment),
)


@pytest.fixture
async def app() -> AsyncIterator[TestApp]:
    async with TestApp() as app:

        def make(connection) -> None:
            rows.create(connection)
            connection.execute(insert(rows), {"name": "a", "holder": None, "held_until": None})

        await app.database.write(make)
        yield app


async def take(app: TestApp, holds: Holds) -> bool:
    row = await app.database.read(lambda c: c.execute(select(rows)).one())
    return await holds.take("a", holder=row.holder, held_until=row.held_until)


def make_holds(app: TestApp) -> Holds:
    return Holds(app.database, rows.c.name, app.clock)


async def test_one_of_many_holds_a_row_and_keeps_it(app: TestApp) -> None:
    many = [make_holds(app) for _ in range(8)]
    taken = await asyncio.gather(*(take(app, holds) for holds in many))
    assert sum(taken) == 1
    mine = many[taken.index(True)]
    await app.clock.advance(HOLD / 1000 - 1)
    assert await take(app, mine)  # renewed
    await app.clock.advance(HOLD / 1000 - 1)
    assert not await take(app, many[taken.index(False)])


async def test_a_hold_that_runs_out_is_taken_over_and_the_old_holder_changes_nothing(app: TestApp) -> None:
    old, new = make_holds(app), make_holds(app)
    assert await take(app, old)
    await app.clock.advance(HOLD / 1000)
    assert await take(app, new)
    late = update(rows).where(old.is_mine).values(held_until=None)
    assert await app.database.write(lambda c: c.execute(late).rowcount) == 0
    assert not await take(app, old)
    assert not old.has("a")


async def test_what_is_let_go_of_is_free_at_once(app: TestApp) -> None:
    old, new = make_holds(app), make_holds(app)
    assert await take(app, old)
    await old.release()
    assert await take(app, new)


async def test_a_hold_is_written_again_only_when_half_of_it_is_over(app: TestApp) -> None:
    async def held_until() -> int:
        return await app.database.read(lambda c: c.execute(select(rows.c.held_until)).scalar_one())

    mine = make_holds(app)
    assert await take(app, mine)
    first = await held_until()
    await app.clock.advance(HOLD / 1000 / 2 - 1)
    assert await take(app, mine)
    assert await held_until() == first
    await app.clock.advance(2)
    assert await take(app, mine)
    assert await held_until() == app.clock.now() + HOLD


async def test_a_row_of_a_name_is_made_and_one_holds_it(app: TestApp) -> None:
    mine, other = make_holds(app), make_holds(app)
    assert await take(app, other), "another row of the same table"
    for _ in range(2):
        assert await mine.take_named("b")
        assert not await other.take_named("b")
    assert await mine.take_named("c")
    await mine.release()
    assert await other.take_named("b")
