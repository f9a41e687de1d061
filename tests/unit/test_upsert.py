"""`INSERT … ON CONFLICT DO NOTHING` says how many rows were new, on either database, of one row and of many."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.services.databases import Database as Empty

from yamchi.storage.database import Database
from yamchi.storage.tables import keys
from yamchi.storage.upsert import insert_new


def rows(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "value": "1"} for name in names]


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
async def test_how_many_rows_were_new(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = f"sqlite:///{tmp_path / 'tables.db'}"
    if kind == "postgresql":
        empty: Callable[[], Empty] = request.getfixturevalue("postgres_database")
        url = empty().url
    database = Database(url)
    await database.migrate()
    try:
        counts = [
            await database.write(lambda connection, names=names: insert_new(connection, keys, rows(*names)))
            for names in ("a", "a", "abc", "abc", "")
        ]
    finally:
        await database.close()
    assert counts == [1, 0, 2, 0, 0]
