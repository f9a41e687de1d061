"""The SQL of producing: jobs, and runs of a schedule. Each function runs inside a transaction."""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import Any

from yamchi.clock import Millis
from yamchi.queues.engines.sqlite.rows import each_or_all, shift
from yamchi.queues.records import NewJob, State

Db = sqlite3.Connection

_ADD = (
    "INSERT INTO jobs (queue, id, name, state, rank, run_at, created_at, expires_at, options, payload) "
    "VALUES {} ON CONFLICT (queue, id) DO NOTHING"
)
_MARKS = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
CHUNK = 50
"""Rows that one statement adds: during each statement the event loop may take the interpreter for long."""
_ADD_ONE, _ADD_CHUNK = _ADD.format(_MARKS), _ADD.format(", ".join([_MARKS] * CHUNK))


def add(db: Db, queue: str, jobs: Sequence[NewJob], now: Millis) -> list[bool]:
    rows = [_row(queue, job, now) for job in jobs]
    chunks = (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))
    created = [is_new for chunk in chunks for is_new in _add_chunk(db, chunk)]
    states = Counter(row[3] for row, is_new in zip(rows, created, strict=True) if is_new)
    shift(db, queue, states)
    return created


def _add_chunk(db: Db, rows: list[tuple[Any, ...]]) -> list[bool]:
    if len(rows) < CHUNK:
        return each_or_all(db, _ADD_ONE, rows)
    db.execute("SAVEPOINT chunk")
    added = db.execute(_ADD_CHUNK, [value for row in rows for value in row]).rowcount
    if added != CHUNK:
        db.execute("ROLLBACK TO chunk")
    db.execute("RELEASE chunk")
    return [True] * CHUNK if added == CHUNK else each_or_all(db, _ADD_ONE, rows)


def note_doubts(db: Db, queue: str, job_ids: Sequence[str]) -> None:
    """Remember that another engine may have these jobs too."""
    db.executemany("INSERT OR IGNORE INTO doubts VALUES (?, ?)", [(queue, job_id) for job_id in job_ids])


def _row(queue: str, job: NewJob, now: Millis) -> tuple[Any, ...]:
    run_at = now if job.run_at is None else job.run_at
    state: State = "delayed" if run_at > now else "waiting"
    options = job.options.encode()
    return (queue, job.id, job.name, state, -job.priority, run_at, now, job.expires_at, options, job.payload)


def fire(db: Db, schedule: str, moment: Millis, queue: str, job: NewJob, now: Millis) -> bool:
    fired = db.execute(
        "INSERT INTO schedules VALUES (?, ?) "
        "ON CONFLICT DO UPDATE SET fired_at = excluded.fired_at WHERE fired_at < excluded.fired_at",
        (schedule, moment),
    )
    return fired.rowcount == 1 and add(db, queue, [job], now)[0]
