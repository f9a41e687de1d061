"""ScenarioEngine: events start, move and stop runs, each in the transaction that stores the event.

A run is changed only under the lock of its row, by what `flow` decides. What that leads to outside the database stands in
the outbox, in the same transaction.
"""

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import structlog
from sqlalchemy import Connection, Row, select

from yamchi.clock import Clock, Millis
from yamchi.faultpoints import fault_point
from yamchi.notifications.schemas.event import Event
from yamchi.notifications.tables import events as known_events
from yamchi.scenarios import flow, moves, store
from yamchi.scenarios.entities import EntityKinds
from yamchi.scenarios.expressions import ExpressionFailed
from yamchi.scenarios.facts import FactReader, Fetched
from yamchi.scenarios.flow import Run
from yamchi.scenarios.library import Library, Listening, UnknownScenario
from yamchi.scenarios.matching import Match, Matcher, run_to_be
from yamchi.scenarios.outbox import Entry, Outbox
from yamchi.scenarios.saving import RunSaver
from yamchi.storage.database import Database

log = structlog.get_logger("yamchi.scenarios")

STOP_TIMEOUT: Millis = 5_000
"""How long a stop waits for a message that is being sent, before it answers."""

LOOK_AGAIN: Millis = 50

HOLDING: ContextVar[str | None] = ContextVar("holding", default=None)
"""The step whose message or function runs in this task."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The answer to a stop: the run, and the step whose message had left or was being sent at that moment."""

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
        facts_reader: FactReader,
        outbox: Outbox,
    ) -> None:
        self._database = database
        self._clock = clock
        self._library = library
        self._kinds = kinds
        self._facts = facts_reader
        self._outbox = outbox
        self.matcher = Matcher(library, facts_reader)
        self._leaving: dict[str, list[Row[Any]]] = {}
        """By event, until it is answered: runs whose message was being sent when the event stopped or moved them."""
        self.saver = RunSaver(outbox)

    # ── Events ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def prepare(self, events: Sequence[Event]) -> Fetched:
        """Pass new events to the stores of entities outside the database, and fetch those entities, before the transaction."""
        if self._kinds.are_all_inside:
            return Fetched()
        ids = [event.event_id for event in events]
        query = select(known_events.c.event_id).where(known_events.c.event_id.in_(ids))
        known = set(await self._database.column(query))
        new = [event for event in events if event.event_id not in known]
        fetched = await self._facts.fetch_for(new)
        others = await self._database.read(
            lambda connection: self.matcher.entities_of_runs(connection, new, fetched, self._clock.now())
        )
        for kind, entity_id in others - fetched.entities.keys():
            fetched.entities |= (await self._facts.fetch(kind, entity_id)).entities
        return fetched

    def store(
        self, connection: Connection, events: Sequence[Event], prepared: Fetched, now: Millis
    ) -> list[Entry]:
        """What these events, which are new, lead to.

        All entities are locked before any is changed, in one order: as other batches do, and steps. So are keys that are of no entity.
        """
        if not events:
            return []
        listening = self._library.listening(connection, {event.event_type for event in events})
        concerned = [self._facts.concerned(event) for event in events]
        store.lock_entities(connection, {entity for one in concerned for entity in one.items()})
        if len(events) > 1:  # one alone locks its keys at once anyway
            store.lock_keys(
                connection, self.matcher.keys_of_no_entity(connection, listening, events, prepared, now)
            )
        entries = []
        for event, about in zip(events, concerned, strict=True):
            entries += self._take(connection, event, about, listening, prepared, now)
        return entries

    async def wait_for_leaving(self, events: Sequence[Event]) -> None:
        """Wait until messages that were being sent when these events stopped or moved their runs have left, at most for a while."""
        for event in events:
            for row in self._leaving.pop(event.event_id, ()):
                stopped = await self.answer(row)
                said = "is still leaving" if stopped.is_still_sending else "had begun to leave"
                log.info(f"the message of {row.armed_step} {said} when {event.event_type} came", key=row.key)

    async def follow(self, stored: Sequence[Entry]) -> None:
        """Carry out these entries: queue jobs, drop others, set keys, emit events."""
        fault_point("scenario.stored")
        await self._outbox.follow(stored)

    def _take(
        self,
        connection: Connection,
        event: Event,
        concerned: dict[str, str],
        listening: Listening,
        fetched: Fetched,
        now: Millis,
    ) -> list[Entry]:
        self._facts.note(connection, event, concerned)
        matches = self.matcher.matches(connection, listening, event, concerned, fetched, now)
        keys = {(match.definition.scenario, match.key) for match in matches}
        store.lock_keys(connection, keys)
        living = store.living(connection, keys, list(concerned.items()))
        numbers = {
            (scenario, key): store.write_down(connection, scenario, key, event, now)
            for scenario, key in sorted(keys)
        }
        entries, leaving = [], []
        for row in living:
            is_for_it = (row.scenario, row.key) in numbers
            found = self._move(connection, row, event.event_type if is_for_it else "", fetched, now)
            if found and store.is_held(row, now):
                leaving.append(row)
            entries += found
        if leaving:
            self._leaving[event.event_id] = leaving
        for match in matches:
            is_in_force = listening.in_force.get(match.definition.scenario) is match.definition
            if is_in_force and event.event_type in match.definition.on:
                number = numbers[match.definition.scenario, match.key]
                entries += self._start(connection, match, event, number, now)
        return entries

    def _move(
        self,
        connection: Connection,
        row: Row[Any],
        event_type: str,
        fetched: Fetched,
        now: Millis,
        *,
        refresh: bool = False,
    ) -> list[Entry]:
        """Apply an event, or a change of its entity, to a run."""
        run = store.restored(row)
        try:
            definition = self._library.version(connection, run.scenario, run.version)
        except UnknownScenario as error:
            return self._move_blindly(connection, row, event_type, now, str(error))
        facts = self._facts.of(connection, definition, run, fetched)
        after, changes = moves.hear(definition, run, facts, event_type, now)
        if after == run and not changes:
            return self.saver.refresh(connection, definition, run, facts, now) if refresh else []
        return self.saver.save(connection, definition, row, after, changes, facts, now)

    def _move_blindly(
        self, connection: Connection, row: Row[Any], event_type: str, now: Millis, why: str
    ) -> list[Entry]:
        """A run whose version can't be used here can still be stopped; otherwise it waits for a process that can use it."""
        if event_type in self._library.stops(connection, row.scenario, row.version):
            return self.end_in(connection, row, f"{event_type} came", now)
        log.warning(f"an event does not reach a run: {why}", run=row.run_id, key=row.key)
        return []

    def _start(
        self, connection: Connection, match: Match, event: Event, number: int, now: Millis
    ) -> list[Entry]:
        definition, facts = match.definition, match.facts
        if definition.entity and facts.entity is None:
            log.warning(
                f"{event.event_type} started no {definition.scenario}: there is no {definition.entity} "
                f"{match.entity_id}"
            )
            return []
        if not self.wants(match, event, now):
            return []
        last = store.latest(connection, definition.scenario, match.key)
        entries = []
        if last is not None:
            if definition.again == "never" or (last.status == "running" and definition.again != "restart"):
                return []
            if last.status == "running":
                entries += self.end_in(connection, last, f"started again by {event.event_type}", now)
        run = new_run(match, event, number, (last.generation if last else 0) + 1, now)
        self._library.keep(connection, definition)
        store.add(connection, run, definition.entity)
        after, changes = moves.begin(definition, run, facts, now)
        return entries + self.saver.save(connection, definition, None, after, changes, facts, now)

    def wants(self, match: Match, event: Event, now: Millis) -> bool:
        """Whether the scenario begins a run for this."""
        definition = match.definition
        run = run_to_be(definition, event, match.entity_id, now)
        try:
            return flow.is_wanted(definition, run, match.facts, now)
        except ExpressionFailed as error:
            log.warning(f"{definition.scenario} was not started: {error}")
            return False

    # ── Entities that change ──────────────────────────────────────────────────────────────────────────────────────

    def changed_in(
        self,
        connection: Connection,
        kind: str,
        entity_id: str,
        fetched: Fetched | None = None,
        *,
        refresh: bool = False,
    ) -> list[Entry]:
        """In the transaction that changes an entity: its runs look at their dates anew. Then `follow` what it returns.

        With `refresh`, the jobs that stay pending get their data anew.
        """
        store.lock_entities(connection, [(kind, entity_id)])
        entries, now = [], self._clock.now()
        for row in store.living(connection, [], [(kind, entity_id)]):
            entries += self._move(connection, row, "", fetched or Fetched(), now, refresh=refresh)
        return entries

    async def changed(self, kind: str, entity_id: str) -> None:
        """An entity has changed: its runs check their dates, and their jobs get its new data."""
        fetched = await self._facts.fetch(kind, entity_id)

        def change(connection: Connection) -> list[Entry]:
            return self.changed_in(connection, kind, entity_id, fetched, refresh=True)

        await self.follow(await self._database.write(change))

    # ── Stopping ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def stop(self, scenario: str, key: str, reason: str) -> Stopped | None:
        """Stop the running run of a key, so that no further send begins; None if there is none."""

        def end(connection: Connection) -> tuple[Row[Any] | None, list[Entry]]:
            store.lock_keys(connection, [(scenario, key)])
            living = store.living(connection, [(scenario, key)], [])
            if not living:
                return None, []
            return living[0], self.end_in(connection, living[0], reason, self._clock.now())

        row, entries = await self._database.write(end)
        if row is None:
            return None
        fault_point("scenario.stopped")
        await self._outbox.follow(entries)
        return await self.answer(row)

    async def stop_run(self, run_id: str, reason: str) -> Stopped | None:
        """The same for a run by its id."""
        row = await self._database.read(lambda connection: store.read(connection, run_id))
        if row is None or row.status != "running":
            return None
        return await self.stop(row.scenario, row.key, reason)

    def end_in(self, connection: Connection, row: Row[Any], reason: str, now: Millis) -> list[Entry]:
        """Stop a running run, in a transaction that has locked it. Then pass the result to `follow`, and call `answer`."""
        after, changes = moves.stop(store.restored(row), reason, now)
        return self.saver.save(connection, None, row, after, changes, None, now)

    async def answer(self, row: Row[Any]) -> Stopped:
        """Wait briefly for a message that was being sent when the run was stopped; the answer says so."""
        stopped = Stopped(row.run_id, row.scenario, row.key)
        if not store.is_held(row, self._clock.now()):
            return stopped
        if row.held_by == HOLDING.get():  # whoever asks is the one who is waited for
            return replace(stopped, on_its_way=row.armed_step, is_still_sending=True)
        for _ in range(STOP_TIMEOUT // LOOK_AGAIN):
            current = await self._database.read(lambda connection: store.read(connection, row.run_id))
            if current is None or not store.is_held(current, self._clock.now()):
                return replace(stopped, on_its_way=row.armed_step)
            await asyncio.sleep(LOOK_AGAIN / 1000)  # a real message takes real time
        return replace(stopped, on_its_way=row.armed_step, is_still_sending=True)


def new_run(match: Match, event: Event, number: int, generation: int, now: Millis) -> Run:
    """A run that this event begins; `number` is what the event is known by."""
    definition = match.definition
    return Run(
        id=store.run_id_of(definition.scenario, match.key, number),
        scenario=definition.scenario,
        key=match.key,
        generation=generation,
        version=definition.version,
        started_at=now,
        event=event.model_dump(mode="json"),
        entity_id=match.entity_id,
        user_id=event.person_id,
        since=now,
        heard=number,
        heard_at_start=number,
    )


__all__ = ["ScenarioEngine", "Stopped", "UnknownScenario"]
