"""A job in the caller's transaction: there if it commits, never there if it does not."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.services.databases import Database

from yamchi import Job, New, Yamchi
from yamchi.errors import ConfigurationError, InvalidJob
from yamchi.settings import Settings


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Yamchi]:
    async with Yamchi(Settings(home=tmp_path, plugins=())) as app:
        app.define("orders")
        await app.queue("orders").stats()
        yield app


def file_of(app: Yamchi) -> Path:
    return app.settings.var / "yamchi.db"


async def ids(app: Yamchi) -> list[str]:
    return sorted(job.id for job in await app.queue("orders").jobs())


async def test_sqlite3(app: Yamchi) -> None:
    db = sqlite3.connect(file_of(app))
    db.execute("CREATE TABLE orders (id TEXT)")
    db.commit()
    orders = app.queue("orders")
    db.execute("INSERT INTO orders VALUES ('gone')")
    await orders.add({"order": 1}, id="gone", connection=db)
    db.rollback()
    assert await ids(app) == []
    job = await orders.add({"order": 2}, id="kept", connection=db, delay="1h")
    assert (job.is_new, job.state, await ids(app)) == (True, "delayed", [])
    again = await orders.add({"order": 2}, id="kept", connection=db)
    assert not again.is_new
    db.commit()
    db.close()
    assert await ids(app) == ["kept"]
    assert (await orders.stats())["delayed"] == 1


async def test_many_at_once(app: Yamchi) -> None:
    orders, db = app.queue("orders"), sqlite3.connect(file_of(app))
    await orders.add_many([{}] * 60, connection=db)
    db.rollback()
    assert await ids(app) == []
    jobs = await orders.add_many([New({}, id="a"), New({}, id="b", delay="1h")], connection=db)
    assert [(job.id, job.state, job.is_new) for job in jobs] == [
        ("a", "waiting", True),
        ("b", "delayed", True),
    ]
    again = await orders.add_many([New({}, id="b"), New({}, id="c")], connection=db)
    assert [job.is_new for job in again] == [False, True]
    assert await orders.add_many([], connection=db) == []
    assert await ids(app) == []
    db.commit()
    db.close()
    assert await ids(app) == ["a", "b", "c"]


async def test_many_at_once_are_refused_as_one_is(app: Yamchi, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    with pytest.raises(InvalidJob, match=r"other\.db: the queue is in .*yamchi\.db"):
        await app.queue("orders").add_many([{}, {}], connection=other)
    other.close()


async def test_sqlite3_that_commits_by_itself(app: Yamchi) -> None:
    """With isolation_level=None the job begins the transaction: it must not be there before the commit."""
    db = sqlite3.connect(file_of(app), isolation_level=None)
    await app.queue("orders").add({}, id="held", connection=db)
    assert await ids(app) == []
    db.execute("COMMIT")
    db.close()
    assert await ids(app) == ["held"]


class InAutocommitMode(sqlite3.Connection):
    """As Python 3.12 makes one with autocommit=True."""

    autocommit = True


async def test_sqlite3_in_autocommit_mode(app: Yamchi) -> None:
    """What the job began would stay open: commit() does nothing there."""
    db = sqlite3.connect(file_of(app), isolation_level=None, factory=InAutocommitMode)
    with pytest.raises(InvalidJob, match="autocommit mode, so there is no transaction"):
        await app.queue("orders").add({}, connection=db)
    assert not db.in_transaction
    db.execute("BEGIN")
    await app.queue("orders").add({}, id="held", connection=db)
    assert await ids(app) == []
    db.execute("COMMIT")
    db.close()
    assert await ids(app) == ["held"]


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_sqlalchemy(app: Yamchi, ends: str) -> None:
    blocking = create_engine(f"sqlite:///{file_of(app)}")
    orders = app.queue("orders")
    with blocking.connect() as connection:
        await orders.add({}, id="a", connection=connection)
        getattr(connection, ends)()
    with Session(blocking) as session:
        await orders.add({}, id="b", connection=session)
        getattr(session, ends)()
    blocking.dispose()
    assert await ids(app) == (["a", "b"] if ends == "commit" else [])


async def test_what_holds_a_connection_is_told_to_give_it(app: Yamchi) -> None:
    """As the `connection` of Django does, which is not the driver's."""
    held = SimpleNamespace(connection=sqlite3.connect(":memory:"))
    with pytest.raises(InvalidJob, match=r"give a connection to that, such as its \.connection\.$"):
        await app.queue("orders").add({}, connection=held)


