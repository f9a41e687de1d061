"""The first half of a step's life: under the lock of its run, whether its job does something, and what.

Conditions, lateness and everything that changes only our own tables is decided and written here, in one transaction.
"""

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row

from yamchi.clock import Clock, Millis
from yamchi.scenarios import moves, store
from yamchi.scenarios.definition import Definition
from yamchi.scenarios.entities import EntityKinds, TransactionalEntities
from yamchi.scenarios.facts import FactReader, Fetched
from yamchi.scenarios.flow import Facts, Fail, Perform, Run
from yamchi.scenarios.library import Library
from yamchi.scenarios.moves import StepChange
from yamchi.scenarios.outbox import Entry
from yamchi.scenarios.saving import RunSaver
from yamchi.scenarios.store import RunStep, StepId
from yamchi.scenarios.writing import Done, Writing


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is nothing to do, and why. If a key still names the job, that goes."""

    reason: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """It was decided without doing anything outside."""

    state: str
    reason: str | None
    entries: list[Entry]


@dataclass(frozen=True, slots=True)
class GivenUp:
    """It can't be done, ever: a dead letter is due."""

    reason: str
    entries: list[Entry]


@dataclass(frozen=True, slots=True)
class Begun:
    """Something is to be done outside."""

    step: RunStep
    facts: Facts


@dataclass(frozen=True, slots=True)
class Left:
    """The run went on without it, or was stopped, after its message may have left."""

    step: RunStep


Claimed = Nothing | Settled | GivenUp | Begun | Left


class Claims:
    """Decides what becomes of a step's job."""

    def __init__(
        self,
        clock: Clock,
        library: Library,
        kinds: EntityKinds,
        facts_reader: FactReader,
        saver: RunSaver,
        writing: Writing,
    ) -> None:
        self._clock = clock
        self._library = library
        self._kinds = kinds
        self._facts = facts_reader
        self._saver = saver
        self._writing = writing

    def claim(self, connection: Connection, id: StepId, attempt: int, fetched: Fetched) -> Claimed:
        now = self._clock.now()
        row, record = store.locked_with_entity(connection, id.run_id), store.step_row(connection, id)
        if row is None or record is None:
            return Nothing("there is no such run any more")
        run = store.restored(row)
        definition = self._library.version(connection, run.scenario, run.version)
        if not store.is_pending(run, id):
            return self._stale(connection, definition, row, record, id, attempt)
        facts = self._facts.of(connection, definition, run, fetched)
        decision, after, changes = moves.fire(definition, run, facts, now)
        match decision:
            case Perform(step=step):
                # What came after the first attempt may be an answer to it.
                begun = run if record.began_at is not None else replace(run, heard=facts.last_event)
                return self._begin(connection, RunStep(id, definition, step, begun), row, facts)
            case Fail(reason=reason):
                after, changes = moves.fail(definition, run, facts, now, reason)
                entries = self._saver.save(
                    connection, definition, row, after, changes, facts, now, by=str(id)
                )
                return GivenUp(reason, entries)
        own = next((change for change in changes if change.step == id.step), None)
        entries = self._saver.save(connection, definition, row, after, changes, facts, now, by=str(id))
        return Settled(own.state if own else "nothing", own.reason if own else None, entries)

    def _begin(self, connection: Connection, begun: RunStep, row: Row[Any], facts: Facts) -> Claimed:
        """What changes nothing but our own tables is done at once."""
        kind, id = begun.definition.entity, begun.id
        is_inside = kind is None or isinstance(self._kinds.of(kind), TransactionalEntities)
        if not begun.step.acts_outside and is_inside:
            entries = self._writing.finish(connection, begun, row, Done({}, {}), Fetched())
            return Settled("done", None, entries)
        change = StepChange(id.step, id.arming, "running", self._clock.now())
        store.record(connection, id.run_id, change)
        store.save(connection, begun.run)
        return Begun(begun, facts)

    def _stale(
        self,
        connection: Connection,
        definition: Definition,
        row: Row[Any],
        record: Row[Any],
        id: StepId,
        attempt: int,
    ) -> Claimed:
        """A job whose step is not pending under this arming: an old one, a replayed one, or one that was overtaken."""
        run, now = store.restored(row), self._clock.now()
        is_last = run.armings.get(id.step) == id.arming
        is_failed = record.state == "failed" and is_last
        if is_failed and (
            run.status == "failed" or _has_only_gone_on(connection, definition, row, run, id, now)
        ):
            if attempt > 1:  # it failed, and its dead letter was not written before a crash
                return GivenUp(record.reason or "It had failed", [])
            return self._revive(connection, definition, row, run, id.step)
        has_begun = record.state in ("running", "cancelled") and record.began_at is not None
        if has_begun and id.step in definition.places:  # else its run was moved to a version without it
            return Left(RunStep(id, definition, definition.step(id.step), run))
        why = run.reason or "its date moved, or it was queued anew"
        return Nothing(f"the step is {record.state} and the run {run.status}: {why}", record.key)

    def _revive(
        self, connection: Connection, definition: Definition, row: Row[Any], run: Run, step: str
    ) -> Claimed:
        """A replayed dead letter: the step is armed anew, and the run goes on."""
        living = store.living(connection, [(run.scenario, run.key)], [])
        if any(one.run_id != run.id for one in living):
            return Nothing("another run of this key has begun since")
        now = self._clock.now()
        after, changes = moves.revive(definition, run, step, now)
        facts = self._facts.of(connection, definition, run, Fetched())
        entries = self._saver.save(connection, definition, row, after, changes, facts, now)
        return Settled("armed", "tried anew from its dead letter", entries)


def _has_only_gone_on(
    connection: Connection, definition: Definition, row: Row[Any], run: Run, id: StepId, now: Millis
) -> bool:
    """Whether the run went on without a step that failed, and nothing after it has been begun."""
    if run.status != "running" or run.armed is None or id.step not in definition.places:
        return False
    pending = store.step_row(connection, StepId(run.id, run.armed.step, run.armed.arming))
    has_begun = store.is_held(row, now) or (pending is not None and pending.began_at is not None)
    place = definition.places[id.step]
    return not has_begun and all(definition.places.get(name, -1) <= place for name in run.done)
