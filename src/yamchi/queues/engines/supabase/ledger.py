"""The SQL of the database beside Supabase: which message stands for which job. Each function runs inside a transaction.

The tables are the SQLite engine's. Two things are new: a job may be `sent`, that is lie on Supabase where nobody here claims
it (people see it as waiting); and `messages` knows the message of every job until it has been deleted there.
"""

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from yamchi.clock import Millis
from yamchi.errors import InvalidJob
from yamchi.queues.engines.base import Page
from yamchi.queues.engines.sqlite import keeping, working
from yamchi.queues.engines.sqlite.rows import COLUMNS, record
from yamchi.queues.job import PENDING, DeadLetter, JobRecord, NewJob, State, check_id

Db = sqlite3.Connection

TABLES = (
    "CREATE TABLE IF NOT EXISTS messages (queue TEXT, number INTEGER, id TEXT NOT NULL, seen_at INTEGER NOT NULL, "
    "PRIMARY KEY (queue, number)) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS message_by_id ON messages(queue, id)",
    "CREATE TABLE IF NOT EXISTS unsent_letters (queue TEXT, id TEXT, PRIMARY KEY (queue, id)) WITHOUT ROWID",
    "CREATE TRIGGER IF NOT EXISTS letter_written AFTER INSERT ON dead_letters "
    "BEGIN INSERT OR IGNORE INTO unsent_letters VALUES (NEW.queue, NEW.id); END",
)


def prepare(db: Db) -> None:
    for statement in TABLES:
        db.execute(statement)


def _shift(db: Db, queue: str, changes: Mapping[str, int]) -> None:
    statement = "INSERT INTO counts VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n"
    db.executemany(statement, [(queue, state, change) for state, change in changes.items() if change])


def _among(ids: Sequence[str]) -> str:
    return orjson.dumps(list(ids)).decode()


# ── Going out ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A job on its way to Supabase, where it is only its payload."""

    id: str
    payload: bytes


def add(db: Db, queue: str, jobs: Sequence[NewJob], now: Millis) -> tuple[list[bool], list[Outgoing]]:
    """Write new jobs down; those that are due are sent before anybody may claim them."""
    created = working.add(db, queue, jobs, now)
    due = [
        Outgoing(job.id, job.payload)
        for job, is_new in zip(jobs, created, strict=True)
        if is_new and (job.run_at or now) <= now
    ]
    _send_off(db, queue, [one.id for one in due])
    return created, due


def _send_off(db: Db, queue: str, job_ids: Sequence[str]) -> None:
    moved = db.execute(
        "UPDATE jobs SET state = 'sent' WHERE queue = ? AND state = 'waiting' AND id IN (SELECT value FROM json_each(?))",
        (queue, _among(job_ids)),
    ).rowcount
    _shift(db, queue, {"waiting": -moved, "sent": moved})


def confirm(db: Db, queue: str, numbers: Mapping[str, int], now: Millis) -> None:
    db.executemany(
        "INSERT OR IGNORE INTO messages VALUES (?, ?, ?, ?)",
        [(queue, number, job_id, now) for job_id, number in numbers.items()],
    )


def withdraw(db: Db, queue: str, job_ids: Sequence[str]) -> None:
    """Supabase did not take these jobs: forget them, so that their ids are free to be tried again."""
    gone = db.execute(
        "DELETE FROM jobs WHERE queue = ? AND state = 'sent' AND id IN (SELECT value FROM json_each(?))",
        (queue, _among(job_ids)),
    ).rowcount
    _shift(db, queue, {"sent": -gone})


_NO_MESSAGE = "NOT EXISTS (SELECT 1 FROM messages m WHERE m.queue = jobs.queue AND m.id = jobs.id)"


def send_on(
    db: Db, queue: str, now: Millis, patience: Millis, cut_after: Millis, limit: int
) -> list[Outgoing]:
    """Jobs that are due and that nobody here has taken, and those whose way to Supabase was cut short."""
    if keeping.paused(db, queue):
        return []
    rows = db.execute(
        "SELECT seq, id, payload, state FROM jobs WHERE queue = ?1 AND (state IN ('waiting', 'delayed') AND run_at <= ?2 "
        f"OR state = 'sent' AND max(run_at, created_at) <= ?3) AND {_NO_MESSAGE} ORDER BY run_at, seq LIMIT ?4",
        (queue, now - patience, now - cut_after, limit),
    ).fetchall()
    # Due from now on: whoever looks meanwhile sees that it is on its way, and not cut short.
    db.executemany(
        "UPDATE jobs SET state = 'sent', run_at = ? WHERE seq = ?", [(now, seq) for seq, *_ in rows]
    )
    moved = Counter[str]({"sent": len(rows)})
    moved.subtract(state for *_, state in rows)
    _shift(db, queue, moved)
    return [Outgoing(job_id, payload) for _, job_id, payload, _ in rows]


# ── Coming in ─────────────────────────────────────────────────────────────────────────────────────────────────────


def arrive(db: Db, queue: str, messages: Sequence[Mapping[str, Any]], now: Millis) -> list[int]:
    """Take messages in as jobs that can be claimed here; the numbers of those that are nothing new."""
    return [int(message["msg_id"]) for message in messages if not _take_in(db, queue, message, now)]


