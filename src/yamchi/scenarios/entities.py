"""What a scenario works on: a lead, an order, a booking. Whoever keeps such things tells the engine how.

class Orders:                                        # ten lines are enough for a store of one's own
    def id_of(self, event): return event.data.get("order_id")
    async def get(self, entity_id): return Entity(entity_id, {"paid": True}, zone="Asia/Almaty")
    async def note(self, event): ...                 # what the event says of the order: its date, its state
    async def apply(self, entity_id, change): ...    # fields by value, the log line under its step's id

app.scenarios.entities.register("order", Orders())

A store in Yamchi's own database also has `get_in`, `note_in` and `apply_in`, which do the same on the connection of the
engine's transaction; then a step's fields, its log line and the next step are written together or not at all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from sqlalchemy import Connection

from yamchi.clock import Millis
from yamchi.errors import ConfigurationError
from yamchi.notifications.channels.base import Recipient
from yamchi.notifications.schemas.event import Event


@dataclass(frozen=True, slots=True)
class Entity:
    """One of them, as it is now. Expressions and templates see `fields` under the name of the kind: `lead.email`."""

    id: str
    fields: Mapping[str, Any]
    zone: str | None = None
    """Whose clock local times mean; None: the person's, else DEFAULT_TIMEZONE."""

    recipient: Recipient = field(default_factory=Recipient)
    """Where the person behind it is reached, by channel, and in which language."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of an entity's log. The same `id` again is the same line: look for it before appending."""

    id: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """What a step writes. Applying it a second time must change nothing."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    log: LogLine | None = None

    def __bool__(self) -> bool:
        return bool(self.fields or self.log)


@runtime_checkable
class Entities(Protocol):
    """A kind of entity, wherever it is kept."""

    def id_of(self, event: Event) -> str | None:
        """The entity that this event concerns; None if it concerns none of this kind."""

    async def get(self, entity_id: str) -> Entity | None:
        """The newest state; None if there is no such entity."""

    async def note(self, event: Event) -> None:
        """Take over what an event says of its entity. Told before scenarios are, once or more often."""

    async def apply(self, entity_id: str, change: Change) -> None:
        """Set these fields and append this log line."""


@runtime_checkable
class TransactionalEntities(Entities, Protocol):
    """A kind of entity that is kept in Yamchi's own database."""

    def get_in(self, connection: Connection, entity_id: str) -> Entity | None:
        """`get`, in the caller's transaction."""

    def note_in(self, connection: Connection, event: Event) -> None:
        """`note`, in the transaction that stores the event."""

    def apply_in(self, connection: Connection, entity_id: str, change: Change) -> None:
        """`apply`, in the caller's transaction."""


@runtime_checkable
class ImaginableEntities(Entities, Protocol):
    """A kind of entity that can be made up, so that a simulation has something to show."""

    def imagine(self, data: Mapping[str, Any], now: Millis) -> Entity:
        """One as it might be once an event with this data has come."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """What was made of that which another program's job tells of an entity."""

    outdated: str | None = None
    """Why the job is of no use any more: it tells of a date that has moved since."""


@runtime_checkable
class AdoptingEntities(TransactionalEntities, Protocol):
    """A kind of entity of which other programs' jobs may tell what is not known here."""

    async def bring(self, entity_id: str) -> None:
        """Take in one that another program keeps where we can look, before its job is taken."""

    def adopt_in(self, connection: Connection, event: Event, starts: Sequence[str]) -> Adopted | None:
        """Keep what a job tells of its entity, as `event.data`, where nothing is known; None if that changes nothing.

        `starts`: the events that begin the scenario of the job. Where one of them makes an entity, so may the job.
        """


class EntityKinds:
    """The kinds that this application knows, by name."""

    def __init__(self) -> None:
        self._kinds: dict[str, Entities] = {}

    def register(self, kind: str, entities: Entities) -> None:
        """Let scenarios say `entity: <kind>`. A kind registered again replaces the one before."""
        if not kind.isidentifier() or kind in RESERVED:
            raise ConfigurationError(
                f"A kind of entity can't be named {kind!r}: use a name like 'lead' that is none of {', '.join(RESERVED)}."
            )
        self._kinds[kind] = entities

    def __contains__(self, kind: str) -> bool:
        return kind in self._kinds

    def __iter__(self) -> Any:
        return iter(self._kinds)

    @property
    def are_all_inside(self) -> bool:
        """Whether all of them are kept in Yamchi's own database."""
        return all(isinstance(one, TransactionalEntities) for one in self._kinds.values())

    def of(self, kind: str) -> Entities:
        try:
            return self._kinds[kind]
        except KeyError:
            known = ", ".join(self._kinds) or "none"
            raise ConfigurationError(
                f"Nobody keeps entities of the kind {kind!r}; registered are: {known}. "
                f"Register one with app.scenarios.entities.register({kind!r}, …)."
            ) from None


RESERVED = ("event", "user", "now", "run", "links")
"""Names that expressions and templates have for something else."""
