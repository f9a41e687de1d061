"""The SQL of what comes in from Kafka: messages become jobs, once each, and partitions come and go.

Cost of a batch of n messages: two look-ups and two writes per message, one transaction for all.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from yamchi.clock import Millis
from yamchi.queues.engines.kafka.envelope import Message
from yamchi.queues.engines.kafka.ledger import Db, among, shift
from yamchi.queues.job import FINISHED

REMEMBERED = 10_000
"""So many messages of each partition are remembered after the group has passed them, to know a repeated id."""

ON_ITS_WAY = -1


@dataclass(slots=True)
class Note:
    """What the ledger knows of a message."""

    partition: int
    offset: int
    id: str
    round: str
    stamp: Millis | None
    done: bool

    def is_of(self, message: Message) -> bool:
        """Whether this is the same message, and not one of a topic that was deleted and made anew."""
        return self.id in ("", message.id) and self.stamp in (None, message.stamp)


@dataclass(slots=True)
class Known:
    """What the ledger knows of a batch before it is taken in."""

    by_place: dict[tuple[int, int], Note]
    by_id: dict[str, list[Note]]
    states: dict[str, tuple[str, Millis]]


@dataclass(slots=True)
class Plan:
    """What is to be written for a batch."""

    fresh: list[Message] = field(default_factory=list)
    back: list[Message] = field(default_factory=list)
    revived: list[Message] = field(default_factory=list)
    placed: list[Message] = field(default_factory=list)
    held: list[Message] = field(default_factory=list)
    repeated: list[Message] = field(default_factory=list)


def arrive(db: Db, queue: str, owner: str, messages: Sequence[Message], now: Millis) -> int:
    """Take messages in for this owner; how many jobs came to wait here. A message seen before changes nothing."""
    known = _look_up(db, queue, messages)
    plan = Plan()
    for message in messages:
        _classify(message, known, plan, now)
    _write_notes(db, queue, owner, plan)
    moved = Counter[str]()
    _insert(db, queue, plan.fresh, moved)
    _bring_back(db, queue, plan, known, now, moved)
    shift(db, queue, moved)
    ends = {message.partition: message.offset + 1 for message in messages}
    db.executemany(
        "INSERT OR REPLACE INTO positions VALUES (?, ?, ?)", [(queue, *place) for place in ends.items()]
    )
    return len(plan.fresh) + len(plan.back) + len(plan.revived)


def _look_up(db: Db, queue: str, messages: Sequence[Message]) -> Known:
    ids = among([message.id for message in messages])
    by_id: dict[str, list[Note]] = defaultdict(list)
    fields = "partition, offset, id, round, stamp, done"
    statement = f"SELECT {fields} FROM messages WHERE queue = ? AND id IN (SELECT value FROM json_each(?))"
    for row in db.execute(statement, (queue, ids)):
        by_id[row[2]].append(Note(*row))
    by_place = {}
    offsets = defaultdict(list)
    for message in messages:
        offsets[message.partition].append(message.offset)
    statement = f"SELECT {fields} FROM messages WHERE queue = ? AND partition = ? AND offset BETWEEN ? AND ?"
    for partition, seen in offsets.items():
        for row in db.execute(statement, (queue, partition, min(seen), max(seen))):
            by_place[row[0], row[1]] = Note(*row)
    statement = (
        "SELECT id, state, run_at FROM jobs WHERE queue = ? AND id IN (SELECT value FROM json_each(?))"
    )
    states = {job_id: (state, run_at) for job_id, state, run_at in db.execute(statement, (queue, ids))}
    return Known(by_place, by_id, states)


def _classify(message: Message, known: Known, plan: Plan, now: Millis) -> None:
    note = known.by_place.get((message.partition, message.offset))
    if note and note.is_of(message):
        if not note.done:
            plan.held.append(message)
            _take_back(message, known, plan)
        return
    same = [note for note in known.by_id[message.id] if note.round == message.round]
    if any(note.partition == ON_ITS_WAY for note in same):
        plan.placed.append(message)
        if not same[0].done:
            _take_back(message, known, plan)
    elif same:
        plan.repeated.append(message)
        return
    else:
        _take_new(message, known, plan)
    place = Note(message.partition, message.offset, message.id, message.round, message.stamp, False)
    known.by_id[message.id] = [place]


def _take_new(message: Message, known: Known, plan: Plan) -> None:
    """A message whose id this ledger may know all the same: from another machine, or from before."""
    state, _ = known.states.get(message.id, (None, 0))
    if state is None:
        plan.fresh.append(message)
        known.states[message.id] = ("waiting", 0)
    elif state == "sent":
        plan.held.append(message)
        _take_back(message, known, plan)
    elif state in FINISHED and message.round:
        plan.held.append(message)
        plan.revived.append(message)
    else:
        plan.repeated.append(message)


def _take_back(message: Message, known: Known, plan: Plan) -> None:
    state, run_at = known.states.get(message.id, (None, 0))
    if state == "sent":
        plan.back.append(message)
        known.states[message.id] = ("waiting", run_at)


def _write_notes(db: Db, queue: str, owner: str, plan: Plan) -> None:
    db.executemany(
        "UPDATE OR REPLACE messages SET partition = ?, offset = ?, stamp = ?, owner = ? "
        "WHERE queue = ? AND id = ? AND partition = -1",
        [(m.partition, m.offset, m.stamp, owner, queue, m.id) for m in plan.placed],
    )
    for messages, done in ((plan.fresh, 0), (plan.held, 0), (plan.repeated, 1)):
        db.executemany(
            "INSERT OR REPLACE INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [(queue, m.partition, m.offset, m.id, m.round, m.stamp, owner, done) for m in messages],
        )


def _insert(db: Db, queue: str, messages: Sequence[Message], moved: Counter[str]) -> None:
    db.executemany(
        "INSERT INTO jobs (queue, id, name, state, rank, run_at, created_at, expires_at, options, attempts_made, payload) "
        "VALUES (?, ?, ?, 'waiting', ?, ?, ?, ?, ?, ?, ?)",
        [
            (queue, m.id, m.name, -m.priority, m.stamp, m.stamp, m.expires_at, m.options, m.attempts_made, m.payload)
            for m in messages
        ],
    )  # fmt: skip
    moved["waiting"] += len(messages)


def _bring_back(db: Db, queue: str, plan: Plan, known: Known, now: Millis, moved: Counter[str]) -> None:
    db.executemany(
        "UPDATE jobs SET state = iif(run_at > ?, 'delayed', 'waiting') WHERE queue = ? AND id = ?",
        [(now, queue, message.id) for message in plan.back],
    )
    later = sum(known.states[message.id][1] > now for message in plan.back)
    moved.update({"sent": -len(plan.back), "delayed": later, "waiting": len(plan.back) - later})
    db.executemany(
        "UPDATE jobs SET state = 'waiting', run_at = ?, attempts_made = ?, payload = ?, finished_at = NULL, "
        "failed_reason = NULL, stacktrace = NULL, result = NULL, progress = NULL, cancelling = 0, slotted = 0 "
        "WHERE queue = ? AND id = ?",
        [(m.stamp, m.attempts_made, m.payload, queue, m.id) for m in plan.revived],
    )
    moved.update({"waiting": len(plan.revived)})
    moved.subtract(known.states[message.id][0] for message in plan.revived)


# ── Partitions come and go ────────────────────────────────────────────────────────────────────────────────────────


def begin(db: Db, queue: str, committed: Mapping[int, int], beyond: Mapping[int, Iterable[int]]) -> None:
    """These partitions are ours from here on: what lies before, and what is done beyond it, is done elsewhere."""
    pass_by(db, queue, committed)
    for partition, offset in committed.items():
        db.execute(
            "UPDATE messages SET done = 1 WHERE queue = ? AND partition = ? AND offset < ? AND done = 0",
            (queue, partition, offset),
        )
    db.executemany(
        "INSERT INTO messages (queue, partition, offset, id, round, done) VALUES (?, ?, ?, '', '', 1) "
        "ON CONFLICT DO NOTHING",
        [(queue, partition, offset) for partition, offsets in beyond.items() for offset in offsets],
    )


def pass_by(db: Db, queue: str, committed: Mapping[int, int]) -> None:
    """Jobs that were sent from here and that the group has passed since are over, on whatever machine ran them."""
    for partition, offset in committed.items():
        gone = db.execute(
            "DELETE FROM jobs WHERE queue = ?1 AND state = 'sent' AND id IN (SELECT id FROM messages "
            "WHERE queue = ?1 AND partition = ?2 AND offset < ?3 AND done = 0)",
            (queue, partition, offset),
        ).rowcount
        shift(db, queue, {"sent": -gone})


def running(db: Db, queue: str, owner: str, partitions: Sequence[int]) -> bool:
    """Whether a job of these partitions is being run."""
    row = db.execute(
        "SELECT 1 FROM jobs j JOIN messages m ON m.queue = j.queue AND m.id = j.id WHERE j.queue = ? "
        "AND j.state = 'active' AND m.owner = ? AND m.done = 0 "
        f"AND m.partition IN ({_numbers(partitions)}) LIMIT 1",
        (queue, owner),
    ).fetchone()
    return row is not None


def let_go(db: Db, queue: str, owner: str, partitions: Sequence[int], dead_at: Millis) -> None:
    """These partitions are somebody else's now. What waits is back on Kafka; what runs may be adopted until `dead_at`."""
    heir = f"{owner}-left"
    db.execute(
        f"UPDATE messages SET owner = ? WHERE queue = ? AND owner = ? AND done = 0 AND partition IN ({_numbers(partitions)})",
        (heir, queue, owner),
    )
    _to_kafka(db, heir, ("waiting", "delayed"))
    db.execute("INSERT OR REPLACE INTO owners VALUES (?, ?)", (heir, dead_at))


