"""SQLite's tables in tests: made by the migrations once in a test process, and copied from there on.

To run the migrations of every feature takes longer than what most tests then do with the tables. A file that has tables already
is always migrated, and so is a server's database.
"""

import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, create_engine

from yamchi.storage import database
from yamchi.storage.migrating import upgrade
from yamchi.storage.revisions import Migrations


@pytest.fixture(scope="session", autouse=True)
def _copied_tables() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "upgrade", _upgrade)
        yield


def _upgrade(engine: Engine, features: Sequence[Migrations]) -> None:
    if engine.dialect.name != "sqlite" or not _fill(engine, tuple(features)):
        upgrade(engine, features)


def _fill(engine: Engine, features: tuple[Migrations, ...]) -> bool:
    """Make the tables if there are none; whether that was so."""
    with engine.connect() as connection:
        if _has_tables(connection):
            return False
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        if _has_tables(connection):  # another process was faster
            return False
        for statement in _statements_for(features):
            connection.exec_driver_sql(statement)
        connection.commit()
    return True


def _has_tables(connection: Connection) -> bool:
    return connection.exec_driver_sql("SELECT 1 FROM sqlite_master").fetchone() is not None


@cache
def _statements_for(features: tuple[Migrations, ...]) -> list[str]:
    """What makes these tables as the migrations do, and says that they have."""
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{Path(folder) / 'data.db'}")
        upgrade(engine, features)
        with engine.connect() as connection:
            rows = connection.exec_driver_sql(
                "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite%' ORDER BY rowid"
            )
            statements = [sql for (sql,) in rows.fetchall()]
            for table in (feature.version_table for feature in features):
                (version,) = connection.exec_driver_sql(f"SELECT version_num FROM {table}").scalars()
                statements.append(f"INSERT INTO {table} VALUES ('{version}')")
        engine.dispose()
    return statements
