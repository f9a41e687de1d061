"""SQLite's tables in tests: made by the migrations once in a test process, and copied from there on.

To run the migrations of every feature takes longer than what most tests then do with the tables. A file that has tables already
is always migrated, and so is a server's database.
"""

from collections.abc import Iterator, Sequence

import pytest
from sqlalchemy import Engine

from yamchi.storage import database
from yamchi.storage.migrating import upgrade
from yamchi.storage.revisions import Migrations

_made: dict[tuple[Migrations, ...], list[str]] = {}


@pytest.fixture(scope="session", autouse=True)
def _copied_tables() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "upgrade", _upgrade)
        yield


def _upgrade(engine: Engine, features: Sequence[Migrations]) -> None:
    if engine.dialect.name != "sqlite" or not _is_empty(engine):
        upgrade(engine, features)
    elif statements := _made.get(tuple(features)):
        _fill(engine, statements)
    else:
        upgrade(engine, features)
        _made[tuple(features)] = _dump(engine)


def _is_empty(engine: Engine) -> bool:
    with engine.connect() as connection:
        return connection.exec_driver_sql("SELECT 1 FROM sqlite_master").fetchone() is None


def _fill(engine: Engine, statements: Sequence[str]) -> None:
    """Make the tables, unless another process was faster."""
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        if connection.exec_driver_sql("SELECT 1 FROM sqlite_master").fetchone() is None:
            for statement in statements:
                connection.exec_driver_sql(statement)
        connection.commit()


def _dump(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        return [line for line in raw.iterdump() if not line.startswith(("BEGIN", "COMMIT"))]
