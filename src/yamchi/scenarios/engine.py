"""ScenarioEngine: events start, move and stop runs, each in the transaction that stores the event.

A run is changed only under the lock of its row, by what `flow` decides. What that leads to outside the database stands in
the outbox, in the same transaction.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog
from sqlalchemy import Connection, Row, select

from yamchi.clock import Clock, Millis, to_millis
from yamchi.faultpoints import fault_point
from yamchi.notifications.schemas.event import Event
from yamchi.notifications.tables import events as known_events
from yamchi.scenarios import flow, moves, store
from yamchi.scenarios.definition import Definition, Step
from yamchi.scenarios.entities import EntityKinds, TransactionalEntities
from yamchi.scenarios.expressions import ExpressionFailed, fill, holds
from yamchi.scenarios.flow import Run, Scene
from yamchi.scenarios.library import Library, UnknownScenario
from yamchi.scenarios.moves import StepChange
from yamchi.scenarios.outbox import Entry, Outbox
from yamchi.scenarios.scenes import Fetched, Scenes
from yamchi.scenarios.store import StepId
from yamchi.storage.database import Database

log = structlog.get_logger("yamchi.scenarios")

STOP_PATIENCE: Millis = 5_000
"""How long the answer to a stop waits for a message that is on its way."""

LOOK_AGAIN: Millis = 50
LONGEST_NAME = 512
"""Characters of a key's name."""


@dataclass(frozen=True, slots=True)
class Match:
    """A scenario that an event concerns, by the key that the event has there."""

    definition: Definition
    key: str
    entity_id: str | None
    scene: Scene


@dataclass(frozen=True, slots=True)
class Stopped:
    """The answer to a stop: which run, and the step whose message had left or was leaving when it came."""

    run_id: str
    scenario: str
    key: str
    on_its_way: str | None = None
    is_still_sending: bool = False