def bury(db: Db, now: Millis) -> None:
    """Owners that are dead hold nothing: their jobs are wherever Kafka delivers them next."""
    dead = db.execute("DELETE FROM owners WHERE dead_at < ? RETURNING id", (now,)).fetchall()
    for (owner,) in dead:
        _to_kafka(db, owner, ("waiting", "delayed", "active"))
        db.execute("UPDATE messages SET owner = NULL WHERE owner = ?", (owner,))


def any_dead(db: Db, now: Millis) -> bool:
    return db.execute("SELECT 1 FROM owners WHERE dead_at < ?", (now,)).fetchone() is not None


def beat(db: Db, owner: str, dead_at: Millis) -> None:
    db.execute("INSERT OR REPLACE INTO owners VALUES (?, ?)", (owner, dead_at))


def _to_kafka(db: Db, owner: str, states: Sequence[str]) -> None:
    marks = ", ".join(f"'{state}'" for state in states)
    rows = db.execute(
        "SELECT j.seq, j.queue, j.state FROM messages m JOIN jobs j ON j.queue = m.queue AND j.id = m.id "
        f"WHERE m.owner = ? AND m.done = 0 AND j.state IN ({marks})",
        (owner,),
    ).fetchall()
    db.executemany(
        "UPDATE jobs SET state = 'sent', token = NULL, lease_until = NULL WHERE seq = ?",
        [(seq,) for seq, _, _ in rows],
    )
    moved: dict[str, Counter[str]] = defaultdict(Counter)
    for _, queue, state in rows:
        moved[queue].update({state: -1, "sent": 1})
    for queue, changes in moved.items():
        shift(db, queue, changes)


