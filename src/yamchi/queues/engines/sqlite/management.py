"""The SQL of management: look at jobs, change them by hand, dead letters, workers, pauses."""

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from yamchi.clock import Millis
from yamchi.queues.engines.base import KEPT_PERMITS, LetterPage, Minute, Page, WorkerInfo
from yamchi.queues.engines.sqlite.adding import add
from yamchi.queues.engines.sqlite.retention import drop_finished, drop_logs, forget, trim
from yamchi.queues.engines.sqlite.rows import BATCH, COLUMNS, record, shift
from yamchi.queues.options import JobOptions
from yamchi.queues.records import FINISHED, STATES, Claim, DeadLetter, JobRecord, NewJob, State, first_kept

Db = sqlite3.Connection

# ── Looking ───────────────────────────────────────────────────────────────────────────────────────────────────────


def get(db: Db, queue: str, job_id: str) -> JobRecord | None:
    row = db.execute(f"SELECT {COLUMNS} FROM jobs WHERE queue = ? AND id = ?", (queue, job_id)).fetchone()
    if row is None:
        return None
    job = record(queue, row)
    job.logs = [line for (line,) in db.execute("SELECT line FROM job_logs WHERE seq = ? ORDER BY n", row[:1])]
    return job


_ORDER: Mapping[State | None, str] = {
    None: "seq DESC",
    "waiting": "rank, run_at, seq",
    "delayed": "run_at, seq",
    "active": "lease_until, seq",
    "completed": "finished_at DESC, seq DESC",
    "failed": "finished_at DESC, seq DESC",
    "cancelled": "finished_at DESC, seq DESC",
    "expired": "finished_at DESC, seq DESC",
}


def page(db: Db, queue: str, state: State | None, search: str, offset: int, limit: int) -> Page:
    where, values = "queue = ?", [queue]
    if state is not None:
        # A literal, not a parameter, so that SQLite can use the index of this state.
        where += f" AND state = '{state}'" + (" AND finished_at IS NOT NULL" if state in FINISHED else "")
    if search:
        where += " AND (id = ? OR name = ? OR instr(CAST(payload AS TEXT), ?) OR instr(id, ?))"
        values += [search] * 4
    rows = db.execute(
        f"SELECT {COLUMNS} FROM jobs WHERE {where} ORDER BY {_ORDER[state]} LIMIT ? OFFSET ?",
        (*values, limit, offset),
    ).fetchall()
    total = _total(db, queue, state, where, values, search)
    return Page([record(queue, row) for row in rows], total)


def _total(db: Db, queue: str, state: State | None, where: str, values: list[str], search: str) -> int:
    if search:
        return int(db.execute(f"SELECT count(*) FROM jobs WHERE {where}", values).fetchone()[0])
    kept = counts(db, queue)
    return kept[state] if state else sum(kept.values())


def counts(db: Db, queue: str) -> dict[State, int]:
    kept = dict(db.execute("SELECT state, n FROM counts WHERE queue = ?", (queue,)).fetchall())
    return {state: kept.get(state, 0) for state in STATES}


def history(db: Db, queue: str, since: Millis) -> list[Minute]:
    rows = db.execute(
        "SELECT minute, completed, failed FROM minutes WHERE queue = ? AND minute >= ? ORDER BY minute",
        (queue, since),
    )
    return [Minute(*row) for row in rows]


def queues(db: Db) -> list[str]:
    return [queue for (queue,) in db.execute("SELECT DISTINCT queue FROM counts ORDER BY queue")]


def paused(db: Db, queue: str) -> bool:
    return db.execute("SELECT 1 FROM paused WHERE queue = ?", (queue,)).fetchone() is not None


def cancelled(db: Db, queue: str) -> list[str]:
    rows = db.execute("SELECT id FROM jobs WHERE queue = ? AND state = 'active' AND cancelling", (queue,))
    return [job_id for (job_id,) in rows]


def workers(db: Db, since: Millis) -> list[WorkerInfo]:
    rows = db.execute("SELECT info FROM workers WHERE seen_at >= ? ORDER BY id", (since,))
    return [_worker(orjson.loads(info)) for (info,) in rows]


def _worker(info: dict[str, Any]) -> WorkerInfo:
    return WorkerInfo(**{**info, "queues": tuple(info["queues"]), "running": tuple(info["running"])})


