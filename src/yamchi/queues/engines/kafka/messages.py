"""The state store of Kafka: beside the tables of every state store, which message stands for which job.

`messages` remembers the place of every job that came or went over Kafka until long after its group has passed it. A
message is done when no job is `PENDING` for it: over, gone, or put off for longer than `HOLD`; from then on the state
store answers for the job, and Kafka no longer. So however a job ends, its message is done with it.
"""

from collections.abc import Mapping, Sequence

from yamchi.clock import Millis
from yamchi.queues.engines.sqlite import management
from yamchi.queues.engines.statestore import LETTER_TABLES, Db, among
from yamchi.queues.records import NewJob

HOLD: Millis = 60_000
"""A job put off for no longer than this stays with its message, so that another machine can take it over."""

ON_ITS_WAY, WITHDRAWN = -1, -2
"""In place of a partition: where the message is, is not known yet; its add was given up, and it runs nothing if it comes."""

PENDING = (
    "(j.finished_at IS NULL AND NOT (j.state = 'delayed' AND j.started_at IS NOT NULL "
    f"AND j.run_at > j.started_at + {HOLD}))"
)
"""Whether the job `j` still needs its message."""

TABLES = (
    # done: needs no look at its job to know.
    """CREATE TABLE IF NOT EXISTS messages (
        queue TEXT, partition INTEGER, offset INTEGER, id TEXT NOT NULL, round TEXT NOT NULL, stamp INTEGER,
        done INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (queue, partition, offset)
    ) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS message_by_id ON messages(id)",
    # Who reads a partition into this state store, and up to where.
    """CREATE TABLE IF NOT EXISTS partitions (
        queue TEXT, partition INTEGER, next INTEGER NOT NULL, owner TEXT, PRIMARY KEY (queue, partition)
    ) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS owners (id TEXT PRIMARY KEY, dead_at INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS bulletin (id TEXT NOT NULL, next INTEGER NOT NULL)",  # -2: from the beginning
    "INSERT INTO bulletin SELECT lower(hex(randomblob(8))), -2 WHERE NOT EXISTS (SELECT 1 FROM bulletin)",
    """CREATE TABLE IF NOT EXISTS tombstones (
        queue TEXT, id TEXT, moment INTEGER NOT NULL, PRIMARY KEY (queue, id)
    ) WITHOUT ROWID""",
    *LETTER_TABLES,
)


def prepare(db: Db) -> None:
    for statement in TABLES:
        db.execute(statement)


def retry(db: Db, queue: str, job_ids: Sequence[str], now: Millis) -> list[str]:
    back = management.retry(db, queue, job_ids, now)
    detach(db, queue, back)
    return back


def replay(db: Db, queue: str, jobs: Mapping[str, NewJob], now: Millis) -> list[str]:
    replayed = management.replay(db, queue, jobs, now)
    detach(db, queue, [jobs[letter_id].id for letter_id in replayed])
    return replayed


def detach(db: Db, queue: str, job_ids: Sequence[str]) -> None:
    """A job put back by hand has nothing to do with the message it once came by."""
    db.execute(
        "UPDATE messages SET done = 1 WHERE +queue = ? AND id IN (SELECT value FROM json_each(?))",
        (queue, among(job_ids)),
    )