# ── What is done ──────────────────────────────────────────────────────────────────────────────────────────────────


def done(db: Db, queue: str, partition: int, since: int, position: int) -> tuple[int, list[int]]:
    """How far everything is done, and what is done beyond that."""
    row = db.execute(
        "SELECT offset FROM messages WHERE queue = ? AND partition = ? AND offset >= ? AND offset < ? AND done = 0 "
        "ORDER BY offset LIMIT 1",
        (queue, partition, since, position),
    ).fetchone()
    if row is None:
        return position, []
    beyond = db.execute(
        "SELECT offset FROM messages WHERE queue = ? AND partition = ? AND offset > ? AND offset < ? AND done = 1",
        (queue, partition, row[0], position),
    ).fetchall()
    return row[0], [offset for (offset,) in beyond]


def forget(db: Db, queue: str, committed: Mapping[int, int]) -> None:
    for partition, offset in committed.items():
        db.execute(
            "DELETE FROM messages WHERE queue = ? AND partition = ? AND offset < ? AND done = 1",
            (queue, partition, offset - REMEMBERED),
        )


def positions(db: Db, queue: str) -> dict[int, int]:
    return dict(db.execute("SELECT partition, next FROM positions WHERE queue = ?", (queue,)).fetchall())


def waiting(db: Db, queue: str) -> int:
    row = db.execute("SELECT n FROM counts WHERE queue = ? AND state = 'waiting'", (queue,)).fetchone()
    return row[0] if row else 0


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(str(int(value)) for value in values)
