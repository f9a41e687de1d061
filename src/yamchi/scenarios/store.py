"""Runs and their steps in the database. Every function works in a transaction of the caller.

Whoever changes a run has locked its row (on SQLite the whole file), so that a timer, an event and a stop that come at the
same moment are done one after the other.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    asc,
    desc,
    func,
    insert,
    select,
    text,
    union,
    update,
)

from yamchi.clock import Millis
from yamchi.notifications.schemas.event import Event
from yamchi.scenarios.definition import Definition, Step
from yamchi.scenarios.flow import Armed, Heard, Run
from yamchi.scenarios.moves import StepChange
from yamchi.scenarios.tables import scenario_events, scenario_runs, scenario_steps

LONGEST_KEY = 255
NAMESPACE = uuid5(NAMESPACE_URL, "yamchi:scenarios")

_STEP_ID = re.compile(r"([0-9a-f]{32})\.([^.]+)\.([0-9]{1,9})")

runs, steps = scenario_runs, scenario_steps


@dataclass(frozen=True, slots=True)
class StepId:
    """A step of a run under one arming; as text it is its job's id."""

    run_id: str
    step: str
    arming: int

    def __str__(self) -> str:
        return f"{self.run_id}.{self.step}.{self.arming}"

    @classmethod
    def read(cls, text: str) -> "StepId | None":
        """None if it is no such id, but one that another program gave, however it looks."""
        found = _STEP_ID.fullmatch(text)
        return None if found is None else cls(found[1], found[2], int(found[3]))


@dataclass(frozen=True, slots=True)
class RunStep:
    """A step of a run, as the job that is named by its id has found it."""

    id: StepId
    definition: Definition
    step: Step
    run: Run


def run_id_of(scenario: str, key: str, event_number: int) -> str:
    """By the number of the event that starts it, which is never given twice: generations begin anew when runs are forgotten."""
    return uuid5(NAMESPACE, f"{scenario}\x1f{key}\x1fevent {event_number}").hex


# ── Locking and reading ───────────────────────────────────────────────────────────────────────────────────────────


def lock_keys(connection: Connection, keys: Iterable[tuple[str, str]]) -> None:
    """Let nobody else start a run or write down an event for these keys until this transaction ends."""
    _lock(connection, (f"{scenario}\x1f{key}" for scenario, key in keys))


def lock_entities(connection: Connection, entities: Iterable[tuple[str, str]]) -> None:
    """Let nobody else start a run about these, or look for runs of theirs whose dates have changed, until this transaction ends.

    Who starts a run could not see a change that is not committed, nor the one who changes an entity see that run.
    """
    _lock(connection, (f"{kind}\x1e{entity_id}" for kind, entity_id in entities))


def _lock(connection: Connection, names: Iterable[str]) -> None:
    if connection.dialect.name != "postgresql":
        return  # BEGIN IMMEDIATE has the whole file
    for number in sorted({_number(name) for name in names}):
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": number})


def _number(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), signed=True)