# ── Changing ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _locate(
    db: Db, queue: str, job_ids: Sequence[str], states: Sequence[State]
) -> list[tuple[int, str, State]]:
    marks = ", ".join(f"'{state}'" for state in states)
    return db.execute(
        f"SELECT seq, id, state FROM jobs WHERE queue = ? AND state IN ({marks}) "
        "AND id IN (SELECT value FROM json_each(?))",
        (queue, orjson.dumps(list(job_ids)).decode()),
    ).fetchall()


def _move(
    db: Db, queue: str, found: Sequence[tuple[int, str, State]], to: State, assignments: str, *values: Any
) -> list[str]:
    """Set the state and further columns of these jobs, and change the counts."""
    statement = f"UPDATE jobs SET state = '{to}', {assignments} WHERE seq = ?"
    db.executemany(statement, [(*values, seq) for seq, _, _ in found])
    changes: Counter[State] = Counter({to: len(found)})
    changes.subtract(state for _, _, state in found)
    shift(db, queue, changes)
    return [job_id for _, job_id, _ in found]


def remove(db: Db, queue: str, job_ids: Sequence[str]) -> list[str]:
    found = _locate(db, queue, job_ids, [state for state in STATES if state != "active"])
    seqs = [(seq,) for seq, _, _ in found]
    forget(db, seqs)
    changes: Counter[State] = Counter()
    changes.subtract(state for _, _, state in found)
    shift(db, queue, changes)
    return [job_id for _, job_id, _ in found]


def cancel(db: Db, queue: str, job_ids: Sequence[str], now: Millis) -> dict[str, State]:
    found = _locate(db, queue, job_ids, ("waiting", "delayed", "active"))
    running = [row for row in found if row[2] == "active"]
    pending = [row for row in found if row[2] != "active"]
    ended = _move(db, queue, pending, "cancelled", "finished_at = ?", now)
    if pending:
        _keep_cancelled(db, queue, [(seq,) for seq, _, _ in pending])
    db.executemany("UPDATE jobs SET cancelling = 1 WHERE seq = ?", [(seq,) for seq, _, _ in running])
    outcome: dict[str, State] = dict.fromkeys(ended, "cancelled")
    return outcome | {job_id: "active" for _, job_id, _ in running}


def _keep_cancelled(db: Db, queue: str, seqs: Sequence[tuple[int]]) -> None:
    given = orjson.dumps([seq for (seq,) in seqs]).decode()
    rows = db.execute("SELECT seq, options FROM jobs WHERE seq IN (SELECT value FROM json_each(?))", (given,))
    by_seq = {seq: JobOptions.decode(options) for seq, options in rows}
    gone = [(seq,) for (seq,) in seqs if not by_seq[seq].keep("cancelled")]
    forget(db, gone)
    shift(db, queue, {"cancelled": -len(gone)})
    if keep := first_kept((by_seq[seq] for (seq,) in reversed(seqs)), "cancelled"):
        trim(db, queue, "cancelled", keep, max(BATCH, len(seqs)))


def promote(db: Db, queue: str, job_ids: Sequence[str], now: Millis) -> list[str]:
    return _move(db, queue, _locate(db, queue, job_ids, ("delayed",)), "waiting", "run_at = ?", now)


_FRESH = (
    "run_at = ?, attempts_made = 0, finished_at = NULL, failed_reason = NULL, stacktrace = NULL, result = NULL, "
    "progress = NULL, cancelling = 0, slotted = 0"
)


def retry(db: Db, queue: str, job_ids: Sequence[str], now: Millis) -> list[str]:
    back = _move(db, queue, _locate(db, queue, job_ids, FINISHED), "waiting", _FRESH, now)
    db.executemany(
        "DELETE FROM dead_letters WHERE queue = ? AND id = ?", [(queue, job_id) for job_id in back]
    )
    return back


def update(db: Db, queue: str, job_id: str, payload: bytes) -> bool:
    changed = db.execute(
        "UPDATE jobs SET payload = ? WHERE queue = ? AND id = ? AND state <> 'active'",
        (payload, queue, job_id),
    )
    return changed.rowcount == 1


def progress(db: Db, held: Claim, value: bytes) -> bool:
    mine = "WHERE seq = ? AND token = ? AND state = 'active'"
    return db.execute(f"UPDATE jobs SET progress = ? {mine}", (value, held.key, held.token)).rowcount == 1


def log(db: Db, queue: str, job_id: str, lines: Sequence[str]) -> None:
    row = db.execute("SELECT seq FROM jobs WHERE queue = ? AND id = ?", (queue, job_id)).fetchone()
    if row is None:
        return
    (last,) = db.execute("SELECT coalesce(max(n), 0) FROM job_logs WHERE seq = ?", row).fetchone()
    db.executemany(
        "INSERT INTO job_logs VALUES (?, ?, ?)",
        [(row[0], last + 1 + i, line) for i, line in enumerate(lines)],
    )


