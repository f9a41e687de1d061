"""The SQL of what goes out to Kafka: jobs that are due. Each function runs inside a transaction.

A job is written down as `sent`, with a note whose place is not yet known, before it is produced. So an id is given
out once, and what a crash cuts short is produced again: the message carries the same id and round, and the second
of two is dropped where it arrives.
"""

from collections.abc import Mapping, Sequence

from yamchi.clock import Millis
from yamchi.queues.engines.kafka.envelope import AGAIN, Message
from yamchi.queues.engines.kafka.messages import ON_ITS_WAY, WITHDRAWN
from yamchi.queues.engines.sqlite import adding, management, working
from yamchi.queues.engines.sqlite.rows import CLAIMED
from yamchi.queues.engines.sqlite.settling import Settlement, settle
from yamchi.queues.engines.statestore import Db, among, shift
from yamchi.queues.records import DeadLetter, Failed, NewJob

WITHDRAWN_KEPT: Millis = 7 * 24 * 3_600_000
"""How long a message may take to arrive after its job was withdrawn; brokers keep messages as long, by default."""

Place = tuple[int, int, Millis]
"""Partition, offset and Kafka's timestamp of a message."""


def add(db: Db, queue: str, jobs: Sequence[NewJob], now: Millis, round: str) -> list[bool]:
    """Write new jobs down; those that are due go to Kafka before anybody may claim them.

    `round` is this call's own: an id may be used again once its job is no longer kept, and is another job then.
    """
    created = adding.add(db, queue, jobs, now)
    due = [job.id for job, is_new in zip(jobs, created, strict=True) if is_new and (job.run_at or now) <= now]
    _mark_sent(db, queue, due, round)
    return created


def fire(db: Db, schedule: str, moment: Millis, queue: str, job: NewJob, now: Millis, round: str) -> bool:
    """Write the job of a schedule down, unless it has fired here; as one that was added, it goes to Kafka first."""
    fired = adding.fire(db, schedule, moment, queue, job, now)
    if fired and (job.run_at or now) <= now:
        _mark_sent(db, queue, [job.id], round)
    return fired


def _mark_sent(db: Db, queue: str, job_ids: Sequence[str], round: str) -> None:
    least = _least_offset(db, queue, ON_ITS_WAY)
    notes = [(queue, least - n, job_id, round) for n, job_id in enumerate(job_ids, 1)]
    db.executemany(
        "INSERT INTO messages (queue, partition, offset, id, round) VALUES (?, -1, ?, ?, ?)", notes
    )
    db.executemany(
        "UPDATE jobs SET state = 'sent' WHERE queue = ? AND id = ?", [(queue, job_id) for job_id in job_ids]
    )
    shift(db, queue, {"waiting": -len(notes), "sent": len(notes)})


def _least_offset(db: Db, queue: str, partition: int) -> int:
    """A note without a place has a number of its own: that of its job may be another's while the note is still there."""
    taken = "SELECT ifnull(min(offset), 0) FROM messages WHERE queue = ? AND partition = ?"
    (least,) = db.execute(taken, (queue, partition)).fetchone()
    return int(least)


def confirm(db: Db, queue: str, places: Mapping[tuple[str, str], Place]) -> None:
    """Kafka has these jobs. A message that arrived before this was written has its place already."""
    db.executemany(
        "UPDATE OR IGNORE messages SET partition = ?, offset = ?, stamp = ? "
        "WHERE +queue = ? AND id = ? AND round = ? AND partition = -1",
        [(*place, queue, job_id, round) for (job_id, round), place in places.items()],
    )


def withdraw(db: Db, queue: str, job_ids: Sequence[str], round: str, now: Millis) -> None:
    """Kafka has not said that it has these jobs: forget them, so that their ids are free to be tried again.

    It may have them all the same. Their notes are kept apart, so that a message that does arrive runs nothing.
    """
    rows = db.execute(
        "DELETE FROM jobs WHERE queue = ?1 AND state = 'sent' AND id IN (SELECT value FROM json_each(?2)) "
        "AND EXISTS (SELECT 1 FROM messages m WHERE +m.queue = ?1 AND m.id = jobs.id AND m.round = ?3 "
        "AND m.partition = -1) RETURNING id",
        (queue, among(job_ids), round),
    ).fetchall()
    least = _least_offset(db, queue, WITHDRAWN)
    db.executemany(
        "UPDATE messages SET partition = ?, offset = ?, done = 1, stamp = ? "
        "WHERE +queue = ? AND id = ? AND round = ? AND partition = -1",
        [(WITHDRAWN, least - n, now, queue, job_id, round) for n, (job_id,) in enumerate(rows, 1)],
    )
    shift(db, queue, {"sent": -len(rows)})


