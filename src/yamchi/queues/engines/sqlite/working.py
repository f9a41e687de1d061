"""The SQL of working: settle, claim, renew, recover. Each function runs inside a transaction.

Cost of an exchange of n jobs: one statement for the settlements, one that trims, two that claim, whatever n is.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, assert_never

import orjson

from yamchi.clock import Millis
from yamchi.queues.engines.base import Event, Exchange, RateLimit, stalled_verdict
from yamchi.queues.engines.sqlite.rows import CLAIMED, claim, count, each_or_all, shift
from yamchi.queues.records import (
    FINISHED,
    PENDING,
    Cancelled,
    Claim,
    Completed,
    DeadLetter,
    Expired,
    Failed,
    JobRecord,
    Released,
    RetryAt,
    State,
    Verdict,
    last_kept,
)

Db = sqlite3.Connection
Ending = Literal["completed", "failed", "expired", "cancelled"]
BATCH = 1_000
"""At most this many rows are promoted or trimmed at a time, so that no transaction is long."""

# ── Settling ──────────────────────────────────────────────────────────────────────────────────────────────────────

_MINE = "WHERE seq = ? AND token = ? AND state = 'active'"
_FREE = "token = NULL, lease_until = NULL"
# The jobs of one claim share a token, so that one statement settles all of them: ?1 is {"<seq>": <result>, …}.
_DONE = (
    "UPDATE jobs SET state = 'completed', finished_at = ?3, result = CAST(done.value AS BLOB), "
    f"failed_reason = NULL, {_FREE} FROM json_each(?1) AS done "
    "WHERE seq = CAST(done.key AS INTEGER) AND token = ?2 AND state = 'active'"
)
_DROP = f"DELETE FROM jobs {_MINE}"
_END = f"UPDATE jobs SET state = ?, finished_at = ?, failed_reason = ?, stacktrace = ?, {_FREE} {_MINE}"
# A job that somebody asked to stop does not go back to the queue, whatever its verdict.
_BACK = (
    "UPDATE jobs SET state = iif(cancelling, 'cancelled', iif(?1 > ?2, 'delayed', 'waiting')), "
    "finished_at = iif(cancelling, ?2, NULL), run_at = ?1, attempts_made = attempts_made - ?3, slotted = ?4, "
    f"failed_reason = coalesce(?5, failed_reason), stacktrace = coalesce(?6, stacktrace), {_FREE} "
    "WHERE seq = ?7 AND token = ?8 AND state = 'active' RETURNING state"
)


@dataclass(slots=True)
class Settlement:
    """What came of a batch of verdicts."""

    queue: str
    settled: list[str] = field(default_factory=list)
    ended: list[tuple[Ending, JobRecord, bytes | None]] = field(default_factory=list)
    woken: bool = False

    def events(self) -> Iterator[Event]:
        """Made when somebody listens, and only then."""
        return (Event(how, self.queue, job.id, job.name, value) for how, job, value in self.ended)


def settle(db: Db, queue: str, verdicts: Sequence[Verdict], now: Millis) -> Settlement:
    outcome = Settlement(queue)
    moved: Counter[State] = Counter()
    done = [verdict for verdict in verdicts if isinstance(verdict, Completed)]
    if done:
        _settle_done(db, done, now, outcome, moved)
    for verdict in verdicts:
        if not isinstance(verdict, Completed):
            _settle_one(db, verdict, now, outcome, moved)
    if outcome.settled:
        moved["active"] -= len(outcome.settled)
        shift(db, queue, moved)
        how_many = Counter(how for how, _, _ in outcome.ended)
        _note_minute(db, queue, how_many["completed"], how_many["failed"], now)
        _trim(db, queue, verdicts, moved)
    return outcome


def _settle_done(
    db: Db, done: list[Completed], now: Millis, outcome: Settlement, moved: Counter[State]
) -> None:
    kept: dict[str, list[Completed]] = defaultdict(list)
    dropped: list[Completed] = []
    for verdict in done:
        keeps = verdict.claim.job.options.keep_completed
        (kept[verdict.claim.token] if keeps else dropped).append(verdict)
    mine = [verdict for token, verdicts in kept.items() for verdict in _complete(db, token, verdicts, now)]
    moved["completed"] += len(mine)
    if dropped:
        gone = _drop_held(db, [verdict.claim for verdict in dropped])
        mine += [verdict for verdict, is_mine in zip(dropped, gone, strict=True) if is_mine]
    outcome.settled += [verdict.claim.job.id for verdict in mine]
    outcome.ended += [("completed", verdict.claim.job, verdict.result) for verdict in mine]


def _drop_held(db: Db, claims: Sequence[Claim]) -> list[bool]:
    """Forget jobs with their logs; which of them were still held."""
    mine = each_or_all(db, _DROP, [(held.key, held.token) for held in claims])
    drop_logs(db, [(held.key,) for held, is_mine in zip(claims, mine, strict=True) if is_mine])
    return mine


def _complete(db: Db, token: str, verdicts: list[Completed], now: Millis) -> list[Completed]:
    """Those of the verdicts that still held their jobs. Nearly always all of them; else they are tried one by one."""
    results = {verdict.claim.key: verdict.result and verdict.result.decode() for verdict in verdicts}
    db.execute("SAVEPOINT together")
    settled = db.execute(_DONE, (_json(results), token, now)).rowcount
    if settled != len(verdicts):
        db.execute("ROLLBACK TO together")
    db.execute("RELEASE together")
    if settled == len(verdicts):
        return verdicts
    if len(verdicts) == 1:
        return []
    return [verdict for verdict in verdicts if _complete(db, token, [verdict], now)]


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()


def _settle_one(db: Db, verdict: Verdict, now: Millis, outcome: Settlement, moved: Counter[State]) -> None:
    held, job = verdict.claim, verdict.claim.job
    value: bytes | None = None
    match verdict:
        case RetryAt(moment=moment, error=error, stacktrace=trace):
            state = _put_back(db, (moment, now, 0, 0, error, trace, held.key, held.token))
            value = orjson.dumps(error)
        case Released(until=until, reason=reason, has_permit=has_permit):
            state = _put_back(
                db, (until or job.run_at, now, 1, int(has_permit), reason, None, held.key, held.token)
            )
        case Failed(error=error, letter=letter, stacktrace=trace):
            state = _end(db, "failed", now, error, trace, held)
            value = orjson.dumps(error)
            if state:
                write_letter(db, letter)
        case Expired():
            state = _end(db, "expired", now, None, None, held)
        case Cancelled():
            state = _end(db, "cancelled", now, None, None, held)
        case Completed():
            raise AssertionError("completed jobs are settled together")
        case _:
            assert_never(verdict)
    if not state:
        return
    outcome.settled.append(job.id)
    if state in ("failed", "expired", "cancelled"):
        outcome.ended.append((state, job, value))
        if not job.options.keep(state):
            forget(db, [(held.key,)])
            return
    moved[state] += 1
    outcome.woken |= state in ("waiting", "delayed")


def forget(db: Db, seqs: Sequence[tuple[int]]) -> None:
    """Remove jobs with their logs: a new job may get the number of one that is gone."""
    db.executemany("DELETE FROM jobs WHERE seq = ?", seqs)
    drop_logs(db, seqs)


def _put_back(db: Db, values: tuple[Any, ...]) -> State | None:
    row = db.execute(_BACK, values).fetchone()
    return row[0] if row else None


def _end(
    db: Db, state: State, now: Millis, error: str | None, trace: str | None, held: Claim
) -> State | None:
    changed = db.execute(_END, (state, now, error, trace, held.key, held.token)).rowcount
    return state if changed else None


def write_letter(db: Db, letter: DeadLetter) -> None:
    db.execute(
        "INSERT OR REPLACE INTO dead_letters VALUES (?, ?, ?, ?, ?, ?)",
        (letter.queue, letter.id, letter.name, letter.body, letter.error, letter.failed_at),
    )


def _note_minute(db: Db, queue: str, completed: int, failed: int, now: Millis) -> None:
    if not completed and not failed:
        return
    minute = now - now % 60_000
    added = db.execute(
        "INSERT INTO minutes VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
        "completed = completed + excluded.completed, failed = failed + excluded.failed",
        (queue, minute, completed, failed),
    )
    if added.rowcount:
        db.execute("DELETE FROM minutes WHERE queue = ? AND minute < ?", (queue, minute - 7 * 86_400_000))


def _trim(db: Db, queue: str, verdicts: Sequence[Verdict], moved: Counter[State]) -> None:
    """Keep the last so many finished jobs, as the options of the latest verdict say whose job is kept."""
    for state in FINISHED:
        if moved[state]:
            trim(db, queue, state, last_kept(verdicts, state), BATCH)


def trim(db: Db, queue: str, state: State, keep: int, limit: int) -> None:
    """Drop the oldest finished jobs of a state beyond how many are kept, no more of them than the limit."""
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
    """Claim these rows of `CLAIMED`; the kept counts are the caller's."""
    if rows:
        db.execute(_HOLD, (token, now + lease, worker, now, _json([row[0] for row in rows])))
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