def _take_in(db: Db, queue: str, message: Mapping[str, Any], now: Millis) -> bool:
    number, body = int(message["msg_id"]), message["message"]
    row = db.execute("SELECT id FROM messages WHERE queue = ? AND number = ?", (queue, number)).fetchone()
    job_id = row[0] if row else _unconfirmed(db, queue, body)
    if job_id is None:
        job_id = _foreign_id(body, number)
        is_new = working.add(db, queue, [NewJob(job_id, "", orjson.dumps(body))], now)[0]
    else:
        is_new = _bring_back(db, queue, job_id)
    db.execute("INSERT OR REPLACE INTO messages VALUES (?, ?, ?, ?)", (queue, number, job_id, now))
    return is_new


def _unconfirmed(db: Db, queue: str, body: Any) -> str | None:
    """A message may arrive before its number is written down: then it is the job of this very data."""
    rows = db.execute(
        f"SELECT id, payload FROM jobs WHERE queue = ? AND state = 'sent' AND {_NO_MESSAGE} ORDER BY seq LIMIT 1000",
        (queue,),
    )
    return next((job_id for job_id, payload in rows if orjson.loads(payload) == body), None)


def _foreign_id(body: Any, number: int) -> str:
    own = body.get("job_id") if isinstance(body, dict) else None
    try:
        return check_id(own) if isinstance(own, str) else str(number)
    except InvalidJob:
        return str(number)


def _bring_back(db: Db, queue: str, job_id: str) -> bool:
    moved = db.execute(
        "UPDATE jobs SET state = 'waiting' WHERE queue = ? AND id = ? AND state = 'sent'", (queue, job_id)
    ).rowcount
    _shift(db, queue, {"sent": -moved, "waiting": moved})
    return bool(moved)


# ── Messages that are done ────────────────────────────────────────────────────────────────────────────────────────


def done(db: Db, seen_before: Millis, limit: int) -> list[tuple[str, int]]:
    """Messages whose job is over, or was taken in so long ago that this database answers for it from now on."""
    return db.execute(
        "SELECT m.queue, m.number FROM messages m LEFT JOIN jobs j ON j.queue = m.queue AND j.id = m.id "
        "WHERE j.id IS NULL OR j.finished_at IS NOT NULL OR (j.state <> 'sent' AND m.seen_at < ?) LIMIT ?",
        (seen_before, limit),
    ).fetchall()


def numbers_of(db: Db, queue: str, job_ids: Sequence[str]) -> list[tuple[str, int]]:
    return db.execute(
        "SELECT queue, number FROM messages WHERE queue = ? AND id IN (SELECT value FROM json_each(?))",
        (queue, _among(job_ids)),
    ).fetchall()


def deleted(db: Db, messages: Sequence[tuple[str, int]]) -> None:
    db.executemany("DELETE FROM messages WHERE queue = ? AND number = ?", messages)


def unsent_letters(db: Db, limit: int) -> list[DeadLetter]:
    rows = db.execute(
        "SELECT d.id, d.queue, d.name, d.body, d.error, d.failed_at FROM unsent_letters u "
        "JOIN dead_letters d ON d.queue = u.queue AND d.id = u.id LIMIT ?",
        (limit,),
    ).fetchall()
    return [DeadLetter(*row) for row in rows]


def letters_sent(db: Db, letters: Sequence[DeadLetter]) -> None:
    statement = "DELETE FROM unsent_letters WHERE queue = ? AND id = ?"
    db.executemany(statement, [(letter.queue, letter.id) for letter in letters])


# ── For people, a sent job is a waiting one ───────────────────────────────────────────────────────────────────────


def counts(db: Db, queue: str) -> dict[State, int]:
    kept = keeping.counts(db, queue)
    kept["waiting"] += _sent(db, queue)
    return kept


def _sent(db: Db, queue: str) -> int:
    row = db.execute("SELECT n FROM counts WHERE queue = ? AND state = 'sent'", (queue,)).fetchone()
    return row[0] if row else 0


def get(db: Db, queue: str, job_id: str) -> JobRecord | None:
    job = keeping.get(db, queue, job_id)
    return _shown(job) if job else None


def _shown(job: JobRecord) -> JobRecord:
    if job.state not in (*PENDING, "active") and job.finished_at is None:
        job.state = "waiting"
    return job


def page(db: Db, queue: str, state: State | None, search: str, offset: int, limit: int) -> Page:
    if state not in (None, "waiting"):
        return keeping.page(db, queue, state, search, offset, limit)
    where, values = "queue = ?", [queue]
    if state:
        where += " AND state IN ('waiting', 'sent')"
    if search:
        where += " AND (name = ? OR instr(CAST(payload AS TEXT), ?) OR instr(id, ?))"
        values += [search] * 3
    order = "rank, run_at, seq" if state else "seq DESC"
    rows = db.execute(
        f"SELECT {COLUMNS} FROM jobs WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?",
        (*values, limit, offset),
    ).fetchall()
    (total,) = db.execute(f"SELECT count(*) FROM jobs WHERE {where}", values).fetchone()
    return Page([_shown(record(queue, row)) for row in rows], total)


def surface(db: Db, queue: str, job_ids: Sequence[str]) -> None:
    """Take sent jobs for waiting ones, to cancel or remove them in this same transaction."""
    for job_id in job_ids:
        _bring_back(db, queue, job_id)


def clean(db: Db, queue: str, state: State, before: Millis, limit: int) -> int:
    if state == "waiting":
        rows = db.execute(
            "SELECT id FROM jobs WHERE queue = ? AND state = 'sent' AND created_at <= ? ORDER BY seq LIMIT ?",
            (queue, before, limit),
        ).fetchall()
        surface(db, queue, [job_id for (job_id,) in rows])
    return keeping.clean(db, queue, state, before, limit)