def entities_of(connection: Connection, keys: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """The entities that the running runs of these keys are about, by kind and id."""
    found = set()
    for scenario, key in keys:
        query = select(runs.c.entity_kind, runs.c.entity_id).where(
            runs.c.scenario == scenario, runs.c.key == key, runs.c.status == "running"
        )
        found |= {(row.entity_kind, row.entity_id) for row in connection.execute(query) if row.entity_id}
    return found


def living(
    connection: Connection, keys: Collection[tuple[str, str]], entities: Collection[tuple[str, str]]
) -> list[Row[Any]]:
    """The running runs of these keys and of these entities, locked, always in the same order."""
    which = [and_(runs.c.scenario == scenario, runs.c.key == key) for scenario, key in keys]
    which += [and_(runs.c.entity_kind == kind, runs.c.entity_id == id) for kind, id in entities]
    if not which:
        return []
    # One select for each, by its own index: SQLite would look at all running ones for "of this key or of this entity".
    found = union(*(select(runs.c.run_id).where(runs.c.status == "running", one) for one in which))
    query = select(runs).where(runs.c.run_id.in_(found)).order_by(asc(runs.c.run_id))
    locked = connection.execute(query.with_for_update()).all()
    return [row for row in locked if row.status == "running"]


def locked(connection: Connection, run_id: str) -> Row[Any] | None:
    return connection.execute(select(runs).where(runs.c.run_id == run_id).with_for_update()).first()


def locked_with_entity(connection: Connection, run_id: str) -> Row[Any] | None:
    """The run, locked after the entity that it is about, as events lock them: for who may change that entity."""
    if connection.dialect.name == "postgresql":
        query = select(runs.c.entity_kind, runs.c.entity_id).where(runs.c.run_id == run_id)
        about = connection.execute(query).first()
        if about is not None and about.entity_id is not None:
            lock_entities(connection, [(about.entity_kind, about.entity_id)])
    return locked(connection, run_id)


def read(connection: Connection, run_id: str) -> Row[Any] | None:
    return connection.execute(select(runs).where(runs.c.run_id == run_id)).first()


def latest(connection: Connection, scenario: str, key: str, *, lock: bool = False) -> Row[Any] | None:
    """The newest run of a key, whatever became of it."""
    query = select(runs).where(runs.c.scenario == scenario, runs.c.key == key)
    query = query.order_by(desc(runs.c.generation)).limit(1)
    return connection.execute(query.with_for_update() if lock else query).first()


def is_step(id: StepId) -> ColumnElement[bool]:
    return and_(steps.c.run_id == id.run_id, steps.c.step == id.step, steps.c.arming == id.arming)


def step_row(connection: Connection, id: StepId) -> Row[Any] | None:
    return connection.execute(select(steps).where(is_step(id))).first()


def steps_of(connection: Connection, run_id: str) -> Sequence[Row[Any]]:
    return connection.execute(select(steps).where(steps.c.run_id == run_id)).all()


def message_of(run: Run, id: StepId) -> StepId:
    """The step by which a step's message is known."""
    return StepId(id.run_id, id.step, run.message_of(id.step, id.arming))


def is_pending(run: Run, id: StepId) -> bool:
    """Whether this step, under this arming, is what the run waits for."""
    armed = run.armed
    return (
        run.status == "running" and armed is not None and (armed.step, armed.arming) == (id.step, id.arming)
    )


def is_held(row: Row[Any], now: Millis) -> bool:
    """Whether somebody is sending for this run at this moment."""
    return row.held_by is not None and row.held_until is not None and row.held_until > now


# ── Events ────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_down(connection: Connection, scenario: str, key: str, event: Event, now: Millis) -> int:
    """An event for a key, whether or not somebody waits for it; its number."""
    row = {"scenario": scenario, "key": key, "event_type": event.event_type, "event_id": event.event_id}
    new = insert(scenario_events).values(**row, received_at=now).returning(scenario_events.c.number)
    return int(connection.execute(new).scalar_one())


def heard(connection: Connection, definition: Definition, run: Run) -> tuple[list[Heard], int]:
    """The events that its waiting steps may count, and the number of the last one of any kind."""
    if not definition.waits_for:
        return [], run.heard
    table = scenario_events
    of_key = and_(table.c.scenario == run.scenario, table.c.key == run.key)
    floor = min(run.heard, run.heard_at_start)
    query = select(table.c.number, table.c.event_type).where(
        of_key, table.c.number > floor, table.c.event_type.in_(definition.waits_for)
    )
    found = [Heard(row.number, row.event_type) for row in connection.execute(query.order_by(table.c.number))]
    last = connection.execute(select(func.max(table.c.number)).where(of_key)).scalar()
    return found, last or 0


# ── Writing ───────────────────────────────────────────────────────────────────────────────────────────────────────


def add(connection: Connection, run: Run, entity_kind: str | None) -> None:
    connection.execute(insert(runs).values(**_row(run), entity_kind=entity_kind))


def save(connection: Connection, run: Run, *, release: bool = False) -> None:
    """The run as it is now. Who was sending for it and is not any more says so."""
    row = _row(run)
    if release:
        row |= {"held_by": None, "held_until": None}
    connection.execute(update(runs).where(runs.c.run_id == run.id).values(row))


def hold(connection: Connection, run_id: str, by: str, until: Millis) -> None:
    connection.execute(update(runs).where(runs.c.run_id == run_id).values(held_by=by, held_until=until))


def renew(connection: Connection, run_id: str, by: str, until: Millis) -> None:
    which = (runs.c.run_id == run_id, runs.c.held_by == by)
    connection.execute(update(runs).where(*which).values(held_until=until))


def release(connection: Connection, run_id: str, by: str) -> None:
    which = (runs.c.run_id == run_id, runs.c.held_by == by)
    connection.execute(update(runs).where(*which).values(held_by=None, held_until=None))


def record(
    connection: Connection, run_id: str, change: StepChange, effects: Mapping[str, Any] | None = None
) -> None:
    """What became of a step. A record is made when the step is reached."""
    which = is_step(StepId(run_id, change.step, change.arming))
    ended = None if change.state in ("armed", "running") else change.at
    values: dict[str, Any] = {"state": change.state, "ended_at": ended, "reason": change.reason}
    if effects is not None:
        values["effects"] = effects
    if change.state == "running":
        values["began_at"] = change.at
    if connection.execute(update(steps).where(which).values(values)).rowcount:
        return
    row = {"run_id": run_id, "step": change.step, "arming": change.arming, "due_at": change.due}
    connection.execute(insert(steps).values(**row, armed_at=change.at, **values))


def note_effects(connection: Connection, id: StepId, effects: Mapping[str, Any]) -> None:
    """What a step has done before it is over."""
    connection.execute(update(steps).where(is_step(id)).values(effects=effects))


def place(connection: Connection, id: StepId, queue: str, key: str | None) -> None:
    """Where a pending step's job lies, and which key names it."""
    connection.execute(update(steps).where(is_step(id)).values(queue=queue, key=key))


def _row(run: Run) -> dict[str, Any]:
    armed = run.armed
    return {
        "run_id": run.id,
        "scenario": run.scenario,
        "key": run.key,
        "generation": run.generation,
        "version": run.version,
        "status": run.status,
        "reason": run.reason,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "event": dict(run.event),
        "entity_id": run.entity_id,
        "user_id": run.user_id,
        "position": run.position,
        "since": run.since,
        "heard": run.heard,
        "heard_at_start": run.heard_at_start,
        "armed_step": armed.step if armed else None,
        "arming": armed.arming if armed else None,
        "due_at": armed.due if armed else None,
        "progress": {
            "armings": dict(run.armings),
            "anchors": dict(run.anchors),
            "done": sorted(run.done),
            **({"repeats": dict(run.repeats)} if run.repeats else {}),
        },
    }


def restored(row: Row[Any]) -> Run:
    """The run of a row."""
    progress = row.progress
    armed = Armed(row.armed_step, row.arming, row.due_at) if row.armed_step else None
    return Run(
        id=row.run_id,
        scenario=row.scenario,
        key=row.key,
        generation=row.generation,
        version=row.version,
        started_at=row.started_at,
        event=row.event,
        entity_id=row.entity_id,
        user_id=row.user_id,
        status=row.status,
        reason=row.reason,
        ended_at=row.ended_at,
        position=row.position,
        since=row.since,
        heard=row.heard,
        heard_at_start=row.heard_at_start,
        armed=armed,
        armings=progress["armings"],
        anchors=progress["anchors"],
        done=frozenset(progress["done"]),
        repeats=progress.get("repeats", {}),
    )


def note(connection: Connection, id: StepId, said: str) -> None:
    """Why a pending step has not happened yet."""
    pending = steps.c.state.in_(("armed", "running"))
    connection.execute(update(steps).where(is_step(id), pending).values(reason=said))
