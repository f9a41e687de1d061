"""The ledger: the SQLite engine's tables, and beside them which message of Kafka stands for which job.

Two things are new. A job may be `sent`: it is on Kafka and not held here, so nobody here claims it; to people it
shows as waiting. And `messages` remembers the place of every job that came or went over Kafka until long after its
group has passed it. A message is done when no job is `PENDING` for it: over, gone, or put off for longer than `HOLD`;
from then on the ledger answers for the job, and Kafka no longer. So however a job ends, its message is done with it.
"""

import sqlite3
from collections.abc import Mapping, Sequence

import orjson

from yamchi.clock import Millis
from yamchi.queues.engines.base import Page
from yamchi.queues.engines.sqlite import keeping
from yamchi.queues.engines.sqlite.rows import COLUMNS, record
from yamchi.queues.job import JobRecord, NewJob, State

Db = sqlite3.Connection

HOLD: Millis = 60_000
"""A job put off for no longer than this stays with its message, so that another machine can take it over."""

PENDING = (
    "(j.finished_at IS NULL AND NOT (j.state = 'delayed' AND j.started_at IS NOT NULL "
    f"AND j.run_at > j.started_at + {HOLD}))"
)
"""Whether the job `j` still needs its message."""

TABLES = (
    # partition -1: on its way, its place is not yet known. done: needs no look at its job to know.
    """CREATE TABLE IF NOT EXISTS messages (
        queue TEXT, partition INTEGER, offset INTEGER, id TEXT NOT NULL, round TEXT NOT NULL, stamp INTEGER,
        done INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (queue, partition, offset)
    ) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS message_by_id ON messages(id)",
    # Who reads a partition into this ledger, and up to where.
    """CREATE TABLE IF NOT EXISTS partitions (
        queue TEXT, partition INTEGER, next INTEGER NOT NULL, owner TEXT, PRIMARY KEY (queue, partition)
    ) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS owners (id TEXT PRIMARY KEY, dead_at INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS unsent_letters (queue TEXT, id TEXT, PRIMARY KEY (queue, id)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS bulletin (id TEXT NOT NULL, next INTEGER NOT NULL)",  # -2: from the beginning
    "INSERT INTO bulletin SELECT lower(hex(randomblob(8))), -2 WHERE NOT EXISTS (SELECT 1 FROM bulletin)",
    """CREATE TABLE IF NOT EXISTS tombstones (
        queue TEXT, id TEXT, moment INTEGER NOT NULL, PRIMARY KEY (queue, id)
    ) WITHOUT ROWID""",
    """CREATE TRIGGER IF NOT EXISTS letter_written AFTER INSERT ON dead_letters
        BEGIN INSERT OR IGNORE INTO unsent_letters VALUES (NEW.queue, NEW.id); END""",
)


def prepare(db: Db) -> None:
    for statement in TABLES:
        db.execute(statement)


def among(ids: Sequence[str]) -> str:
    """Ids as the one parameter that json_each takes apart."""
    return orjson.dumps(list(ids)).decode()


def shift(db: Db, queue: str, changes: Mapping[str, int]) -> None:
    """Move the kept counts, `sent` among them."""
    statement = "INSERT INTO counts VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n"
    db.executemany(statement, [(queue, state, change) for state, change in changes.items() if change])


# ── For people, a sent job is a waiting one ───────────────────────────────────────────────────────────────────────


def sent(db: Db, queue: str) -> int:
    row = db.execute("SELECT n FROM counts WHERE queue = ? AND state = 'sent'", (queue,)).fetchone()
    return row[0] if row else 0


def get(db: Db, queue: str, job_id: str) -> JobRecord | None:
    job = keeping.get(db, queue, job_id)
    return _shown(job) if job else None


def _shown(job: JobRecord) -> JobRecord:
    if job.state == "sent":  # type: ignore[comparison-overlap]
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
    if search:
        (total,) = db.execute(f"SELECT count(*) FROM jobs WHERE {where}", values).fetchone()
    else:
        kept = keeping.counts(db, queue)
        total = sent(db, queue) + (kept["waiting"] if state else sum(kept.values()))
    return Page([_shown(record(queue, row)) for row in rows], total)


def surface(db: Db, queue: str, job_ids: Sequence[str]) -> None:
    """Take sent jobs for waiting ones, to cancel or remove them in this same transaction; their message is a ghost then."""
    moved = db.execute(
        "UPDATE jobs SET state = 'waiting' WHERE queue = ? AND state = 'sent' "
        "AND id IN (SELECT value FROM json_each(?))",
        (queue, among(job_ids)),
    ).rowcount
    shift(db, queue, {"sent": -moved, "waiting": moved})


def cancel(db: Db, queue: str, job_ids: Sequence[str], now: Millis) -> dict[str, State]:
    surface(db, queue, job_ids)
    return keeping.cancel(db, queue, job_ids, now)


def remove(db: Db, queue: str, job_ids: Sequence[str]) -> list[str]:
    surface(db, queue, job_ids)
    return keeping.remove(db, queue, job_ids)


def retry(db: Db, queue: str, job_ids: Sequence[str], now: Millis) -> list[str]:
    back = keeping.retry(db, queue, job_ids, now)
    cut_loose(db, queue, back)
    return back


def replay(db: Db, queue: str, jobs: Mapping[str, NewJob], now: Millis) -> list[str]:
    replayed = keeping.replay(db, queue, jobs, now)
    cut_loose(db, queue, [jobs[letter_id].id for letter_id in replayed])
    return replayed


def cut_loose(db: Db, queue: str, job_ids: Sequence[str]) -> None:
    """A job put back by hand has nothing to do with the message it once came by."""
    db.execute(
        "UPDATE messages SET done = 1 WHERE +queue = ? AND id IN (SELECT value FROM json_each(?))",
        (queue, among(job_ids)),
    )


def clean(db: Db, queue: str, state: State, before: Millis, limit: int) -> int:
    """Of the waiting, also those that are on Kafka and were added here."""
    gone = keeping.clean(db, queue, state, before, limit)
    if state == "waiting" and gone < limit:
        rows = db.execute(
            "SELECT id FROM jobs WHERE queue = ? AND state = 'sent' AND created_at <= ? ORDER BY seq LIMIT ?",
            (queue, before, limit - gone),
        ).fetchall()
        gone += len(remove(db, queue, [job_id for (job_id,) in rows]))
    return gone
