"""What a step writes when it is done: fields, a log line, its record, and the arming of the next, in one transaction."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row

from yamchi.clock import Clock
from yamchi.faultpoints import fault_point
from yamchi.scenarios import flow, moves, store
from yamchi.scenarios.definition import Definition, Step
from yamchi.scenarios.entities import Change, EntityKinds, LogLine, TransactionalEntities
from yamchi.scenarios.expressions import fill
from yamchi.scenarios.facts import FactReader, Fetched
from yamchi.scenarios.flow import Facts, Run, StepState
from yamchi.scenarios.moves import StepChange
from yamchi.scenarios.outbox import Entry
from yamchi.scenarios.scenario_engine import ScenarioEngine
from yamchi.scenarios.store import RunStep, StepId
from yamchi.storage.database import Database


@dataclass(frozen=True, slots=True)
class Done:
    """What was done outside: effects for the record, fields for the entity; or why nothing was, after all."""

    effects: dict[str, Any]
    fields: Mapping[str, Any]
    skipped: str | None = None
    said: str | None = None


class Writing:
    """Writes what became of steps."""

    def __init__(
        self, clock: Clock, kinds: EntityKinds, facts_reader: FactReader, engine: ScenarioEngine
    ) -> None:
        self._clock = clock
        self._kinds = kinds
        self._facts = facts_reader
        self._engine = engine
        self._saver = engine.saver

    async def apply_outside(self, one: RunStep, facts: Facts, done: Done, *, first: bool = False) -> None:
        """A store without transactions gets its fields by value, and its log line under the step's id."""
        kind, entity_id = one.definition.entity, one.run.entity_id
        if kind is None or entity_id is None or done.skipped:
            return
        entities = self._kinds.of(kind)
        if not isinstance(entities, TransactionalEntities) and (
            change := self._change(one, facts, done, first)
        ):
            await entities.apply(entity_id, change)

    async def write_first(self, database: Database, one: RunStep, facts: Facts) -> list[Entry]:
        """Fields and log line of a step that writes them before it sends: once, however often the message is tried.

        The record of the first try says that they are written.
        """
        noted, nothing_yet = store.message_of(one.run, one.id), Done({}, {})
        if await database.read(lambda connection: _is_written(connection, noted)):
            return []
        await self.apply_outside(one, facts, nothing_yet, first=True)
        fetched = await self._facts.fetch(one.definition.entity, one.run.entity_id)

        def write(connection: Connection) -> list[Entry]:
            row = store.locked_with_entity(connection, one.id.run_id)
            if row is None or not store.is_pending(store.restored(row), one.id):
                return []
            self._apply_inside(connection, one, nothing_yet, fetched, first=True)
            store.note_effects(connection, noted, _effects(one.step, nothing_yet))
            return self._tell_others(connection, one, fetched) if one.step.set else []

        return await database.write(write)

    def complete(self, connection: Connection, begun: RunStep, done: Done, fetched: Fetched) -> list[Entry]:
        """Write what was done outside; if the run did not wait for it, nothing follows from it."""
        row = store.locked_with_entity(connection, begun.id.run_id)
        if row is None:
            return []
        one = replace(begun, run=store.restored(row))
        if not store.is_pending(one.run, one.id):
            return self.leave(connection, one, done, fetched)
        return self.finish(connection, one, row, done, fetched)

    def finish(
        self, connection: Connection, one: RunStep, row: Row[Any], done: Done, fetched: Fetched
    ) -> list[Entry]:
        """Fields, log line, this step done and the next one armed."""
        id, definition, step, run, now = one.id, one.definition, one.step, one.run, self._clock.now()
        self._apply_inside(connection, one, done, fetched)
        facts = self._facts.of(connection, definition, run, fetched)
        after, changes = moves.complete(
            definition, run, facts, now, heard=run.heard, skipped=done.skipped, said=done.said
        )
        entries = []
        if step.emit and not done.skipped:
            data = fill(step.emit.data, flow.values_of(definition, run, facts, now), facts.zone.key)
            entries.append(self._saver.emit(connection, run, definition, str(id), step.emit.event, data))
        effects = _effects(step, done)
        entries += self._saver.save(
            connection, definition, row, after, changes, facts, now, by=str(id), effects=effects
        )
        return entries + self._follow_fields(connection, one, done, fetched)

    def _follow_fields(
        self, connection: Connection, one: RunStep, done: Done, fetched: Fetched
    ) -> list[Entry]:
        """A date that this step has set moves the other runs of its entity, in the same transaction."""
        has_set = done.fields or (one.step.set and not one.step.set_first)
        return self._tell_others(connection, one, fetched) if has_set and not done.skipped else []

    def _tell_others(self, connection: Connection, one: RunStep, fetched: Fetched) -> list[Entry]:
        if one.definition.entity is None or one.run.entity_id is None:
            return []
        return self._engine.changed_in(connection, one.definition.entity, one.run.entity_id, fetched)

    def _apply_inside(
        self, connection: Connection, one: RunStep, done: Done, fetched: Fetched, *, first: bool = False
    ) -> None:
        kind, entity_id = one.definition.entity, one.run.entity_id
        if kind is None or entity_id is None or done.skipped:
            return
        entities = self._kinds.of(kind)
        if isinstance(entities, TransactionalEntities):
            facts = self._facts.of(connection, one.definition, one.run, fetched)
            change = self._change(one, facts, done, first)
            if change.fields:
                entities.apply_in(connection, entity_id, Change(fields=change.fields))
            fault_point("step.fields_set")
            if change.log:
                entities.apply_in(connection, entity_id, Change(log=change.log))
            fault_point("step.logged")

    def _change(self, one: RunStep, facts: Facts, done: Done, first: bool) -> Change:
        """What is written now: `set` and `log` either before the message or after it, what a function returns after it."""
        step = one.step
        if step.set_first and not first:
            return Change(done.fields)
        values = flow.values_of(one.definition, one.run, facts, self._clock.now())
        fields = {**done.fields, **fill(step.set, values, facts.zone.key)}
        text = fill(step.log, values, facts.zone.key) if step.log else None
        return Change(fields, LogLine(str(store.message_of(one.run, one.id)), str(text)) if text else None)

    def give_up(
        self, connection: Connection, definition: Definition, run: Run, id: StepId, reason: str
    ) -> list[Entry]:
        """A message failed for good after the run had stopped or gone on without it: it is said not to have left."""
        record = store.step_row(connection, id)
        if record is None or record.state != "running" or id.step not in definition.places:
            return []
        one = RunStep(id, definition, definition.step(id.step), run)
        return self.leave(connection, one, Done({}, {}, reason), Fetched())

    def leave(self, connection: Connection, one: RunStep, done: Done, fetched: Fetched) -> list[Entry]:
        """A message left although the run did not wait for it: fields and log say so, and nothing follows from it.

        If it did not, its record says so; one that says already why it was cancelled stays as it is.
        """
        id, run = one.id, one.run
        store.release(connection, run.id, str(id))
        record = store.step_row(connection, id)
        if done.skipped and record is not None and record.state == "cancelled":
            return []
        self._apply_inside(connection, one, done, fetched)
        said = (
            f"it left before the run was {run.status}" if run.status != "running" else "its date moved since"
        )
        state: StepState = "cancelled" if done.skipped else "done"
        change = StepChange(id.step, id.arming, state, self._clock.now(), None, done.skipped or said)
        store.record(connection, run.id, change, _effects(one.step, done))
        return self._follow_fields(connection, one, done, fetched)


def _effects(step: Step, done: Done) -> dict[str, Any]:
    """For the record and the timeline: what was sent, set and logged."""
    effects = dict(done.effects)
    is_written = step.set_first or not done.skipped
    if fields := {*(step.set if is_written else ()), *(() if done.skipped else done.fields)}:
        effects["set"] = sorted(fields)
    if is_written and step.log:
        effects["log"] = step.log
    return effects


def _is_written(connection: Connection, id: StepId) -> bool:
    record = store.step_row(connection, id)
    return record is not None and bool(record.effects)
