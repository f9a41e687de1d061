"""What a person does to a run: by a button in a chat, by a link in a letter, or at the board.

A link is signed, lives for a while and works once. Opening it changes nothing, since mail scanners open links too: the
page has one button, and that acts. A link of a message whose date has moved since does nothing either, nor does a button.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, Row, select

from yamchi.clock import Clock, Millis, Span
from yamchi.errors import UnknownJob, WrongState
from yamchi.http.links import Links
from yamchi.notifications.tables import notification_delivery as deliveries
from yamchi.scenarios import flow, store
from yamchi.scenarios.definition import STOP, Action, Definition
from yamchi.scenarios.entities import Change, Entities, EntityKinds, LogLine, TransactionalEntities
from yamchi.scenarios.expressions import fill
from yamchi.scenarios.facts import FactReader, Fetched
from yamchi.scenarios.flow import Run
from yamchi.scenarios.library import Library
from yamchi.scenarios.outbox import Entry
from yamchi.scenarios.scenario_engine import ScenarioEngine, Stopped
from yamchi.scenarios.store import StepId
from yamchi.scenarios.tables import scenario_acts as table
from yamchi.scenarios.tables import scenario_runs as runs
from yamchi.scenarios.tables import scenario_steps as steps
from yamchi.storage.database import Database

PURPOSE = "scenario"
PATH = "/act"


class DeadLink(WrongState):
    """A link that does nothing any more, and why."""


@dataclass(frozen=True, slots=True)
class Link:
    """What a link lets its holder do, for which message."""

    step: StepId
    action: str

    @property
    def id(self) -> str:
        return sha256(f"{self.step}\n{self.action}".encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Acted:
    """What became of it."""

    scenario: str
    key: str
    action: str
    stopped: Stopped | None = None


class Actions:
    """Does what buttons and links ask for, each once."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        library: Library,
        kinds: EntityKinds,
        facts_reader: FactReader,
        engine: ScenarioEngine,
        tokens: Links,
        base: str | None,
        lifetime: Span,
    ) -> None:
        self._database = database
        self._clock = clock
        self._library = library
        self._kinds = kinds
        self._facts = facts_reader
        self._engine = engine
        self._tokens = tokens
        self._base = base
        self._lifetime = lifetime
        self._note = database.insert(table).on_conflict_do_nothing()

    # ── Links ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def links(self, definition: Definition, run: Run) -> Mapping[str, str]:
        """The addresses for a message of the pending step, by action; none where nobody knows our address."""
        if self._base is None or run.armed is None or not definition.actions:
            return {}
        step = StepId(run.id, run.armed.step, run.armed.arming)
        names = [*definition.actions, *([] if STOP in definition.actions else [STOP])]
        return {name: await self.url(Link(step, name)) for name in names}

    async def url(self, link: Link) -> str:
        token = await self._tokens.make(PURPOSE, f"{link.step}\n{link.action}", ttl=self._lifetime)
        return f"{self._base}{PATH}/{token}"

    async def read(self, token: str) -> Link:
        """What a link says; refused if it is none of ours, or too old, or was used."""
        step, _, action = (await self._tokens.read(PURPOSE, token)).partition("\n")
        id = StepId.read(step)
        if id is None:
            raise DeadLink("This link was not made here.")
        link = Link(id, action)
        used = select(table.c.act_id).where(table.c.act_id == link.id)
        if await self._database.first(used):
            raise DeadLink("This link has been used already: nothing was changed again.")
        return link

    # ── Acting ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def follow_link(self, token: str) -> Acted:
        """Do what a link says, once."""
        link = await self.read(token)
        row = await self._database.read(lambda connection: store.read(connection, link.step.run_id))
        if row is None:
            raise DeadLink("What this link was about is over.")
        return await self._act(row.scenario, row.key, link.action, f"link:{link.step}", link)

    async def act(self, scenario: str, key: str, action: str, *, by: str) -> Acted:
        """Do what a button says, for whoever has shown that it is theirs to press: `act("lesson_reminders", lead_id, "confirm", by="telegram:123")`."""
        return await self._act(scenario, key, action, by, None)

    async def is_latest_word(self, kind: str, entity_id: str, channel: str, message: str) -> bool:
        """Whether the date that a message about an entity tells of still holds: for buttons, which know only their message.

        `message` is its id at the channel's provider. Of one that no step has sent, nothing is known against it.
        """
        fetched = await self._facts.fetch(kind, entity_id)

        def look(connection: Connection) -> bool:
            step = _sender(connection, kind, entity_id, channel, message)
            sender = None if step is None else store.read(connection, step.run_id)
            newest = None if sender is None else store.latest(connection, sender.scenario, sender.key)
            if step is None or newest is None:
                return True
            return self._why_outdated(connection, store.restored(newest), step, fetched) is None

        return await self._database.read(look)

    async def _act(self, scenario: str, key: str, action: str, by: str, link: Link | None) -> Acted:
        row = await self._database.read(lambda connection: store.latest(connection, scenario, key))
        kind, entity_id = (row.entity_kind, row.entity_id) if row else (None, None)
        newest = fetched = await self._facts.fetch(kind, entity_id)
        asked = _Asked(scenario, key, action, by, link, self._clock.now())
        entities = self._kinds.of(kind) if kind else None
        if entities and not isinstance(entities, TransactionalEntities):
            await self._change_elsewhere(entities, asked, fetched)
            newest = await self._facts.fetch(kind, entity_id)

        def do(connection: Connection) -> tuple[_Act, list[Entry]]:
            store.lock_entities(connection, [(kind, entity_id)] if kind and entity_id else [])
            act, entries = self._do(connection, asked, fetched)
            if act.change.fields and kind and entity_id:
                entries += self._engine.changed_in(connection, kind, entity_id, newest)
            return act, entries

        act, entries = await self._database.write(do)
        await self._engine.follow(entries)
        stopped = await self._engine.answer(act.row) if act.is_stop else None
        return Acted(scenario, key, action, stopped)

    async def _change_elsewhere(self, entities: Entities, asked: "_Asked", fetched: Fetched) -> None:
        """An entity whose store has no transactions is changed first: a link that is used up has done what it says.

        Interrupted, it is done again: fields by value, the log line by its id.
        """
        act = await self._database.read(lambda connection: self._plan(connection, asked, fetched))
        if act.change:
            await entities.apply(act.row.entity_id, act.change)

    def _do(self, connection: Connection, asked: "_Asked", fetched: Fetched) -> "tuple[_Act, list[Entry]]":
        """Everything that a button or link does, in one transaction: the entity, the events, the end of the run."""
        store.lock_keys(connection, [(asked.scenario, asked.key)])
        act = self._plan(connection, asked, fetched, lock=True)
        run, definition = act.run, act.definition
        self._use_up(connection, run, asked)
        entities = self._kinds.of(definition.entity) if definition.entity else None
        if act.change and run.entity_id and isinstance(entities, TransactionalEntities):
            entities.apply_in(connection, run.entity_id, act.change)
        entries = []
        if act.meant.emit:
            event = act.meant.emit.event
            entries.append(
                self._engine.saver.emit(connection, run, definition, f"act.{act.id}", event, act.told)
            )
        if act.is_stop:
            entries += self._engine.end_in(connection, act.row, f"{asked.action} by {asked.by}", asked.at)
        return act, entries

    def _plan(
        self, connection: Connection, asked: "_Asked", fetched: Fetched, *, lock: bool = False
    ) -> "_Act":
        """What would be done; refused if the link does nothing any more."""
        row = store.latest(connection, asked.scenario, asked.key, lock=lock)
        if row is None:
            raise UnknownJob(f"The scenario {asked.scenario!r} has no run of {asked.key!r}.")
        run = store.restored(row)
        definition = self._library.version(connection, run.scenario, run.version)
        meant = _meaning(definition, asked.action)
        facts = self._facts.of(connection, definition, run, fetched)
        if asked.link and (why := self._why_outdated(connection, run, asked.link.step, fetched)):
            raise DeadLink(why)
        values = {**flow.values_of(definition, run, facts, asked.at), "by": asked.by}
        act_id = asked.link.id if asked.link else f"{run.id}.{asked.action}.{asked.at}"
        text = fill(meant.log, values, facts.zone.key) if meant.log else None
        change = Change(fill(meant.set, values, facts.zone.key), LogLine(act_id, str(text)) if text else None)
        told = {**fill(meant.emit.data, values, facts.zone.key), "by": asked.by} if meant.emit else {}
        return _Act(act_id, row, run, definition, meant, change, told)

    def _why_outdated(
        self, connection: Connection, newest: Run, sender: StepId, fetched: Fetched
    ) -> str | None:
        """Why a step's message is not the latest word on its date any more, or that is not the date; None if all is as it says.

        What a run of before said of a date holds as long as the date does: whoever books the same once more begins another run.
        """
        row = None if newest.id == sender.run_id else store.read(connection, sender.run_id)
        run = newest if row is None else store.restored(row)
        definition, step = self._library.version(connection, run.scenario, run.version), sender.step
        is_dated = step in run.anchors and step in definition.places
        is_latest = run.message_of(step, run.armings.get(step, 0)) == run.message_of(step, sender.arming)
        if run.id != sender.run_id or not is_latest or not (is_dated or run is newest):
            return "The date has changed since this message was sent: use the newest one."
        if is_dated:
            facts = self._facts.of(connection, definition, run, fetched)
            moment, _ = flow.anchor_of(definition, run, definition.step(step), facts)
            if moment != run.anchors[step]:
                return "What this message was about has been cancelled, or has another date now."
        return None

    def _use_up(self, connection: Connection, run: Run, asked: "_Asked") -> None:
        """A link works once."""
        if asked.link is None:
            return
        done = {"action": asked.action, "done_by": asked.by, "done_at": asked.at}
        row = {"act_id": asked.link.id, "run_id": run.id, **done}
        if not connection.execute(self._note, row).rowcount:
            raise DeadLink("This link has been used already: nothing was changed again.")


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a button or a link asks for, and when."""

    scenario: str
    key: str
    action: str
    by: str
    link: Link | None
    at: Millis


@dataclass(frozen=True, slots=True)
class _Act:
    """What it means for the newest run of its key."""

    id: str
    row: Row[Any]
    run: Run
    definition: Definition
    meant: Action
    change: Change
    told: dict[str, Any]
    """What its event says."""

    @property
    def is_stop(self) -> bool:
        return self.meant.stop and self.run.status == "running"


def _sender(connection: Connection, kind: str, entity_id: str, channel: str, message: str) -> StepId | None:
    """The step of a run about this entity that sent a message. Of one in several parts, the last has the buttons."""
    of_entity = runs.c.entity_kind == kind, runs.c.entity_id == entity_id
    query = select(steps.c.run_id, steps.c.step, steps.c.arming).join(runs, runs.c.run_id == steps.c.run_id)
    found = [StepId(*row) for row in connection.execute(query.where(*of_entity))]
    ids = {str(id): id for id in found}
    sent = select(deliveries.c.event_id, deliveries.c.provider_message_id)
    for step, parts in connection.execute(
        sent.where(deliveries.c.event_id.in_(ids), deliveries.c.channel == channel)
    ):
        if parts and parts.split(",")[-1] == message:
            return ids[step]
    return None


def _meaning(definition: Definition, action: str) -> Action:
    if action in definition.actions:
        return definition.actions[action]
    if action == STOP:
        return Action(stop=True)
    known = ", ".join([*definition.actions, STOP])
    raise UnknownJob(f"The scenario {definition.scenario!r} has no action {action!r}; it has: {known}.")