class ScenarioEngine:
    """Starts, moves and stops runs."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        library: Library,
        kinds: EntityKinds,
        scenes: Scenes,
        outbox: Outbox,
    ) -> None:
        self._database = database
        self._clock = clock
        self._library = library
        self._kinds = kinds
        self._scenes = scenes
        self._outbox = outbox

    # ── Events ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def prepare(self, events: Sequence[Event]) -> Fetched:
        """Entities that are kept elsewhere are told of what is new, and fetched, before the transaction."""
        if all(isinstance(self._kinds.of(kind), TransactionalEntities) for kind in self._kinds):
            return Fetched()
        ids = [event.event_id for event in events]
        query = select(known_events.c.event_id).where(known_events.c.event_id.in_(ids))
        known = set(await self._database.read(lambda connection: connection.execute(query).scalars().all()))
        return await self._scenes.fetch_for([event for event in events if event.event_id not in known])

    def store(
        self, connection: Connection, events: Sequence[Event], prepared: Fetched, now: Millis
    ) -> list[Entry]:
        """What these events, which are new, lead to."""
        types = {event.event_type for event in events}
        listening = self._library.listening(connection, types) if events else []
        return [
            entry for event in events for entry in self._take(connection, event, listening, prepared, now)
        ]

    async def follow(self, stored: Sequence[Entry]) -> None:
        """Do what was written down: queue jobs, drop others, set keys, emit events."""
        fault_point("scenario.stored")
        await self._outbox.follow(stored)

    def _take(
        self,
        connection: Connection,
        event: Event,
        listening: Sequence[Definition],
        fetched: Fetched,
        now: Millis,
    ) -> list[Entry]:
        concerned = self._scenes.note(connection, event)
        matches = [
            match
            for definition in listening
            if event.event_type in definition.listens_to
            and (match := self._match(connection, definition, event, concerned, fetched, now))
        ]
        keys = {(match.definition.scenario, match.key) for match in matches}
        store.lock_keys(connection, keys)
        living = store.living(connection, keys, list(concerned.items()))
        numbers = {
            (scenario, key): store.write_down(connection, scenario, key, event, now)
            for scenario, key in sorted(keys)
        }
        entries = []
        for row in living:
            is_for_it = (row.scenario, row.key) in numbers
            entries += self._move(connection, row, event.event_type if is_for_it else "", fetched, now)
        for match in matches:
            is_current = self._library.current.get(match.definition.scenario) == match.definition
            if is_current and event.event_type in match.definition.on:
                number = numbers[match.definition.scenario, match.key]
                entries += self._start(connection, match, event, number, now)
        return entries

    def _match(
        self,
        connection: Connection,
        definition: Definition,
        event: Event,
        concerned: dict[str, str],
        fetched: Fetched,
        now: Millis,
    ) -> Match | None:
        """The key that this event has for a scenario; None if it has none."""
        if definition.entity is not None and definition.entity not in concerned:
            return None
        entity_id = concerned.get(definition.entity or "")
        scene = self._scenes.at_start(connection, definition, event, entity_id, fetched)
        values = flow.values_of(definition, _unborn(definition, event, entity_id, now), scene, now)
        try:
            key = fill(definition.key, values, scene.zone.key)
        except ExpressionFailed:
            return None  # an event that lacks what the key is made of is not for this scenario
        if key is None or not 0 < len(str(key)) <= store.LONGEST_KEY:
            return None
        return Match(definition, str(key), entity_id, scene)

    def _move(
        self, connection: Connection, row: Row[Any], event_type: str, fetched: Fetched, now: Millis
    ) -> list[Entry]:
        """What an event, or a change of its entity, makes of a run."""
        run = store.restored(row)
        definition = self._library.version(connection, run.scenario, run.version)
        scene = self._scenes.of(connection, definition, run, fetched)
        after, changes = moves.hear(definition, run, scene, event_type, now)
        if after == run and not changes:
            return []
        return self.save(connection, definition, row, after, changes, scene, now)

    def _start(
        self, connection: Connection, match: Match, event: Event, number: int, now: Millis
    ) -> list[Entry]:
        definition, scene = match.definition, match.scene
        if definition.entity and scene.entity is None:
            log.warning(
                f"{event.event_type} started no {definition.scenario}: there is no {definition.entity} "
                f"{match.entity_id}"
            )
            return []
        if not self._wants(definition, match, event, now):
            return []
        last = store.latest(connection, definition.scenario, match.key)
        entries = []
        if last is not None:
            if definition.again == "never" or (last.status == "running" and definition.again != "restart"):
                return []
            if last.status == "running":
                entries += self._end(connection, last, f"started again by {event.event_type}", now)
        run = _born(match, event, number, (last.generation if last else 0) + 1, now)
        self._library.keep(connection, definition)
        store.add(connection, run, definition.entity)
        after, changes = moves.begin(definition, run, scene, now)
        return entries + self.save(connection, definition, None, after, changes, scene, now)

    def _wants(self, definition: Definition, match: Match, event: Event, now: Millis) -> bool:
        if definition.when is None:
            return True
        values = flow.values_of(
            definition, _unborn(definition, event, match.entity_id, now), match.scene, now
        )
        try:
            return holds(definition.when, values, match.scene.zone.key)
        except ExpressionFailed as error:
            log.warning(f"{definition.scenario} was not started: {error}")
            return False

    # ── Entities that change ──────────────────────────────────────────────────────────────────────────────────────

    def changed_in(
        self, connection: Connection, kind: str, entity_id: str, fetched: Fetched | None = None
    ) -> list[Entry]:
        """In the transaction that changes an entity: its runs look at their dates anew. Then `follow` what it returns."""
        entries = []
        for row in store.living(connection, [], [(kind, entity_id)]):
            entries += self._move(connection, row, "", fetched or Fetched(), self._clock.now())
        return entries

    async def changed(self, kind: str, entity_id: str) -> None:
        """An entity has changed: its runs look at their dates anew."""
        fetched = await self._scenes.fetch(kind, entity_id)
        await self.follow(await self._database.write(lambda c: self.changed_in(c, kind, entity_id, fetched)))

    # ── Stopping ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def stop(self, scenario: str, key: str, reason: str) -> Stopped | None:
        """Stop the living run of a key; None if there is none. From then on no send begins."""

        def end(connection: Connection) -> tuple[Row[Any] | None, list[Entry]]:
            store.lock_keys(connection, [(scenario, key)])
            living = store.living(connection, [(scenario, key)], [])
            if not living:
                return None, []
            return living[0], self._end(connection, living[0], reason, self._clock.now())

        row, entries = await self._database.write(end)
        if row is None:
            return None
        fault_point("scenario.stopped")
        await self._outbox.follow(entries)
        return await self._answer(row)

    async def stop_run(self, run_id: str, reason: str) -> Stopped | None:
        """The same for a run by its id."""
        row = await self._database.read(lambda connection: store.read(connection, run_id))
        if row is None or row.status != "running":
            return None
        return await self.stop(row.scenario, row.key, reason)

    def _end(self, connection: Connection, row: Row[Any], reason: str, now: Millis) -> list[Entry]:
        run = store.restored(row)
        definition = self._library.version(connection, run.scenario, run.version)
        after, changes = moves.stop(run, reason, now)
        return self.save(connection, definition, row, after, changes, None, now)

    async def _answer(self, row: Row[Any]) -> Stopped:
        """Wait briefly for a message that was leaving when the run was stopped, and say so."""
        stopped = Stopped(row.run_id, row.scenario, row.key)
        if not store.is_held(row, self._clock.now()):
            return stopped
        for _ in range(STOP_PATIENCE // LOOK_AGAIN):
            current = await self._database.read(lambda connection: store.read(connection, row.run_id))
            if current is None or not store.is_held(current, self._clock.now()):
                return replace(stopped, on_its_way=row.armed_step)
            await asyncio.sleep(LOOK_AGAIN / 1000)  # a real message takes real time
        return replace(stopped, on_its_way=row.armed_step, is_still_sending=True)

    # ── Saving ────────────────────────────────────────────────────────────────────────────────────────────────────

    def save(
        self,
        connection: Connection,
        definition: Definition,
        before: Row[Any] | None,
        after: Run,
        changes: Sequence[StepChange],
        scene: Scene | None,
        now: Millis,
        *,
        by: str | None = None,
        effects: dict[str, Any] | None = None,
    ) -> list[Entry]:
        """Write the run and its steps, and what is to be done outside. `by` is the job at hand, which ends by itself."""
        holder = before.held_by if before is not None and store.is_held(before, now) else None
        entries = []
        for change in changes:
            job_id = str(StepId(after.id, change.step, change.arming))
            is_leaving = change.state == "cancelled" and job_id == holder
            if not is_leaving:  # else its own job says how it ended
                store.record(connection, after.id, change, effects if job_id == by else None)
            fault_point("scenario.recorded")
            if change.state == "armed":
                entries += self._pend(connection, definition, after, change, scene, now)
            else:
                entries += self._settle(connection, after, change, job_id == by)
        store.save(connection, after, release=by is not None and holder == by)
        fault_point("scenario.saved")
        return entries

    def _pend(
        self,
        connection: Connection,
        definition: Definition,
        run: Run,
        change: StepChange,
        scene: Scene | None,
        now: Millis,
    ) -> list[Entry]:
        """The job of a step that is pending; one that waits for an event as long as it takes has none."""
        if change.due is None:
            return []
        step = definition.step(change.step)
        id = StepId(run.id, change.step, change.arming)
        key = self._key(definition, run, step, scene, now)
        store.place(connection, id, definition.queue, key)
        body = {
            "queue": definition.queue,
            "name": change.step,
            "data": {
                name: self._filled(value, definition, run, scene, now)
                for name, value in definition.data_of(step).items()
            },
            "run_at": change.due if change.due > now else None,
            "key": key,
            "ttl": to_millis(step.remember.ttl) if step.remember and key else None,
        }
        return [self._outbox.put(connection, "job", body, str(id))]

    def _settle(self, connection: Connection, run: Run, change: StepChange, is_own: bool) -> list[Entry]:
        """A step that is over: its job goes, unless it is the one at hand, and so does its key."""
        id = StepId(run.id, change.step, change.arming)
        row = store.step_row(connection, id)
        if row is None or row.queue is None:
            return []
        self._outbox.withdraw(connection, str(id))
        if is_own and row.key is None:
            return []
        body = {"queue": row.queue, "key": row.key, "is_own": is_own}
        return [self._outbox.put(connection, "drop", body, str(id))]

    def _key(
        self, definition: Definition, run: Run, step: Step, scene: Scene | None, now: Millis
    ) -> str | None:
        if step.remember is None:
            return None
        filled = self._filled(step.remember.key, definition, run, scene, now)
        return str(filled)[:LONGEST_NAME] if filled else None

    def _filled(self, value: Any, definition: Definition, run: Run, scene: Scene | None, now: Millis) -> Any:
        """A template of a job's data or key. What can't be filled in does not keep the run from going on."""
        scene = scene or Scene()
        try:
            return fill(value, flow.values_of(definition, run, scene, now), scene.zone.key)
        except ExpressionFailed as error:
            log.warning(
                f"{definition.scenario}: a value for its job is left empty, since {error}", key=run.key
            )
            return None

    def emit(
        self,
        connection: Connection,
        run: Run,
        definition: Definition,
        id: str,
        type: str,
        data: dict[str, Any],
    ) -> Entry:
        """An event for this installation's own rules and scenarios, about the same entity or with the same data."""
        about = (
            {f"{definition.entity}_id": run.entity_id} if definition.entity else run.event.get("data") or {}
        )
        body = {"event_type": type, "event_id": id, "user_id": run.user_id, "data": {**about, **data}}
        return self._outbox.put(connection, "event", body)


def _unborn(definition: Definition, event: Event, entity_id: str | None, now: Millis) -> Run:
    """A run to ask for its key: what expressions see before there is one."""
    user_id = None if event.user_id is None else str(event.user_id)
    said = event.model_dump(mode="json")
    return Run("", definition.scenario, "", 0, definition.version, now, said, entity_id, user_id)


def _born(match: Match, event: Event, number: int, generation: int, now: Millis) -> Run:
    definition = match.definition
    return Run(
        id=store.run_id_of(definition.scenario, match.key, generation),
        scenario=definition.scenario,
        key=match.key,
        generation=generation,
        version=definition.version,
        started_at=now,
        event=event.model_dump(mode="json"),
        entity_id=match.entity_id,
        user_id=None if event.user_id is None else str(event.user_id),
        since=now,
        heard=number,
        heard_at_start=number,
    )


__all__ = ["ScenarioEngine", "Stopped", "UnknownScenario"]