_SPOOLED = f"SELECT queue FROM counts WHERE state IN {PENDING} AND n > 0 UNION SELECT queue FROM carried WHERE carrier <> ?"


def spooled(db: Db, mover: str) -> list[str]:
    """Queues of which something waits, or that another mover holds, or died holding."""
    return [queue for (queue,) in db.execute(_SPOOLED, (mover,))]


def mover_of(db: Db, queue: str, now: Millis) -> str | None:
    """Who moves this queue elsewhere; what a dead one left behind is put back."""
    row = db.execute("SELECT carrier, until FROM carried WHERE queue = ?", (queue,)).fetchone()
    if row is None or row[1] > now:
        return row and str(row[0])
    end_move(db, queue, row[0], now)
    return None


def drop(db: Db, queue: str, claims: Sequence[Claim]) -> None:
    shift(db, queue, {"active": -sum(_drop_held(db, claims))})


_CARRIED = f"SELECT token, worker, started_at, {CLAIMED} FROM jobs WHERE queue = ? AND state = 'active' AND worker = ?"


def end_move(db: Db, queue: str, mover: str, now: Millis) -> None:
    """What was taken and not dropped waits again, where it was; whoever works here may go on."""
    claims = [claim(queue, row[3:], *row[:3]) for row in db.execute(_CARRIED, (queue, mover))]
    if claims:
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
    mine = each_or_all(db, f"UPDATE jobs SET lease_until = ? {_MINE}", rows)
    return [held.job.id for held, is_mine in zip(claims, mine, strict=True) if is_mine]


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


# ── Permits under a rate limit ────────────────────────────────────────────────────────────────────────────────────


def reserve(db: Db, queue: str, limit: RateLimit, keys: Sequence[str], now: Millis) -> list[Millis]:
    permits = []
    for key in keys:
        row = db.execute("SELECT next FROM turns WHERE queue = ? AND key = ?", (queue, key)).fetchone()
        permit, following = limit.take(row[0] if row else 0.0, now)
        db.execute("INSERT OR REPLACE INTO turns VALUES (?, ?, ?)", (queue, key, following))
        permits.append(permit)
    return permits


def refund(db: Db, queue: str, limit: RateLimit, key: str, permits: int) -> None:
    db.execute(
        "UPDATE turns SET next = next - ? WHERE queue = ? AND key = ?", (limit.spacing * permits, queue, key)
    )