def forget_withdrawn(db: Db, queues: Sequence[str], now: Millis) -> None:
    """What was withdrawn so long ago that no message of it will come."""
    db.executemany(
        "DELETE FROM messages WHERE queue = ? AND partition = ? AND stamp < ?",
        [(queue, WITHDRAWN, now - WITHDRAWN_KEPT) for queue in queues],
    )


def refuse(db: Db, queue: str, job_ids: Sequence[str], error: str, token: str, now: Millis) -> Settlement:
    """Kafka will never take these jobs: they have failed, as if they had been claimed for that."""
    rows = db.execute(
        f"SELECT {CLAIMED} FROM jobs WHERE queue = ? AND state = 'sent' AND id IN (SELECT value FROM json_each(?))",
        (queue, among(job_ids)),
    ).fetchall()
    shift(db, queue, {"sent": -len(rows), "active": len(rows)})
    claims = working.hold(db, queue, rows, 0, "", token, now)
    db.executemany(
        "DELETE FROM messages WHERE +queue = ? AND id = ? AND partition = -1",
        [(queue, held.job.id) for held in claims],
    )
    failed = [Failed(held, error, DeadLetter.of_job(held.job, error, now)) for held in claims]
    return settle(db, queue, failed, now)


_UNHELD = (
    "NOT EXISTS (SELECT 1 FROM messages m WHERE +m.queue = jobs.queue AND m.id = jobs.id AND m.done = 0)"
)


def send_on(db: Db, queue: str, due_before: Millis, limit: int) -> list[Message]:
    """Jobs that are due and that no message stands for, if nobody here has taken them: to Kafka with them."""
    if management.paused(db, queue):
        return []
    woken = db.execute(
        "UPDATE jobs SET state = 'waiting' WHERE seq IN (SELECT seq FROM jobs WHERE queue = ? AND state = 'delayed' "
        f"AND run_at <= ? AND {_UNHELD} LIMIT ?)",
        (queue, due_before, limit),
    ).rowcount
    shift(db, queue, {"delayed": -woken, "waiting": woken})
    rows = db.execute(
        f"SELECT id FROM jobs WHERE queue = ? AND state = 'waiting' AND run_at <= ? AND {_UNHELD} LIMIT ?",
        (queue, due_before, limit),
    ).fetchall()
    job_ids = [job_id for (job_id,) in rows]
    _mark_sent(db, queue, job_ids, f"{AGAIN}{due_before}")
    return _outgoing(db, queue, job_ids)


def any_to_send_on(db: Db, queue: str, due_before: Millis) -> bool:
    row = db.execute(
        f"SELECT 1 FROM jobs WHERE queue = ?1 AND state = 'waiting' AND run_at <= ?2 AND {_UNHELD} UNION ALL "
        f"SELECT 1 FROM jobs WHERE queue = ?1 AND state = 'delayed' AND run_at <= ?2 AND {_UNHELD} LIMIT 1",
        (queue, due_before),
    ).fetchone()
    return row is not None


def unconfirmed(db: Db, queue: str, sent_before: Millis, limit: int) -> list[Message]:
    """Jobs whose way to Kafka was cut short by a crash or an outage."""
    rows = db.execute(
        "SELECT m.id FROM messages m JOIN jobs j ON j.queue = m.queue AND j.id = m.id WHERE m.queue = ? "
        "AND m.partition = -1 AND m.done = 0 AND j.state = 'sent' AND max(j.run_at, j.created_at) < ? LIMIT ?",
        (queue, sent_before, limit),
    ).fetchall()
    return _outgoing(db, queue, [job_id for (job_id,) in rows])


def _outgoing(db: Db, queue: str, job_ids: Sequence[str]) -> list[Message]:
    rows = db.execute(
        "SELECT j.id, j.name, j.payload, j.options, -j.rank, j.expires_at, j.attempts_made, m.round "
        "FROM jobs j JOIN messages m ON +m.queue = j.queue AND m.id = j.id AND m.partition = -1 AND m.done = 0 "
        "WHERE j.queue = ? AND j.id IN (SELECT value FROM json_each(?)) ORDER BY j.run_at, j.seq",
        (queue, among(job_ids)),
    ).fetchall()
    return [Message(*row) for row in rows]
