"""The look at all queues that a waiting worker takes on its event loop: right, and as cheap with many jobs as with few."""

import sqlite3

import pytest

from yamchi.queues.engines.sqlite.schema import MIGRATIONS
from yamchi.queues.engines.sqlite.working import work_of

_ADD = "INSERT INTO jobs (queue, id, name, state, rank, run_at, {}) VALUES (?, ?, 'work', ?, 0, ?, {})"


@pytest.fixture
def database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    for step in MIGRATIONS:
        connection.executescript(step)
    return connection


def add(database: sqlite3.Connection, queue: str, state: str, moments: range) -> None:
    """Jobs of this state; the other columns that must have something have nothing in them."""
    named = {"seq", "queue", "id", "name", "state", "rank", "run_at"}
    needed = [
        column[1]
        for column in database.execute("PRAGMA table_info(jobs)")
        if column[3] and column[4] is None and column[1] not in named
    ]
    statement = _ADD.format(", ".join(needed), ", ".join("0" for _ in needed))
    database.executemany(statement, [(queue, f"{state}-{moment}", state, moment) for moment in moments])


def steps(database: sqlite3.Connection, queues: list[str]) -> int:
    """How many of SQLite's own steps the look takes."""
    taken = 0

    def count() -> int:
        nonlocal taken
        taken += 1
        return 0

    database.set_progress_handler(count, 1)
    work_of(database, queues)
    database.set_progress_handler(None, 1)
    return taken


def test_when_each_is_due_and_what_waits(database: sqlite3.Connection) -> None:
    add(database, "later", "delayed", range(500, 510))
    add(database, "now", "waiting", range(3))
    add(database, "both", "delayed", range(700, 702))
    add(database, "both", "waiting", range(1))
    add(database, "moved", "delayed", range(100, 102))
    add(database, "paused", "delayed", range(5))
    add(database, "paused", "waiting", range(5))
    database.execute("INSERT INTO paused VALUES ('paused')")
    database.execute("INSERT INTO carried VALUES ('moved', 'somebody', 900)")
    assert work_of(database, ["later", "now", "both", "moved", "paused", 'it\'s "none"']) == [
        ("later", 500, False),
        ("now", None, True),
        ("both", 700, True),
        ("moved", 900, False),
        ("paused", None, False),
        ('it\'s "none"', None, False),
    ]
    assert work_of(database, []) == []


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_thousand_jobs_cost_what_one_does(database: sqlite3.Connection, is_paused: bool) -> None:
    queues = ["a", "b"]
    for queue in queues:
        add(database, queue, "delayed", range(1))
        add(database, queue, "waiting", range(1))
    if is_paused:
        database.execute("INSERT INTO paused VALUES ('a')")
    with_one = steps(database, queues)
    for queue in queues:
        add(database, queue, "delayed", range(1, 1_000))
        add(database, queue, "waiting", range(1, 1_000))
    assert steps(database, queues) <= with_one + 10
