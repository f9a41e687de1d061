"""The SQL of working: claim, renew, recover. Each function runs inside a transaction.

Cost of an exchange of n jobs: one statement for the settlements, one that trims, two that claim, whatever n is.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from yamchi.clock import Millis
from yamchi.queues.engines.base import Exchange, stalled_verdict
from yamchi.queues.engines.sqlite.adding import note_doubts
from yamchi.queues.engines.sqlite.rows import BATCH, CLAIMED, HELD, claim, each_or_all, shift
from yamchi.queues.engines.sqlite.settling import Settlement, drop_held, settle
from yamchi.queues.records import PENDING, Claim, Failed, JobRecord, Released, Verdict

Db = sqlite3.Connection

# ── Claiming ──────────────────────────────────────────────────────────────────────────────────────────────────────

_PROMOTE = (
    "UPDATE jobs SET state = 'waiting' WHERE seq IN (SELECT seq FROM jobs WHERE queue = ? AND state = 'delayed' "
    f"AND run_at <= ? ORDER BY run_at LIMIT {BATCH})"
)
_NEXT = f"SELECT {CLAIMED} FROM jobs WHERE queue = ? AND state = 'waiting' ORDER BY rank, run_at, seq LIMIT ?"
_HOLD = (
    "UPDATE jobs SET state = 'active', token = ?, lease_until = ?, worker = ?, started_at = ?, "
    "attempts_made = attempts_made + 1 WHERE seq IN (SELECT value FROM json_each(?))"
)


def take(db: Db, queue: str, want: int, lease: Millis, worker: str, token: str, now: Millis) -> list[Claim]:
    """Claim due jobs, the highest priority and then the longest waiting first."""
    if db.execute("SELECT 1 FROM paused WHERE queue = ?", (queue,)).fetchone() or mover_of(db, queue, now):
        return []
    promoted = db.execute(_PROMOTE, (queue, now)).rowcount
    rows = db.execute(_NEXT, (queue, want)).fetchall()
    if promoted or rows:
        shift(db, queue, {"delayed": -promoted, "waiting": promoted - len(rows), "active": len(rows)})
    return hold(db, queue, rows, lease, worker, token, now)


def hold(
    db: Db, queue: str, rows: list[tuple[Any, ...]], lease: Millis, worker: str, token: str, now: Millis
) -> list[Claim]:
    """Claim these rows of `CLAIMED`. The caller changes the counts."""
    if rows:
        db.execute(_HOLD, (token, now + lease, worker, now, orjson.dumps([row[0] for row in rows]).decode()))
    return [claim(queue, row, token, worker, now) for row in rows]


# ── Moving elsewhere ─────────────────────────────────────────────────────────────────────────────────────────────


def take_pending(
    db: Db, queue: str, want: int, lease: Millis, mover: str, token: str, now: Millis
) -> list[Claim]:
    """Claim jobs whether due or not: waiting ones first, then delayed ones. Nothing while another mover is at it."""
    if mover_of(db, queue, now) not in (None, mover):
        return []
    db.execute("INSERT OR REPLACE INTO carried VALUES (?, ?, ?)", (queue, mover, now + lease))
    claims: list[Claim] = []
    for state in PENDING:
        rows = db.execute(
            f"SELECT {CLAIMED} FROM jobs WHERE queue = ? AND state = '{state}' ORDER BY run_at, seq LIMIT ?",
            (queue, want - len(claims)),
        ).fetchall()
        shift(db, queue, {state: -len(rows), "active": len(rows)})
        claims += hold(db, queue, rows, lease, mover, token, now)
    return claims


_SPOOLED = (
    f"SELECT queue FROM counts WHERE state IN {PENDING} AND n > 0 UNION SELECT queue FROM doubts "
    "UNION SELECT queue FROM carried WHERE carrier <> ?"
)


def spooled(db: Db, mover: str) -> list[str]:
    """Queues of which something waits or is in doubt, or that another mover holds, or died holding."""
    return [queue for (queue,) in db.execute(_SPOOLED, (mover,))]


def mover_of(db: Db, queue: str, now: Millis) -> str | None:
    """The mover of this queue, if one is at it. What a dead mover left is put back."""
    row = db.execute("SELECT carrier, until FROM carried WHERE queue = ?", (queue,)).fetchone()
    if row is None or row[1] > now:
        return row and str(row[0])
    end_move(db, queue, row[0], now)
    return None


def drop(db: Db, queue: str, claims: Sequence[Claim]) -> None:
    """Remove jobs that are still held by these claims. Another one may have begun here, and stays in doubt."""
    dropped = [held.job.id for held, is_mine in zip(claims, drop_held(db, claims), strict=True) if is_mine]
    shift(db, queue, {"active": -len(dropped)})
    forget_doubts(db, queue, dropped)


_DOUBTFUL_BEGUN = (
    "SELECT doubts.id FROM carried JOIN doubts USING (queue) LEFT JOIN jobs USING (queue, id) "
    "WHERE queue = ?1 AND carrier = ?2 "
    f"AND (state IS NULL OR state NOT IN {PENDING} AND NOT (state = 'active' AND worker IS ?2))"
)


def doubtful_begun(db: Db, queue: str, mover: str) -> list[str]:
    """The jobs in doubt that neither wait nor are held by this mover, if it has the queue."""
    return [job_id for (job_id,) in db.execute(_DOUBTFUL_BEGUN, (queue, mover))]


def forget_doubts(db: Db, queue: str, job_ids: Sequence[str]) -> None:
    db.executemany("DELETE FROM doubts WHERE queue = ? AND id = ?", [(queue, job_id) for job_id in job_ids])


_CARRIED = f"SELECT token, worker, started_at, {CLAIMED} FROM jobs WHERE queue = ? AND state = 'active' AND worker = ?"


def end_move(db: Db, queue: str, mover: str, now: Millis) -> None:
    """What was taken and not dropped waits again, where it was, though it may have arrived; whoever works here may go on."""
    claims = [claim(queue, row[3:], *row[:3]) for row in db.execute(_CARRIED, (queue, mover))]
    if claims:
        note_doubts(db, queue, [held.job.id for held in claims])
        settle(db, queue, [Released(held, has_permit=held.has_permit) for held in claims], now)
    db.execute("DELETE FROM carried WHERE queue = ? AND carrier = ?", (queue, mover))


# ── Leases ────────────────────────────────────────────────────────────────────────────────────────────────────────


# A pause is looked up before the jobs are: as a condition on each of them it would walk over all that wait.
_IS_PAUSED = "EXISTS (SELECT 1 FROM paused WHERE queue = {queue})"
# What is being moved elsewhere can be claimed when the mover's lease ends, at the earliest.
_NEXT_DUE = (
    f"CASE WHEN {_IS_PAUSED} THEN NULL ELSE ("
    "SELECT max(min(run_at), coalesce((SELECT until FROM carried WHERE queue = {queue}), 0)) "
    "FROM jobs WHERE queue = {queue} AND state = 'delayed') END"
)
_ANY_WAITING = (
    f"NOT {_IS_PAUSED} AND EXISTS (SELECT 1 FROM jobs WHERE queue = {{queue}} AND state = 'waiting')"
)
_NEXT_DUE_IN_ONE = "SELECT " + _NEXT_DUE.format(queue="?1")
_WORK_OF_ALL = "SELECT json_group_array(json_array(value, {due}, {waiting})) FROM json_each(?)".format(
    due=_NEXT_DUE.format(queue="value"), waiting=_ANY_WAITING.format(queue="value")
)


def next_due(db: Db, queue: str) -> Millis | None:
    """When the next delayed job can be claimed; None if there is none, or while the queue is paused."""
    due: Millis | None = db.execute(_NEXT_DUE_IN_ONE, (queue,)).fetchone()[0]
    return due


def work_of(db: Db, queues: Iterable[str]) -> list[tuple[str, Millis | None, bool]]:
    """Of each queue when its next delayed job is due, and whether a job waits that may be started.

    In one row: each step of a statement gives Python's lock away, and beside threads that compute it comes back late.
    """
    (found,) = db.execute(_WORK_OF_ALL, (orjson.dumps(list(queues)).decode(),)).fetchone()
    return [(queue, due, bool(is_waiting)) for queue, due, is_waiting in orjson.loads(found)]


def renew(db: Db, claims: Sequence[Claim], until: Millis) -> list[str]:
    rows = [(until, held.key, held.token) for held in claims]
    mine = each_or_all(db, f"UPDATE jobs SET lease_until = ? {HELD}", rows)
    return [held.job.id for held, is_mine in zip(claims, mine, strict=True) if is_mine]


def any_overdue(db: Db, queue: str, now: Millis) -> bool:
    statement = "SELECT 1 FROM jobs WHERE queue = ? AND state = 'active' AND lease_until < ? LIMIT 1"
    return db.execute(statement, (queue, now)).fetchone() is not None


_OVERDUE = (
    f"SELECT token, worker, started_at, {CLAIMED} FROM jobs "
    f"WHERE queue = ? AND state = 'active' AND lease_until < ? LIMIT {BATCH}"
)


def recover(db: Db, queue: str, now: Millis) -> tuple[list[tuple[JobRecord, bool]], Settlement]:
    mover_of(db, queue, now)
    rows = db.execute(_OVERDUE, (queue, now)).fetchall()
    verdicts = [stalled_verdict(claim(queue, row[3:], *row[:3]), now) for row in rows]
    outcome = settle(db, queue, verdicts, now) if verdicts else Settlement(queue)
    return [(verdict.claim.job, isinstance(verdict, Failed)) for verdict in verdicts], outcome


def exchange(
    db: Db,
    queue: str,
    verdicts: Sequence[Verdict],
    want: int,
    lease: Millis,
    worker: str,
    token: str,
    now: Millis,
) -> tuple[Exchange, Settlement | None]:
    outcome = settle(db, queue, verdicts, now) if verdicts else None
    claims = take(db, queue, want, lease, worker, token, now) if want > 0 else []
    return Exchange(outcome.settled if outcome else [], claims), outcome
