"""What a run did, what it will do and why not: the records of the past, and the future by the engine's own decisions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, desc, select

from yamchi.clock import Clock, Millis, isoformat_or_none
from yamchi.errors import UnknownJob
from yamchi.scenarios import store
from yamchi.scenarios.definition import Definition
from yamchi.scenarios.entities import Entity, EntityKinds, ImaginableEntities
from yamchi.scenarios.facts import FactReader, Fetched
from yamchi.scenarios.flow import Facts, Run
from yamchi.scenarios.library import Library
from yamchi.scenarios.moves import StepChange
from yamchi.scenarios.simulation import Happening, Simulation, play, simulate
from yamchi.scenarios.tables import scenario_runs as runs
from yamchi.storage.database import Database


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a timeline. `is_future`: expected, if nothing happens."""

    step: str
    arming: int
    state: str
    at: Millis | None
    due: Millis | None = None
    reason: str | None = None
    effects: Mapping[str, Any] | None = None
    is_future: bool = False

    def shown(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "arming": self.arming,
            "state": self.state,
            "at": isoformat_or_none(self.at),
            "due": isoformat_or_none(self.due),
            "reason": self.reason,
            "effects": self.effects,
            "is_future": self.is_future,
        }


class Timelines:
    """Runs for people: lists, timelines, and simulations."""

    def __init__(
        self, database: Database, clock: Clock, library: Library, kinds: EntityKinds, facts_reader: FactReader
    ) -> None:
        self._database = database
        self._clock = clock
        self._library = library
        self._kinds = kinds
        self._facts = facts_reader

    # ── Lists ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def find(
        self,
        *,
        scenario: str | None = None,
        key: str | None = None,
        status: str | None = None,
        offset: int = 0,
        limit: int = 50,
    ) -> list[dict[str, Any]]:
        """Runs, newest first."""
        query = (
            select(runs).order_by(desc(runs.c.started_at), desc(runs.c.run_id)).offset(offset).limit(limit)
        )
        for name, value in (("scenario", scenario), ("key", key), ("status", status)):
            if value is not None:
                query = query.where(runs.c[name] == value)
        rows = await self._database.rows(query)
        return [shown(row) for row in rows]

    async def of(self, run_id: str) -> dict[str, Any]:
        """A run with its timeline, past and future."""
        row = await self._database.read(lambda connection: store.read(connection, run_id))
        if row is None:
            raise UnknownJob(f"There is no run {run_id!r}.")
        fetched = await self._facts.fetch(row.entity_kind, row.entity_id)
        return await self._database.read(lambda connection: self._whole(connection, run_id, fetched))

    async def latest(self, scenario: str, key: str) -> dict[str, Any]:
        """The newest run of a key, with its timeline."""
        row = await self._database.read(lambda connection: store.latest(connection, scenario, key))
        if row is None:
            raise UnknownJob(f"The scenario {scenario!r} has no run of {key!r}.")
        return await self.of(row.run_id)

    def _whole(self, connection: Connection, run_id: str, fetched: Fetched) -> dict[str, Any]:
        row = store.read(connection, run_id)
        if row is None:
            raise UnknownJob(f"There is no run {run_id!r}.")
        definition = self._library.version(connection, row.scenario, row.version)
        places = definition.places
        rows = sorted(
            store.steps_of(connection, run_id),
            key=lambda one: (one.armed_at, places.get(one.step, 0), one.arming),
        )
        past = [_recorded(one) for one in rows]
        future = self._future(connection, definition, row, fetched)
        lines = [line for line in past if line.state not in ("armed", "running")]
        lines += [line for line in past if line.state in ("armed", "running")]
        return {**shown(row), "timeline": [line.shown() for line in [*lines, *future]]}

    def _future(
        self, connection: Connection, definition: Definition, row: Row[Any], fetched: Fetched
    ) -> list[Line]:
        run = store.restored(row)
        if run.status != "running":
            return []
        facts = self._facts.of(connection, definition, run, fetched)
        simulation = Simulation(definition, run, facts)
        play(simulation, [])
        return [
            line_of(change, is_future=True) for change in simulation.changes if change.state != "armed"
        ] + _waiting(simulation)

    # ── Simulations ───────────────────────────────────────────────────────────────────────────────────────────────

    async def simulate(
        self,
        scenario: str,
        *,
        fields: Mapping[str, Any] | None = None,
        entity_id: str | None = None,
        data: Mapping[str, Any] | None = None,
        start: Millis | None = None,
        history: list[Happening] | None = None,
        zone: str | None = None,
        is_imagined: bool = False,
    ) -> Simulation:
        """What a run would do from a given start, without doing any of it; for an entity that is made up, if that is wanted."""
        definition = self._library.get(scenario)
        now = self._clock.now() if start is None else start
        found = self._imagined(definition, data or {}, now) if is_imagined else None
        entity = await self._entity(definition, entity_id, fields or {}, found)
        event = {"event_type": definition.on[0], "event_id": "simulated", "data": dict(data or {})}
        run = Run(
            "simulated", scenario, entity_id or "key", 1, definition.version, now, event, entity_id or "key"
        )
        facts = Facts(entity, zone=self._facts.zone_of(entity, zone))
        return simulate(definition, run, facts, now, history or [])

    def _imagined(self, definition: Definition, data: Mapping[str, Any], now: Millis) -> Entity | None:
        if definition.entity is None or definition.entity not in self._kinds:
            return None
        kind = self._kinds.of(definition.entity)
        return kind.imagine(data, now) if isinstance(kind, ImaginableEntities) else None

    async def _entity(
        self,
        definition: Definition,
        entity_id: str | None,
        fields: Mapping[str, Any],
        imagined: Entity | None,
    ) -> Entity | None:
        if definition.entity is None:
            return None
        known = imagined or Entity(entity_id or "key", {})
        if entity_id is not None and definition.entity in self._kinds:
            found = await self._kinds.of(definition.entity).get(entity_id)
            if found is None:
                raise UnknownJob(f"There is no {definition.entity} {entity_id[:64]!r}.")
            known = found
        return replace(known, fields={**known.fields, **fields})


def _recorded(row: Row[Any]) -> Line:
    at = row.ended_at or row.began_at or row.due_at
    return Line(row.step, row.arming, row.state, at, row.due_at, row.reason, row.effects)


def line_of(change: StepChange, *, is_future: bool = False) -> Line:
    return Line(
        change.step, change.arming, change.state, change.at, change.due, change.reason, is_future=is_future
    )


def _waiting(simulation: Simulation) -> list[Line]:
    """What a run that goes no further by itself waits for, if that is not what it waits for now."""
    armed = simulation.run.armed
    if armed is None or not simulation.changes:
        return []
    step = simulation.definition.step(armed.step)
    return [Line(armed.step, armed.arming, "armed", None, None, f"waits for {step.wait_for}", is_future=True)]


def shown(row: Row[Any]) -> dict[str, Any]:
    """A run for people and programs."""
    names = ("run_id", "scenario", "key", "generation", "version", "status", "reason", "entity_kind")
    fields = {name: getattr(row, name) for name in (*names, "entity_id", "user_id")}
    for name in ("started_at", "ended_at", "due_at"):
        fields[name] = isoformat_or_none(getattr(row, name))
    return {**fields, "step": row.armed_step}
