"""A run without a queue, a database or a letter: what it would do from a given start, by the engine's own decisions.

Sends are taken to succeed. What happens on the way (events, and what they change of the entity) can be given.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from yamchi.clock import Millis
from yamchi.scenarios import flow, moves
from yamchi.scenarios.definition import Definition, Step
from yamchi.scenarios.expressions import ExpressionFailed, fill
from yamchi.scenarios.flow import Facts, Fail, Heard, Perform, Run
from yamchi.scenarios.moves import StepChange

MOST_CHANGES = 10_000
"""No run that makes sense has more; a simulation must end."""


@dataclass(frozen=True, slots=True)
class Happening:
    """An event on the way, and the fields of the entity as they are afterwards."""

    at: Millis
    type: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Simulation:
    """The run as it ended, or as it still waits, and every change of a step in order."""

    definition: Definition
    run: Run
    facts: Facts
    changes: list[StepChange] = field(default_factory=list)
    has_called: bool = False
    """Whether a function of one's own would have been called: what it returns is not known here."""

    def _moved(self, moved: moves.Moved) -> None:
        self.run, changes = moved
        self.changes += changes

    def begin(self, now: Millis) -> None:
        self._moved(moves.begin(self.definition, self.run, self.facts, now))

    def happen(self, happening: Happening) -> None:
        """As when an event is stored: the entity first, then the run."""
        entity = self.facts.entity
        if entity and happening.fields:
            entity = replace(entity, fields={**entity.fields, **happening.fields})
        number = self.facts.last_event + 1
        heard = Heard(number, happening.type)
        self.facts = replace(self.facts, entity=entity, events=[*self.facts.events, heard], last_event=number)
        self._moved(moves.hear(self.definition, self.run, self.facts, happening.type, happening.at))

    def fire(self, now: Millis) -> None:
        """As when the pending step's job is run."""
        decision, self.run, changes = moves.fire(self.definition, self.run, self.facts, now)
        self.changes += changes
        match decision:
            case Perform(step=step):
                self._perform(step, now)
            case Fail(reason=reason):
                self._moved(moves.fail(self.definition, self.run, self.facts, now, reason))

    def _perform(self, step: Step, now: Millis) -> None:
        self.has_called = self.has_called or step.call is not None
        try:
            self.facts = self._after(step, now)
        except ExpressionFailed as error:
            if not self.has_called:
                self._moved(moves.fail(self.definition, self.run, self.facts, now, str(error)))
                return
        heard = self.facts.last_event
        self._moved(moves.complete(self.definition, self.run, self.facts, now, heard=heard))
        if step.emit:
            self.happen(Happening(now, step.emit.event))

    def _after(self, step: Step, now: Millis) -> Facts:
        """What is known when the step is done. Its templates are filled in as the engine does, which may fail."""
        facts, zone = self.facts, self.facts.zone.key
        values = flow.values_of(self.definition, self.run, facts, now)
        if step.send:
            fill([step.send.to, step.send.locale, step.send.data], values, zone)
        fields = fill(step.set, values, zone)
        fill(step.log, values, zone)
        if facts.entity and fields:
            entity = replace(facts.entity, fields={**facts.entity.fields, **fields})
            facts = replace(facts, entity=entity)
        if step.emit:
            fill(step.emit.data, flow.values_of(self.definition, self.run, facts, now), zone)
        return facts


def simulate(
    definition: Definition,
    run: Run,
    facts: Facts,
    now: Millis,
    history: Iterable[Happening] = (),
    until: Millis | None = None,
) -> Simulation:
    """Play a run from its start. An event and a timer of the same moment: the event is first."""
    if why := _why_not(definition, run, facts, now):
        return Simulation(
            definition, replace(run, status="stopped", reason=f"it is not started: {why}"), facts
        )
    simulation = Simulation(definition, run, facts)
    simulation.begin(now)
    ahead = sorted(history, key=lambda happening: happening.at)
    play(simulation, ahead, until)
    return simulation


def _why_not(definition: Definition, run: Run, facts: Facts, now: Millis) -> str | None:
    try:
        is_wanted = flow.is_wanted(definition, run, facts, now)
    except ExpressionFailed as error:
        return str(error)
    return None if is_wanted else f"when: {definition.when} does not hold"


def play(simulation: Simulation, ahead: list[Happening], until: Millis | None = None) -> None:
    """Let time pass for a run that has begun, until nothing is due."""
    while simulation.run.status == "running" and len(simulation.changes) < MOST_CHANGES:
        armed = simulation.run.armed
        due = armed.due if armed else None
        if ahead and (due is None or ahead[0].at <= due):
            simulation.happen(ahead.pop(0))
        elif due is None or (until is not None and due > until):
            return
        else:
            simulation.fire(due)