def clean(db: Db, queue: str, state: State, before: Millis, limit: int) -> int:
    if state in FINISHED:
        return drop_finished(db, queue, state, limit, before)
    rows = db.execute(
        f"DELETE FROM jobs WHERE seq IN (SELECT seq FROM jobs WHERE queue = ? AND state = '{state}' "
        "AND created_at <= ? ORDER BY seq LIMIT ?) RETURNING seq",
        (queue, before, limit),
    ).fetchall()
    drop_logs(db, rows)
    shift(db, queue, {state: -len(rows)})
    return len(rows)


def set_paused(db: Db, queue: str, is_paused: bool) -> None:
    statement = (
        "INSERT OR IGNORE INTO paused VALUES (?)" if is_paused else "DELETE FROM paused WHERE queue = ?"
    )
    db.execute(statement, (queue,))


def note_pause(db: Db, queue: str, is_paused: bool) -> None:
    set_paused(db, queue, is_paused)
    db.execute("INSERT OR REPLACE INTO noted_pauses VALUES (?, ?)", (queue, is_paused))


def noted_pauses(db: Db) -> dict[str, bool]:
    return {queue: bool(is_paused) for queue, is_paused in db.execute("SELECT * FROM noted_pauses")}


def forget_pause(db: Db, queue: str, is_paused: bool) -> None:
    db.execute("DELETE FROM noted_pauses WHERE queue = ? AND is_paused = ?", (queue, is_paused))


def copy_pause(db: Db, queue: str, is_paused: bool) -> None:
    if queue not in noted_pauses(db):
        set_paused(db, queue, is_paused)


def heartbeat(db: Db, worker: WorkerInfo | str, forget_before: Millis) -> None:
    if isinstance(worker, str):
        db.execute("DELETE FROM workers WHERE id = ?", (worker,))
        return
    db.execute(
        "INSERT OR REPLACE INTO workers VALUES (?, ?, ?)", (worker.id, worker.seen_at, orjson.dumps(worker))
    )
    db.execute("DELETE FROM workers WHERE seen_at < ?", (forget_before,))
    db.execute("DELETE FROM turns WHERE next < ?", (worker.seen_at - KEPT_PERMITS,))


# ── Dead letters ──────────────────────────────────────────────────────────────────────────────────────────────────

_LETTER = "id, queue, name, body, error, failed_at"


def letters(db: Db, queue: str, search: str, offset: int, limit: int) -> LetterPage:
    where, values = "queue = ?", [queue]
    if search:
        where += " AND (instr(id, ?) OR instr(error, ?) OR instr(CAST(body AS TEXT), ?))"
        values += [search] * 3
    rows = db.execute(
        f"SELECT {_LETTER} FROM dead_letters WHERE {where} ORDER BY failed_at DESC, id LIMIT ? OFFSET ?",
        (*values, limit, offset),
    ).fetchall()
    (total,) = db.execute(f"SELECT count(*) FROM dead_letters WHERE {where}", values).fetchone()
    return LetterPage([DeadLetter(*row) for row in rows], total)


def letter(db: Db, queue: str, letter_id: str) -> DeadLetter | None:
    row = db.execute(
        f"SELECT {_LETTER} FROM dead_letters WHERE queue = ? AND id = ?", (queue, letter_id)
    ).fetchone()
    return DeadLetter(*row) if row else None


def replay(db: Db, queue: str, jobs: Mapping[str, NewJob], now: Millis) -> list[str]:
    replayed = []
    for letter_id, job in jobs.items():
        if db.execute("DELETE FROM dead_letters WHERE queue = ? AND id = ?", (queue, letter_id)).rowcount:
            _clear_finished(db, queue, job.id)
            add(db, queue, [job], now)
            replayed.append(letter_id)
    return replayed


def _clear_finished(db: Db, queue: str, job_id: str) -> None:
    if _locate(db, queue, [job_id], FINISHED):
        remove(db, queue, [job_id])


def purge(db: Db, queue: str, letter_ids: Sequence[str] | None) -> int:
    if letter_ids is None:
        return db.execute("DELETE FROM dead_letters WHERE queue = ?", (queue,)).rowcount
    statement = "DELETE FROM dead_letters WHERE queue = ? AND id = ?"
    return sum(db.execute(statement, (queue, letter_id)).rowcount for letter_id in letter_ids)
