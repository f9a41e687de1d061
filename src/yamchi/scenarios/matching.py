"""Which scenarios an event concerns, and under which key."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from yamchi.clock import Millis
from yamchi.notifications.schemas.event import Event
from yamchi.scenarios import flow, store
from yamchi.scenarios.definition import Definition
from yamchi.scenarios.expressions import ExpressionFailed, fill
from yamchi.scenarios.facts import FactReader, Fetched
from yamchi.scenarios.flow import Facts, Run
from yamchi.scenarios.library import Library, Listening


@dataclass(frozen=True, slots=True)
class Match:
    """A scenario that an event concerns, by the key that the event has there."""

    definition: Definition
    key: str
    entity_id: str | None
    facts: Facts


class Matcher:
    """Finds the scenarios that events concern."""

    def __init__(self, library: Library, facts_reader: FactReader) -> None:
        self._library = library
        self._facts = facts_reader

    def matches(
        self,
        connection: Connection,
        listening: Listening,
        event: Event,
        concerned: dict[str, str],
        fetched: Fetched,
        now: Millis,
    ) -> list[Match]:
        """The scenarios that an event concerns, each by the key that the event has there."""
        return [
            match
            for definition in _one_for_each_key(listening.versions, event.event_type)
            if (match := self.match(connection, definition, event, concerned, fetched, now))
        ]

    def match(
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
        facts = self._facts.at_start(connection, definition, event, entity_id, fetched)
        values = flow.values_of(definition, run_to_be(definition, event, entity_id, now), facts, now)
        try:
            key = fill(definition.key, values, facts.zone.key)
        except ExpressionFailed:
            return None  # an event that lacks what the key is made of is not for this scenario
        if key is None or not 0 < len(str(key)) <= store.LONGEST_KEY:
            return None
        return Match(definition, str(key), entity_id, facts)

    def entities_of_runs(
        self, connection: Connection, events: Sequence[Event], fetched: Fetched, now: Millis
    ) -> set[tuple[str, str]]:
        """What the living runs of these events' keys are about, which need not be what the events are about."""
        listening = self._library.listening(connection, {event.event_type for event in events})
        keys = set()
        for event in events:
            about = self._facts.concerned(event)
            matches = self.matches(connection, listening, event, about, fetched, now)
            keys |= {(match.definition.scenario, match.key) for match in matches}
        return store.entities_of(connection, keys)

    def keys_of_no_entity(
        self,
        connection: Connection,
        listening: Listening,
        events: Sequence[Event],
        fetched: Fetched,
        now: Millis,
    ) -> Iterator[tuple[str, str]]:
        """The keys that are known before anything is changed. Those of an entity wait behind its lock."""
        alone = replace(listening, versions=[one for one in listening.versions if one.entity is None])
        for event in events:
            for match in self.matches(connection, alone, event, {}, fetched, now):
                yield match.definition.scenario, match.key


def _one_for_each_key(versions: Sequence[Definition], event_type: str) -> Iterable[Definition]:
    """Versions that make their key alike find the same one: the first of them, which is the one in force, stands for all."""
    concerned = (one for one in reversed(versions) if event_type in one.listens_to)
    return {(one.scenario, one.entity, one.key): one for one in concerned}.values()


def run_to_be(definition: Definition, event: Event, entity_id: str | None, now: Millis) -> Run:
    """A run to ask for its key: what expressions see before there is one."""
    said = event.model_dump(mode="json")
    return Run("", definition.scenario, "", 0, definition.version, now, said, entity_id, event.person_id)
