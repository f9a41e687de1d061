"""Keeps the latest finished jobs of each state, with their logs. Each function runs inside a transaction."""

import sqlite3
from collections.abc import Sequence

from yamchi.clock import Millis
from yamchi.queues.engines.sqlite.rows import count, shift
from yamchi.queues.records import State

Db = sqlite3.Connection


def trim(db: Db, queue: str, state: State, keep: int, limit: int) -> None:
    """Drop the oldest finished jobs of a state beyond those to keep, at most `limit` of them."""
    surplus = count(db, queue, state) - keep
    if surplus > 0:
        drop_finished(db, queue, state, min(surplus, limit))


_OLDEST = (
    "SELECT seq FROM jobs WHERE queue = ?1 AND state = ?2 AND finished_at IS NOT NULL AND finished_at <= ?3 "
    "ORDER BY finished_at, seq LIMIT ?4"
)


def drop_finished(db: Db, queue: str, state: State, limit: int, before: Millis | None = None) -> int:
    """Remove the oldest finished jobs of a state."""
    values = (queue, state, 1 << 62 if before is None else before, limit)
    if has_logs(db):
        drop_logs(db, db.execute(_OLDEST, values).fetchall())
    gone = db.execute(f"DELETE FROM jobs WHERE seq IN ({_OLDEST})", values).rowcount
    shift(db, queue, {state: -gone})
    return gone


def has_logs(db: Db) -> bool:
    return db.execute("SELECT 1 FROM job_logs LIMIT 1").fetchone() is not None


def drop_logs(db: Db, seqs: Sequence[tuple[int]]) -> None:
    if seqs and has_logs(db):
        db.executemany("DELETE FROM job_logs WHERE seq = ?", seqs)


def forget(db: Db, seqs: Sequence[tuple[int]]) -> None:
    """Remove jobs with their logs: a new job may get the number of a removed one."""
    db.executemany("DELETE FROM jobs WHERE seq = ?", seqs)
    drop_logs(db, seqs)
