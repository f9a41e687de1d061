"""The SQL of what comes in from Kafka: messages become jobs, once each. Each function runs inside a transaction.

A batch goes in with a handful of statements, whatever its size: ids and jobs are handed over as JSON and taken
apart by SQLite, because every row fetched or bound by Python waits for the interpreter, which the handlers need.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from yamchi.clock import Millis
from yamchi.queues.engines.kafka.envelope import AGAIN, Message
from yamchi.queues.engines.kafka.messages import ON_ITS_WAY
from yamchi.queues.engines.statestore import Db, among, shift
from yamchi.queues.records import FINISHED


@dataclass(slots=True)
class Note:
    """What the state store knows of a message."""

    partition: int
    offset: int
    id: str
    round: str
    stamp: Millis | None
    done: int

    def is_of(self, message: Message) -> bool:
        """Whether this is the same message, and not one of a topic that was deleted and made anew."""
        return self.id in ("", message.id) and self.stamp in (None, message.stamp)


def ingest(db: Db, queue: str, owner: str, messages: Sequence[Message], now: Millis) -> None:
    """Take messages in for this owner. A message seen before changes nothing, except whose it is."""
    noted = _noted_at(db, queue, messages)
    held, new = [], []
    for message in messages:
        note = noted.get((message.partition, message.offset))
        if note is None or not note.is_of(message):
            new.append(message)
        elif not note.done:
            held.append(message)
    moved = Counter[str]()
    if held:
        _make_claimable(db, queue, held, now, moved)
    if new:
        _ingest_new(db, queue, new, now, moved)
    shift(db, queue, moved)
    db.executemany(
        "INSERT OR REPLACE INTO partitions VALUES (?, ?, ?, ?)",
        [(queue, partition, last + 1, owner) for partition, _, last in _ranges(messages)],
    )


_NOTES = "SELECT json_group_array(json_array(partition, offset, id, round, stamp, done)) FROM messages"


def _rows(db: Db, statement: str, *values: Any) -> list[Any]:
    """Rows that come as one JSON array."""
    return orjson.loads(db.execute(statement, values).fetchone()[0])  # type: ignore[no-any-return]


def _ranges(messages: Sequence[Message]) -> list[tuple[int, int, int]]:
    """The first and last offset of each partition."""
    offsets: dict[int, list[int]] = defaultdict(list)
    for message in messages:
        offsets[message.partition].append(message.offset)
    return [(partition, min(seen), max(seen)) for partition, seen in offsets.items()]


def _noted_at(db: Db, queue: str, messages: Sequence[Message]) -> dict[tuple[int, int], Note]:
    statement = f"{_NOTES} WHERE queue = ? AND partition = ? AND offset BETWEEN ? AND ?"
    return {
        (row[0], row[1]): Note(*row)
        for part in _ranges(messages)
        for row in _rows(db, statement, queue, *part)
    }


# ── Jobs that are known here ──────────────────────────────────────────────────────────────────────────────────────


def _make_claimable(
    db: Db, queue: str, messages: Sequence[Message], now: Millis, moved: Counter[str]
) -> None:
    """Jobs that were sent from here, or were in other hands, can be claimed here now."""
    ids = among([message.id for message in messages])
    left = len(messages)
    for state, test in (("waiting", "<="), ("delayed", ">")):
        if left:
            # The plus keeps SQLite from walking through all that is sent: ids are the narrower way.
            back = db.execute(
                f"UPDATE jobs SET state = '{state}' WHERE queue = ? AND id IN (SELECT value FROM json_each(?)) "
                f"AND +state = 'sent' AND +run_at {test} ?",
                (queue, ids, now),
            ).rowcount
            moved.update({"sent": -back, state: back})
            left -= back


# ── Jobs that are new here ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Plan:
    """What is to be written for messages that are new here."""

    fresh: list[Message] = field(default_factory=list)
    placed: list[Message] = field(default_factory=list)
    held: list[Message] = field(default_factory=list)
    revived: list[Message] = field(default_factory=list)
    repeated: list[Message] = field(default_factory=list)


def _ingest_new(db: Db, queue: str, messages: Sequence[Message], now: Millis, moved: Counter[str]) -> None:
    ids = among([message.id for message in messages])
    notes: dict[str, list[Note]] = defaultdict(list)
    for row in _rows(db, f"{_NOTES} WHERE +queue = ? AND id IN (SELECT value FROM json_each(?))", queue, ids):
        notes[row[2]].append(Note(*row))
    statement = (
        "SELECT json_group_array(json_array(id, state)) FROM jobs "
        "WHERE queue = ? AND id IN (SELECT value FROM json_each(?))"
    )
    states: dict[str, str] = dict(_rows(db, statement, queue, ids))
    tombs = _tombstones(db, queue, ids)
    plan, before = Plan(), dict(states)
    for message in messages:
        if message.stamp < tombs.get(message.id, 0):
            plan.repeated.append(message)
        else:
            _classify(message, notes, states, plan)
    _write_notes(db, queue, plan)
    _insert(db, queue, plan.fresh, moved)
    _revive(db, queue, plan.revived, before, moved)
    if plan.placed or plan.held:
        _make_claimable(db, queue, plan.placed + plan.held, now, moved)


def _tombstones(db: Db, queue: str, ids: str) -> dict[str, Millis]:
    """When jobs that have not arrived yet were cancelled."""
    if not db.execute("SELECT 1 FROM tombstones LIMIT 1").fetchone():
        return {}
    statement = "SELECT id, moment FROM tombstones WHERE queue = ? AND id IN (SELECT value FROM json_each(?))"
    return dict(db.execute(statement, (queue, ids)).fetchall())


def _classify(message: Message, notes: dict[str, list[Note]], states: dict[str, str], plan: Plan) -> None:
    same = [note for note in notes.get(message.id, ()) if note.round == message.round]
    state = states.get(message.id)
    if any(note.partition == ON_ITS_WAY for note in same):
        plan.placed.append(message)
    elif same:
        plan.repeated.append(message)
    elif state is None:
        plan.fresh.append(message)
    elif state == "sent":
        plan.held.append(message)
    elif state in FINISHED and message.round.startswith(AGAIN):
        plan.revived.append(message)
        states[message.id] = "waiting"
    else:
        plan.repeated.append(message)
    states.setdefault(message.id, "waiting")
    notes[message.id] = [Note(message.partition, message.offset, message.id, message.round, message.stamp, 0)]


def _write_notes(db: Db, queue: str, plan: Plan) -> None:
    db.executemany(
        "UPDATE OR REPLACE messages SET partition = ?, offset = ?, stamp = ? "
        "WHERE +queue = ? AND id = ? AND round = ? AND partition = -1",
        [(m.partition, m.offset, m.stamp, queue, m.id, m.round) for m in plan.placed],
    )
    for messages, done in ((plan.fresh + plan.held + plan.revived, 0), (plan.repeated, 1)):
        if messages:
            rows = [(m.partition, m.offset, m.id, m.round, m.stamp) for m in messages]
            db.execute(
                "INSERT OR REPLACE INTO messages SELECT ?1, json_extract(value, '$[0]'), "
                "json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]'), "
                "json_extract(value, '$[4]'), ?2 FROM json_each(?3)",
                (queue, done, orjson.dumps(rows).decode()),
            )


_JOB = "INSERT INTO jobs (queue, id, name, state, rank, run_at, created_at, expires_at, options, attempts_made, payload) "


def _insert(db: Db, queue: str, messages: Sequence[Message], moved: Counter[str]) -> None:
    texts, rest = [], []
    for m in messages:
        row = [m.id, m.name, -m.priority, m.stamp, m.expires_at, m.options, m.attempts_made]
        try:
            if b"\0" in m.payload:
                raise ValueError("SQLite's JSON ends at a zero byte")
            texts.append([*row, m.payload.decode()])
        except ValueError:
            rest.append([queue, *row, m.payload])
    if texts:
        fields = ", ".join(f"json_extract(value, '$[{n}]')" for n in (3, 3, 4, 5, 6))
        db.execute(
            f"{_JOB} SELECT ?1, json_extract(value, '$[0]'), json_extract(value, '$[1]'), 'waiting', "
            f"json_extract(value, '$[2]'), {fields}, CAST(json_extract(value, '$[7]') AS BLOB) FROM json_each(?2)",
            (queue, orjson.dumps(texts).decode()),
        )
    db.executemany(f"{_JOB} VALUES (?1, ?2, ?3, 'waiting', ?4, ?5, ?5, ?6, ?7, ?8, ?9)", rest)
    moved["waiting"] += len(messages)


def _revive(
    db: Db, queue: str, messages: Sequence[Message], before: dict[str, str], moved: Counter[str]
) -> None:
    """Jobs that ended here, and were put back elsewhere."""
    db.executemany(
        "UPDATE jobs SET state = 'waiting', run_at = ?, attempts_made = ?, payload = ?, finished_at = NULL, "
        "failed_reason = NULL, stacktrace = NULL, result = NULL, progress = NULL, cancelling = 0, slotted = 0 "
        "WHERE queue = ? AND id = ?",
        [(m.stamp, m.attempts_made, m.payload, queue, m.id) for m in messages],
    )
    moved.update({"waiting": len(messages)})
    moved.subtract(before[message.id] for message in messages)
