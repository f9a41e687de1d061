"""A state store: the SQLite engine's tables beside a broker that carries jobs and remembers little.

Two things are new. A job may be `sent`: it lies on the broker, so nobody here claims it; to people it shows as waiting.
And a dead letter that is written here waits in `unsent_letters` until the broker has it too.
"""

import sqlite3
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import orjson
import structlog

from yamchi.clock import Millis
from yamchi.errors import EngineUnavailable, YamchiError
from yamchi.queues.engines.base import Page
from yamchi.queues.engines.sqlite import SqliteEngine, management
from yamchi.queues.engines.sqlite.rows import COLUMNS, record
from yamchi.queues.records import DeadLetter, JobRecord, State

log = structlog.get_logger("yamchi.statestore")

Db = sqlite3.Connection

LETTER_TABLES = (
    "CREATE TABLE IF NOT EXISTS unsent_letters (queue TEXT, id TEXT, PRIMARY KEY (queue, id)) WITHOUT ROWID",
    "CREATE TRIGGER IF NOT EXISTS letter_written AFTER INSERT ON dead_letters "
    "BEGIN INSERT OR IGNORE INTO unsent_letters VALUES (NEW.queue, NEW.id); END",
)


class StateStoreEngine(SqliteEngine):
    """An engine whose jobs come and go over a broker, and whose state is kept here."""

    broker: str
    """The broker's name in log lines."""

    async def get(self, queue: str, job_id: str) -> JobRecord | None:
        return await self._file.read(lambda db: get(db, queue, job_id))

    async def page(self, queue: str, state: State | None, search: str, offset: int, limit: int) -> Page:
        return await self._file.read(lambda db: page(db, queue, state, search, offset, limit))

    async def clean(self, queue: str, state: State, older_than: Millis, limit: int) -> int:
        before = self._clock.now() - older_than
        return await self._file.write(lambda db: clean(db, queue, state, before, limit))

    async def _unless_refused(self, work: Coroutine[Any, Any, None]) -> None:
        """Log what the broker refuses for good, such as an unknown queue, and go on with the rest."""
        try:
            await work
        except EngineUnavailable:
            raise
        except YamchiError as error:
            log.warning(f"[{self.broker}] {error}")


def among(ids: Sequence[str]) -> str:
    """Ids as one parameter for json_each."""
    return orjson.dumps(list(ids)).decode()


def shift(db: Db, queue: str, changes: Mapping[str, int]) -> None:
    """Change the kept counts, also that of `sent`."""
    statement = "INSERT INTO counts VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n"
    db.executemany(statement, [(queue, state, change) for state, change in changes.items() if change])


# ── For people, a sent job is a waiting one ───────────────────────────────────────────────────────────────────────


def sent(db: Db, queue: str) -> int:
    row = db.execute("SELECT n FROM counts WHERE queue = ? AND state = 'sent'", (queue,)).fetchone()
    return row[0] if row else 0


def get(db: Db, queue: str, job_id: str) -> JobRecord | None:
    job = management.get(db, queue, job_id)
    return _shown(job) if job else None


def _shown(job: JobRecord) -> JobRecord:
    if job.state == "sent":  # type: ignore[comparison-overlap]
        job.state = "waiting"
    return job


def page(db: Db, queue: str, state: State | None, search: str, offset: int, limit: int) -> Page:
    if state not in (None, "waiting"):
        return management.page(db, queue, state, search, offset, limit)
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
        kept = management.counts(db, queue)
        total = sent(db, queue) + (kept["waiting"] if state else sum(kept.values()))
    return Page([_shown(record(queue, row)) for row in rows], total)


def take_back_sent(db: Db, queue: str, job_ids: Sequence[str]) -> int:
    """Turn sent jobs into waiting ones, to run, cancel or remove them here. Their messages are ignored from now on."""
    moved = db.execute(
        "UPDATE jobs SET state = 'waiting' WHERE queue = ? AND state = 'sent' "
        "AND id IN (SELECT value FROM json_each(?))",
        (queue, among(job_ids)),
    ).rowcount
    shift(db, queue, {"sent": -moved, "waiting": moved})
    return moved


def counts(db: Db, queue: str) -> dict[State, int]:
    kept = management.counts(db, queue)
    kept["waiting"] += sent(db, queue)
    return kept


def cancel(db: Db, queue: str, job_ids: Sequence[str], now: Millis) -> dict[str, State]:
    take_back_sent(db, queue, job_ids)
    return management.cancel(db, queue, job_ids, now)


def remove(db: Db, queue: str, job_ids: Sequence[str]) -> list[str]:
    take_back_sent(db, queue, job_ids)
    return management.remove(db, queue, job_ids)


def clean(db: Db, queue: str, state: State, before: Millis, limit: int) -> int:
    """Clean jobs; waiting ones include those on the broker that were added here."""
    if state == "waiting":
        rows = db.execute(
            "SELECT id FROM jobs WHERE queue = ? AND state = 'sent' AND created_at <= ? ORDER BY seq LIMIT ?",
            (queue, before, limit),
        ).fetchall()
        take_back_sent(db, queue, [job_id for (job_id,) in rows])
    return management.clean(db, queue, state, before, limit)


# ── Dead letters ──────────────────────────────────────────────────────────────────────────────────────────────────


def unsent_letters(db: Db, queue: str, failed_before: Millis, limit: int) -> list[DeadLetter]:
    """Dead letters that the broker does not have yet."""
    rows = db.execute(
        "SELECT d.id, d.queue, d.name, d.body, d.error, d.failed_at FROM unsent_letters u "
        "JOIN dead_letters d ON d.queue = u.queue AND d.id = u.id "
        "WHERE u.queue = ? AND d.failed_at <= ? ORDER BY d.failed_at LIMIT ?",
        (queue, failed_before, limit),
    ).fetchall()
    return [DeadLetter(*row) for row in rows]


def letters_sent(db: Db, letters: Sequence[DeadLetter]) -> None:
    statement = "DELETE FROM unsent_letters WHERE queue = ? AND id = ?"
    db.executemany(statement, [(letter.queue, letter.id) for letter in letters])
