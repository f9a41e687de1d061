"""The SQL of partitions that are assigned and revoked, and of how far each of them is done. Each function runs inside a transaction.

A partition belongs to one member of the group at a time, its owner, and with it all its messages that were read here.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import orjson

from yamchi.clock import Millis
from yamchi.queues.engines.kafka.messages import PENDING
from yamchi.queues.engines.sqlite.retention import drop_logs
from yamchi.queues.engines.sqlite.working import recover
from yamchi.queues.engines.statestore import Db, shift
from yamchi.queues.records import JobRecord

REMEMBERED = 10_000
"""So many messages of each partition are remembered after the group has passed them, to know a repeated id."""

FARTHEST = 100_000
"""A job behind which so many others are done no longer holds them up: the state store answers for it from then on."""

_JOB_OF = "jobs j ON j.queue = m.queue AND j.id = m.id"

# ── Assigned and revoked ──────────────────────────────────────────────────────────────────────────────────────────────


def assign(
    db: Db,
    queue: str,
    owner: str,
    partitions: Sequence[int],
    committed: Mapping[int, int],
    beyond: Mapping[int, Iterable[int]],
) -> None:
    """These partitions are ours: what lies before the committed offset, and what is done beyond it, is done."""
    db.executemany(
        "INSERT OR REPLACE INTO partitions VALUES (?, ?, ?, ?)",
        [(queue, number, committed.get(number, 0), owner) for number in partitions],
    )
    mark_passed(db, queue, committed)
    for partition, offsets in beyond.items():
        done = orjson.dumps(list(offsets)).decode()
        _done_elsewhere(db, queue, partition, "IN (SELECT value FROM json_each(?))", done)
        db.execute(
            "INSERT INTO messages (queue, partition, offset, id, round, done) "
            "SELECT ?, ?, value, '', '', 1 FROM json_each(?) WHERE true ON CONFLICT DO NOTHING",
            (queue, partition, done),
        )


def mark_passed(db: Db, queue: str, committed: Mapping[int, int]) -> None:
    """What the group has passed is over, though this state store may not know how."""
    for partition, offset in committed.items():
        _done_elsewhere(db, queue, partition, "< ?", offset)


def _done_elsewhere(db: Db, queue: str, partition: int, which: str, value: int | str) -> None:
    """Another machine has finished these messages: their jobs are no longer ours to run."""
    rows = db.execute(
        f"SELECT j.seq, j.state FROM messages m JOIN {_JOB_OF} WHERE m.queue = ? AND m.partition = ? "
        f"AND m.offset {which} AND m.done = 0 AND {PENDING}",
        (queue, partition, value),
    ).fetchall()
    db.executemany("DELETE FROM jobs WHERE seq = ?", [(seq,) for seq, _ in rows])
    drop_logs(db, [(seq,) for seq, _ in rows])
    moved = Counter[str]()
    moved.subtract(state for _, state in rows)
    shift(db, queue, moved)
    db.execute(
        f"UPDATE messages SET done = 1 WHERE queue = ? AND partition = ? AND offset {which} AND done = 0",
        (queue, partition, value),
    )


def running(db: Db, queue: str, partitions: Sequence[int]) -> bool:
    """Whether a job of these partitions is being run."""
    row = db.execute(
        "SELECT 1 FROM jobs j JOIN messages m ON +m.queue = j.queue AND m.id = j.id WHERE j.queue = ? "
        f"AND j.state = 'active' AND m.done = 0 AND m.partition IN ({_numbers(partitions)}) LIMIT 1",
        (queue,),
    ).fetchone()
    return row is not None


def give_back(db: Db, queue: str, partitions: Sequence[int]) -> None:
    """What waits is back on Kafka, so that nobody here begins it any more."""
    _give_back(db, [(queue, number) for number in partitions])


def revoke(db: Db, queue: str, owner: str, partitions: Sequence[int], dead_at: Millis) -> None:
    """Somebody else reads these now. What still runs may be adopted by another process here until `dead_at`."""
    leftover = _leftover_owner(owner)
    mine = f"queue = ? AND owner = ? AND partition IN ({_numbers(partitions)})"
    rows = db.execute(f"SELECT partition FROM partitions WHERE {mine}", (queue, owner)).fetchall()
    give_back(db, queue, [number for (number,) in rows])
    db.execute(f"UPDATE partitions SET owner = ? WHERE {mine}", (leftover, queue, owner))
    db.execute("INSERT OR REPLACE INTO owners VALUES (?, ?)", (leftover, dead_at))


def release_dead_owners(db: Db, now: Millis) -> list[tuple[JobRecord, bool]]:
    """Owners that are dead hold nothing: their jobs are wherever Kafka delivers them next.

    First the jobs whose worker died get their verdict, so that one which kills its workers comes to an end; these are
    returned, each with whether it has now failed. What another process here still runs is given back when its lease ends.
    """
    stalled: list[tuple[JobRecord, bool]] = []
    for (owner,) in db.execute("DELETE FROM owners WHERE dead_at < ? RETURNING id", (now,)).fetchall():
        rows = db.execute("SELECT queue, partition FROM partitions WHERE owner = ?", (owner,)).fetchall()
        for queue in {queue for queue, _ in rows}:
            stalled += recover(db, queue, now)[0]
        _give_back(db, rows)
        if until := _run_until(db, rows):
            db.execute("UPDATE partitions SET owner = ? WHERE owner = ?", (_leftover_owner(owner), owner))
            db.execute("INSERT OR REPLACE INTO owners VALUES (?, ?)", (_leftover_owner(owner), until))
        else:
            db.execute("UPDATE partitions SET owner = NULL WHERE owner = ?", (owner,))
    return stalled


def _leftover_owner(owner: str) -> str:
    """Who is left with what a member of the group still ran when it lost its partitions."""
    return f"{owner.removesuffix('-left')}-left"


def _run_until(db: Db, partitions: Sequence[tuple[str, int]]) -> Millis | None:
    """When the last lease on a job of these partitions ends."""
    ends = [
        db.execute(
            "SELECT max(j.lease_until) FROM jobs j JOIN messages m ON +m.queue = j.queue AND m.id = j.id "
            "WHERE j.queue = ? AND j.state = 'active' AND m.done = 0 AND m.partition = ?",
            place,
        ).fetchone()[0]
        for place in partitions
    ]
    return max((end for end in ends if end is not None), default=None)


def any_dead_owner(db: Db, now: Millis) -> bool:
    return db.execute("SELECT 1 FROM owners WHERE dead_at < ?", (now,)).fetchone() is not None


def heartbeat(db: Db, owner: str, dead_at: Millis) -> bool:
    """Show that this owner lives; False if it was taken for dead meanwhile, or is new."""
    known = db.execute("UPDATE owners SET dead_at = ? WHERE id = ?", (dead_at, owner)).rowcount
    if not known:
        db.execute("INSERT INTO owners VALUES (?, ?)", (owner, dead_at))
    return known == 1


def _give_back(db: Db, partitions: Sequence[tuple[str, int]]) -> None:
    moved: dict[str, Counter[str]] = defaultdict(Counter)
    for queue, partition in partitions:
        rows = db.execute(
            f"SELECT j.seq, j.state FROM messages m JOIN {_JOB_OF} WHERE m.queue = ? AND m.partition = ? "
            f"AND m.done = 0 AND j.state IN ('waiting', 'delayed') AND {PENDING}",
            (queue, partition),
        ).fetchall()
        db.executemany(
            "UPDATE jobs SET state = 'sent' WHERE seq = ?",
            [(seq,) for seq, _ in rows],
        )
        moved[queue].subtract(state for _, state in rows)
        moved[queue]["sent"] += len(rows)
    for queue, changes in moved.items():
        shift(db, queue, changes)


# ── What is done ──────────────────────────────────────────────────────────────────────────────────────────────────


def first_undone(db: Db, queue: str, partition: int, since: int, position: int) -> int:
    """The first offset that is not done. What lies before it is marked, so that it is looked at once."""
    row = db.execute(
        f"SELECT m.offset FROM messages m JOIN {_JOB_OF} WHERE m.queue = ? AND m.partition = ? AND m.offset >= ? "
        f"AND m.offset < ? AND m.done = 0 AND {PENDING} ORDER BY m.offset LIMIT 1",
        (queue, partition, since, position),
    ).fetchone()
    reached: int = row[0] if row else position
    upto = reached + 1 if position - reached > FARTHEST else reached
    db.execute(
        "UPDATE messages SET done = 1 WHERE queue = ? AND partition = ? AND offset >= ? AND offset < ? AND done = 0",
        (queue, partition, since, upto),
    )
    return upto


def done_after(db: Db, queue: str, partition: int, floor: int, position: int) -> list[int]:
    """What is done after the first offset that is not."""
    rows = db.execute(
        f"SELECT m.offset FROM messages m LEFT JOIN {_JOB_OF} WHERE m.queue = ? AND m.partition = ? "
        f"AND m.offset > ? AND m.offset < ? AND (m.done = 1 OR j.seq IS NULL OR NOT {PENDING}) ORDER BY m.offset",
        (queue, partition, floor, position),
    ).fetchall()
    return [offset for (offset,) in rows]


def forget(db: Db, queue: str, committed: Mapping[int, int]) -> None:
    for partition, offset in committed.items():
        db.execute(
            "DELETE FROM messages WHERE queue = ? AND partition = ? AND offset < ? AND done = 1",
            (queue, partition, offset - REMEMBERED),
        )


def positions(db: Db, queue: str) -> dict[int, int]:
    """Up to where each partition was read here."""
    return dict(db.execute("SELECT partition, next FROM partitions WHERE queue = ?", (queue,)).fetchall())


def waiting(db: Db, queue: str) -> int:
    row = db.execute("SELECT n FROM counts WHERE queue = ? AND state = 'waiting'", (queue,)).fetchone()
    return row[0] if row else 0


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(str(int(value)) for value in values)
