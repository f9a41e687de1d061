"""The SQL of the database beside Supabase: which message stands for which job. Each function runs inside a transaction.

`messages` knows the message of every job until it has been deleted there.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from yamchi.clock import Millis
from yamchi.errors import InvalidJob
from yamchi.queues import foreign
from yamchi.queues.engines.sqlite import adding, management
from yamchi.queues.engines.statestore import LETTER_TABLES, Db, among, shift, take_back_sent
from yamchi.queues.engines.supabase.reading import Message
from yamchi.queues.records import NewJob, check_id

TABLES = (
    "CREATE TABLE IF NOT EXISTS messages (queue TEXT, number INTEGER, id TEXT NOT NULL, seen_at INTEGER NOT NULL, "
    "PRIMARY KEY (queue, number)) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS message_by_id ON messages(queue, id)",
    *LETTER_TABLES,
)


def prepare(db: Db) -> None:
    for statement in TABLES:
        db.execute(statement)


# ── Going out ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A job on its way to Supabase, where it is only its payload."""

    id: str
    payload: bytes


def add(db: Db, queue: str, jobs: Sequence[NewJob], now: Millis) -> tuple[list[bool], list[Outgoing]]:
    """Write new jobs down; those that are due are sent before anybody may claim them."""
    created = adding.add(db, queue, jobs, now)
    due = [
        Outgoing(job.id, job.payload)
        for job, is_new in zip(jobs, created, strict=True)
        if is_new and (job.run_at or now) <= now
    ]
    _mark_sent(db, queue, [one.id for one in due])
    return created, due


def _mark_sent(db: Db, queue: str, job_ids: Sequence[str]) -> None:
    moved = db.execute(
        "UPDATE jobs SET state = 'sent' WHERE queue = ? AND state = 'waiting' AND id IN (SELECT value FROM json_each(?))",
        (queue, among(job_ids)),
    ).rowcount
    shift(db, queue, {"waiting": -moved, "sent": moved})


def confirm(db: Db, queue: str, numbers: Mapping[str, int], now: Millis) -> None:
    db.executemany(
        "INSERT OR IGNORE INTO messages VALUES (?, ?, ?, ?)",
        [(queue, number, job_id, now) for job_id, number in numbers.items()],
    )


def withdraw(db: Db, queue: str, job_ids: Sequence[str]) -> None:
    """Supabase did not take these jobs: forget them, so that their ids are free to be tried again."""
    gone = db.execute(
        "DELETE FROM jobs WHERE queue = ? AND state = 'sent' AND id IN (SELECT value FROM json_each(?))",
        (queue, among(job_ids)),
    ).rowcount
    shift(db, queue, {"sent": -gone})


_NO_MESSAGE = "NOT EXISTS (SELECT 1 FROM messages m WHERE m.queue = jobs.queue AND m.id = jobs.id)"


def send_on(
    db: Db, queue: str, now: Millis, unclaimed_for: Millis, cut_after: Millis, limit: int
) -> list[Outgoing]:
    """Jobs that are due and that nobody here has taken, and those whose way to Supabase was cut short."""
    if management.paused(db, queue):
        return []
    rows = db.execute(
        "SELECT seq, id, payload, state FROM jobs WHERE queue = ?1 AND (state IN ('waiting', 'delayed') AND run_at <= ?2 "
        f"OR state = 'sent' AND max(run_at, created_at) <= ?3) AND {_NO_MESSAGE} ORDER BY run_at, seq LIMIT ?4",
        (queue, now - unclaimed_for, now - cut_after, limit),
    ).fetchall()
    # Due from now on: whoever looks meanwhile sees that it is on its way, and not cut short.
    db.executemany(
        "UPDATE jobs SET state = 'sent', run_at = ? WHERE seq = ?", [(now, seq) for seq, *_ in rows]
    )
    moved = Counter[str]({"sent": len(rows)})
    moved.subtract(state for *_, state in rows)
    shift(db, queue, moved)
    return [Outgoing(job_id, payload) for _, job_id, payload, _ in rows]


# ── Coming in ─────────────────────────────────────────────────────────────────────────────────────────────────────


def ingest(db: Db, queue: str, messages: Sequence[Message], now: Millis) -> list[int]:
    """Take messages in as jobs that can be claimed here; the numbers of those that are nothing new."""
    return [message.number for message in messages if not _ingest(db, queue, message, now)]


def _ingest(db: Db, queue: str, message: Message, now: Millis) -> bool:
    number, body = message.number, foreign.shown(message.body)
    row = db.execute("SELECT id FROM messages WHERE queue = ? AND number = ?", (queue, number)).fetchone()
    job_id = row[0] if row else _unconfirmed(db, queue, body)
    if job_id is None:
        job_id = _foreign_id(body, number)
        is_new = adding.add(db, queue, [NewJob(job_id, "", message.body)], now)[0]
    else:
        is_new = bool(take_back_sent(db, queue, [job_id]))
    db.execute("INSERT OR REPLACE INTO messages VALUES (?, ?, ?, ?)", (queue, number, job_id, now))
    return is_new


def _unconfirmed(db: Db, queue: str, body: Any) -> str | None:
    """A message may ingest before its number is written down: then it is the job of this very data."""
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
        (queue, among(job_ids)),
    ).fetchall()


def deleted(db: Db, messages: Sequence[tuple[str, int]]) -> None:
    db.executemany("DELETE FROM messages WHERE queue = ? AND number = ?", messages)
