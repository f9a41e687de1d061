"""Databases made by the version before plugins open, bring themselves up to date, and finish the work that lies in them.

`make_fixture.py` says what is in them and how they were made.
"""

import asyncio
import lzma
import tarfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import inspect, select

from yamchi import Yamchi
from yamchi.notifications.tables import events, metadata, notification_delivery, null_ledger
from yamchi.plugins import shipped_plugins
from yamchi.settings import Settings
from yamchi.shipped import shipped_app
from yamchi.storage.revisions import CORE
from yamchi.testing.waiting import eventually

HERE = Path(__file__).parent
PEOPLE = 20


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Yamchi]:
    """The application that ships, on what the version before left behind."""
    url = None
    if request.param == "sqlite":
        with tarfile.open(HERE / "sqlite.tar.xz") as kept:
            kept.extractall(tmp_path, filter="data")
    else:
        url = request.getfixturevalue("postgres_database")().url
        await asyncio.to_thread(restore, "postgresql.sql.xz", url)
    async with shipped_app(Settings(home=tmp_path, database_url=url)) as app:
        yield app


def restore(name: str, url: str) -> None:
    """Fill an empty database with what was kept under this name."""
    text = lzma.decompress((HERE / name).read_bytes()).decode()
    lines = [line for line in text.splitlines() if not line.startswith("\\")]  # those are for psql
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("\n".join(lines).encode())


async def test_it_finishes_its_work_and_doubles_nothing(app: Yamchi) -> None:
    working = asyncio.create_task(app.work())
    try:
        await eventually(lambda: _is_done(app), within=100)
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    letters = Counter(str(letter["recipients"]) for letter in await app.notifications.mailbox.list(limit=50))
    assert list(letters.values()) == [1, 1, 1], letters
    query = select(null_ledger.c.user_id)
    reached = Counter(await app.database.read(lambda c: c.execute(query).scalars().all()))
    assert len(reached) == PEOPLE
    assert set(reached.values()) == {1}


async def test_the_schema_is_that_of_a_new_database(app: Yamchi, tmp_path: Path) -> None:
    def look(connection) -> dict[str, set[str]]:
        found = inspect(connection)
        return {
            name: {column["name"] for column in found.get_columns(name)} for name in found.get_table_names()
        }

    async with shipped_app(Settings(home=tmp_path / "new")) as fresh:
        expected = await fresh.database.read(look)
    assert {*metadata.tables, *(kind.schema().version_table for kind in shipped_plugins())} <= set(expected)
    assert await app.database.read(look) == expected
    version = f"SELECT version_num FROM {CORE.version_table}"
    assert await app.database.read(lambda c: c.exec_driver_sql(version).scalar()) == CORE.head


async def _is_done(app: Yamchi) -> bool:
    hello = await app.queue("hello").counts()
    table = notification_delivery
    statuses = await app.database.read(lambda c: c.execute(select(table.c.status)).scalars().all())
    states = await app.database.read(lambda c: c.execute(select(events.c.state)).scalars().all())
    campaign = await app.notifications.campaigns.show("half-done")
    return (
        hello["completed"] == 12
        and set(statuses) == {"SENT"}
        and len(statuses) == 3 + PEOPLE
        and set(states) == {"enqueued"}
        and campaign["state"] == "finished"
    )
