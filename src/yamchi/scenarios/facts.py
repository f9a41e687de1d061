"""What is known at the moment of a decision, read in the same transaction as the run wherever that is possible."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from yamchi.notifications.channels.base import Recipient
from yamchi.notifications.people.quiet_hours import zone_of
from yamchi.notifications.people.recipients import Recipients, as_template_data
from yamchi.notifications.schemas.event import Event
from yamchi.scenarios import store
from yamchi.scenarios.definition import Definition
from yamchi.scenarios.entities import Entity, EntityKinds, TransactionalEntities
from yamchi.scenarios.flow import Facts, Run


@dataclass
class Fetched:
    """Entities that are kept elsewhere, fetched right before the transaction."""

    entities: dict[tuple[str, str], Entity | None] = field(default_factory=dict)


class FactReader:
    """Puts together what a decision may look at."""

    def __init__(self, kinds: EntityKinds, recipients: Recipients, default_zone: str) -> None:
        self._kinds = kinds
        self._recipients = recipients
        self._default_zone = default_zone

    # ── Before a transaction ──────────────────────────────────────────────────────────────────────────────────────

    async def fetch_for(self, events: Sequence[Event]) -> Fetched:
        """Tell stores outside the database of these events, and get the entities that they concern."""
        fetched = Fetched()
        for kind in self._kinds:
            entities = self._kinds.of(kind)
            if isinstance(entities, TransactionalEntities):
                continue
            for event in events:
                if (entity_id := entities.id_of(event)) is not None:
                    await entities.note(event)
                    fetched.entities[kind, entity_id] = await entities.get(entity_id)
        return fetched

    async def fetch(self, kind: str | None, entity_id: str | None) -> Fetched:
        """The same for one entity, if it is kept elsewhere."""
        fetched = Fetched()
        if kind and entity_id and kind in self._kinds:
            entities = self._kinds.of(kind)
            if not isinstance(entities, TransactionalEntities):
                fetched.entities[kind, entity_id] = await entities.get(entity_id)
        return fetched

    # ── In a transaction ──────────────────────────────────────────────────────────────────────────────────────────

    def concerned(self, event: Event) -> dict[str, str]:
        """The entities that an event concerns, by kind."""
        found = {kind: self._kinds.of(kind).id_of(event) for kind in self._kinds}
        return {kind: entity_id for kind, entity_id in found.items() if entity_id is not None}

    def note(self, connection: Connection, event: Event, kinds: Iterable[str]) -> None:
        """Tell the stores inside the database of an event that concerns an entity of theirs."""
        for kind in kinds:
            entities = self._kinds.of(kind)
            if isinstance(entities, TransactionalEntities):
                entities.note_in(connection, event)

    def entity(
        self, connection: Connection, kind: str | None, entity_id: str | None, fetched: Fetched
    ) -> Entity | None:
        if kind is None or entity_id is None or kind not in self._kinds:
            return None
        entities = self._kinds.of(kind)
        if isinstance(entities, TransactionalEntities):
            return entities.get_in(connection, entity_id)
        return fetched.entities.get((kind, entity_id))

    def of(self, connection: Connection, definition: Definition, run: Run, fetched: Fetched) -> Facts:
        entity = self.entity(connection, definition.entity, run.entity_id, fetched)
        user = self._user(connection, run.user_id)
        events, last = store.heard(connection, definition, run)
        return Facts(entity, _known(user), self._zone(entity, user), events, last)

    def at_start(
        self,
        connection: Connection,
        definition: Definition,
        event: Event,
        entity_id: str | None,
        fetched: Fetched,
    ) -> Facts:
        """Before there is a run."""
        entity = self.entity(connection, definition.entity, entity_id, fetched)
        user = self._user(connection, event.person_id)
        return Facts(entity, _known(user), self._zone(entity, user))

    def recipient(self, connection: Connection, run: Run, facts: Facts) -> Recipient:
        """Whom to write to: the person behind the entity, or the one whom the event named."""
        person = facts.entity.recipient if facts.entity else self._user(connection, run.user_id)
        return replace(person or Recipient(), timezone=facts.zone.key)

    def zone_of(self, entity: Entity | None, asked: str | None = None) -> ZoneInfo:
        return zone_of(asked, self._default_zone) if asked else self._zone(entity, None)

    def _user(self, connection: Connection, user_id: str | None) -> Recipient | None:
        return None if user_id is None else self._recipients.get_in(connection, user_id)

    def _zone(self, entity: Entity | None, user: Recipient | None) -> ZoneInfo:
        named = (entity and (entity.zone or entity.recipient.timezone)) or (user and user.timezone)
        return zone_of(named or None, self._default_zone)


def _known(user: Recipient | None) -> Mapping[str, Any]:
    return as_template_data(user) if user else {}