async def test_another_file_is_refused(app: Yamchi, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    with pytest.raises(InvalidJob, match=r"other\.db: the queue is in .*yamchi\.db"):
        await app.queue("orders").add({}, connection=other)
    with pytest.raises(InvalidJob, match=r"connection is a builtins\.str"):
        await app.queue("orders").add({}, connection="sqlite:///var/yamchi.db")
    other.close()


async def test_a_broker_without_transactions_says_what_to_do(tmp_path: Path) -> None:
    async with Yamchi(Settings(home=tmp_path, plugins=(), default_queue_url="memory://")) as app:
        app.define("orders")
        with pytest.raises(ConfigurationError, match="on in-memory can't be part of a transaction"):
            await app.queue("orders").add({}, connection=object())


async def test_without_an_event_loop(app: Yamchi) -> None:
    """The connection is used in the thread that calls: sqlite3 insists on it."""

    def order() -> None:
        db = sqlite3.connect(file_of(app))
        app.sync.queue("orders").add({}, id="from-a-thread", connection=db)
        several = app.sync.queue("orders").add_many(
            [New({}, id="second"), New({}, id="third")], connection=db
        )
        assert [job.id for job in several] == ["second", "third"]
        db.commit()
        db.close()

    await asyncio.to_thread(order)
    assert await ids(app) == ["from-a-thread", "second", "third"]


# ── PostgreSQL ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def shop(tmp_path: Path, postgres_database: Callable[[], Database]) -> AsyncIterator[Yamchi]:
    url = postgres_database().url
    async with Yamchi(Settings(home=tmp_path, plugins=(), default_queue_url=url)) as app:
        app.define("orders")
        yield app


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_psycopg_and_sqlalchemy(shop: Yamchi, ends: str) -> None:
    url, orders = str(shop.settings.queue_url("orders")), shop.queue("orders")
    rows: Any = dict_row
    async with await psycopg.AsyncConnection.connect(url, row_factory=rows) as connection:
        await connection.execute("CREATE TABLE orders (id int)")
        await orders.add({}, id="a", connection=connection)
        await getattr(connection, ends)()
    with psycopg.connect(url, row_factory=rows) as blocking:
        await orders.add({}, id="b", connection=blocking)
        getattr(blocking, ends)()
    alchemy = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    async with AsyncSession(alchemy) as session:
        await orders.add_many([New({}, id="c"), New({}, id="e")], connection=session)
        await getattr(session, ends)()
    await alchemy.dispose()
    await asyncio.to_thread(lambda: _order(shop, url, ends))
    assert await ids(shop) == (["a", "b", "c", "d", "e"] if ends == "commit" else [])


def _order(shop: Yamchi, url: str, ends: str) -> None:
    with psycopg.connect(url) as connection:
        shop.sync.queue("orders").add({}, id="d", connection=connection)
        getattr(connection, ends)()


async def test_a_transaction_that_takes_long_is_not_overlooked(shop: Yamchi) -> None:
    """The worker has gone past the moment at which the job was written when it is committed."""

    @shop.job("orders")
    async def ship(job: Job[dict[str, Any]]) -> str:
        return job.id

    url, orders = str(shop.settings.queue_url("orders")), shop.queue("orders")
    worker = shop.worker()
    working = asyncio.create_task(worker.run())
    await (await orders.add({}, id="first")).result(
        timeout="20s"
    )  # the tables are made, and the worker is at work
    async with await psycopg.AsyncConnection.connect(url) as connection:
        late = await orders.add({}, id="late", connection=connection)
        for number in range(20):
            await (await orders.add({}, id=f"early-{number}")).result(timeout="20s")
        await asyncio.sleep(1.5)
        await connection.commit()
    assert await late.result(timeout="20s") == "late"
    worker.stop()
    await working
