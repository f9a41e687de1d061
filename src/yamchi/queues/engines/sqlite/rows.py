"""Turns a row of the `jobs` table into a `JobRecord`, keeps the counts, and changes many rows at once."""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from yamchi.clock import Millis
from yamchi.queues.options import JobOptions
from yamchi.queues.records import Claim, JobRecord, State

COLUMNS = (
    "seq, id, name, payload, state, created_at, run_at, options, rank, expires_at, attempts_made, progress, result, "
    "failed_reason, stacktrace, started_at, finished_at, worker"
)

# A job that is about to be claimed counts the delivery that this is; one that is held has counted it.
CLAIMED = (
    "seq, id, name, payload, created_at, run_at, options, rank, expires_at, attempts_made + (state <> 'active'), "
    "progress, slotted"
)

HELD = "WHERE seq = ? AND token = ? AND state = 'active'"
"""Finds the job of a claim if the claim still holds it."""

BATCH = 1_000
"""At most this many rows are promoted or trimmed at a time, so that no transaction is long."""


def record(queue: str, row: tuple[Any, ...]) -> JobRecord:
    """A job from a row of `COLUMNS`."""
    (_, id, name, payload, state, created_at, run_at, options, rank, *rest) = row
    return JobRecord(
        id, queue, name, payload, state, created_at, run_at, JobOptions.decode(options), -rank, *rest
    )


def claim(queue: str, row: tuple[Any, ...], token: str, worker: str, started: Millis) -> Claim:
    """A claim from a row of `CLAIMED`; the row's number is its key."""
    seq, id, name, payload, created, run_at, options, rank, expires, made, progress, permit = row
    job = JobRecord(
        id, queue, name, payload, "active", created, run_at, JobOptions.decode(options), -rank, expires, made,
        progress, None, None, None, started, None, worker,
    )  # fmt: skip
    return Claim(job, token, seq, bool(permit))


_SHIFT = "INSERT INTO counts VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n"


def shift(db: sqlite3.Connection, queue: str, changes: Mapping[State, int]) -> None:
    """Change the kept counts by these numbers, by state."""
    db.executemany(_SHIFT, [(queue, state, change) for state, change in changes.items() if change])


def count(db: sqlite3.Connection, queue: str, state: State) -> int:
    row = db.execute("SELECT n FROM counts WHERE queue = ? AND state = ?", (queue, state)).fetchone()
    return row[0] if row else 0


def each_or_all(db: sqlite3.Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> list[bool]:
    """Which rows the statement changed. Nearly always all of them, and then it is one call; else one by one."""
    if len(rows) == 1:
        return [db.execute(statement, rows[0]).rowcount == 1]
    db.execute("SAVEPOINT all_at_once")
    changed = db.executemany(statement, rows).rowcount
    if changed != len(rows):
        db.execute("ROLLBACK TO all_at_once")
    db.execute("RELEASE all_at_once")
    if changed == len(rows):
        return [True] * changed
    return [db.execute(statement, row).rowcount == 1 for row in rows]
