"""The SQL of settling: stores the verdicts on claimed jobs. Each function runs inside a transaction.

Cost of n verdicts: one statement for all that completed, one for each of the others, one that trims.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, assert_never

import orjson

from yamchi.clock import Millis
from yamchi.queues.engines.base import Event
from yamchi.queues.engines.sqlite.retention import drop_logs, forget, trim
from yamchi.queues.engines.sqlite.rows import BATCH, HELD, each_or_all, shift
from yamchi.queues.records import (
    FINISHED,
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

_FREE = "token = NULL, lease_until = NULL"
# The jobs of one claim share a token, so that one statement settles all of them: ?1 is {"<seq>": <result>, …}.
_DONE = (
    "UPDATE jobs SET state = 'completed', finished_at = ?3, result = CAST(done.value AS BLOB), "
    f"failed_reason = NULL, {_FREE} FROM json_each(?1) AS done "
    "WHERE seq = CAST(done.key AS INTEGER) AND token = ?2 AND state = 'active'"
)
_DROP = f"DELETE FROM jobs {HELD}"
_END = f"UPDATE jobs SET state = ?, finished_at = ?, failed_reason = ?, stacktrace = ?, {_FREE} {HELD}"
# A job that somebody asked to stop does not go back to the queue, whatever its verdict.
_BACK = (
    "UPDATE jobs SET state = iif(cancelling, 'cancelled', iif(?1 > ?2, 'delayed', 'waiting')), "
    "finished_at = iif(cancelling, ?2, NULL), run_at = ?1, attempts_made = attempts_made - ?3, slotted = ?4, "
    f"failed_reason = coalesce(?5, failed_reason), stacktrace = coalesce(?6, stacktrace), {_FREE} "
    "WHERE seq = ?7 AND token = ?8 AND state = 'active' RETURNING state"
)


@dataclass(slots=True)
class Settlement:
    """The result of a batch of verdicts."""

    queue: str
    settled: list[str] = field(default_factory=list)
    ended: list[tuple[Ending, JobRecord, bytes | None]] = field(default_factory=list)
    woken: bool = False

    def events(self) -> Iterator[Event]:
        """The events of these verdicts. Lazy, since they are needed only if somebody listens."""
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
        gone = drop_held(db, [verdict.claim for verdict in dropped])
        mine += [verdict for verdict, is_mine in zip(dropped, gone, strict=True) if is_mine]
    outcome.settled += [verdict.claim.job.id for verdict in mine]
    outcome.ended += [("completed", verdict.claim.job, verdict.result) for verdict in mine]


def drop_held(db: Db, claims: Sequence[Claim]) -> list[bool]:
    """Remove jobs with their logs; for each, whether it was still held."""
    mine = each_or_all(db, _DROP, [(held.key, held.token) for held in claims])
    drop_logs(db, [(held.key,) for held, is_mine in zip(claims, mine, strict=True) if is_mine])
    return mine


def _complete(db: Db, token: str, verdicts: list[Completed], now: Millis) -> list[Completed]:
    """The verdicts whose claims still held their jobs. Nearly always all of them; else they are tried one by one."""
    results = {verdict.claim.key: verdict.result and verdict.result.decode() for verdict in verdicts}
    db.execute("SAVEPOINT together")
    as_json = orjson.dumps(results, option=orjson.OPT_NON_STR_KEYS).decode()
    settled = db.execute(_DONE, (as_json, token, now)).rowcount
    if settled != len(verdicts):
        db.execute("ROLLBACK TO together")
    db.execute("RELEASE together")
    if settled == len(verdicts):
        return verdicts
    if len(verdicts) == 1:
        return []
    return [verdict for verdict in verdicts if _complete(db, token, [verdict], now)]


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
    """Drop old finished jobs, beyond the number in the options of the last verdict whose job is kept."""
    for state in FINISHED:
        if moved[state]:
            trim(db, queue, state, last_kept(verdicts, state), BATCH)
