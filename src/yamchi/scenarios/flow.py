"""What happens next in a run: one pure function decides. `moves` computes the run's state after the decision.

The engine executes the answers of `decide`; simulation, timeline and migration print them. Nothing here waits, reads
a clock or speaks to a database, so the same run, the same things known and the same moment give the same answer everywhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from zoneinfo import ZoneInfo

from yamchi.clock import Millis, describe_span, isoformat
from yamchi.scenarios.definition import Definition, Step
from yamchi.scenarios.entities import Entity
from yamchi.scenarios.expressions import ExpressionFailed, holds

Status = Literal["running", "finished", "stopped", "failed"]
StepState = Literal["armed", "running", "done", "skipped", "cancelled", "failed"]

UTC_ZONE = ZoneInfo("UTC")


@dataclass(frozen=True, slots=True)
class Armed:
    """The pending step, its number, and when it is due; `due` None: it waits for an event without a limit."""

    step: str
    arming: int
    due: Millis | None


@dataclass(frozen=True, slots=True)
class Run:
    """A run: one key on its way through one version of a scenario."""

    id: str
    scenario: str
    key: str
    generation: int
    version: str
    started_at: Millis
    event: Mapping[str, Any]
    """The event that started it."""

    entity_id: str | None = None
    user_id: str | None = None
    status: Status = "running"
    reason: str | None = None
    ended_at: Millis | None = None
    position: str | None = None
    since: Millis = 0
    """When the previous step ended."""

    heard: int = 0
    """The number of the last event that does not count for `wait_for`: it came before the previous step began, or that step
    waited for it."""

    heard_at_start: int = 0
    armed: Armed | None = None
    armings: Mapping[str, int] = field(default_factory=dict)
    anchors: Mapping[str, Millis | None] = field(default_factory=dict)
    """The moment for which each step with `at` was last decided."""

    repeats: Mapping[str, int] = field(default_factory=dict)
    """For an arming that repeats an earlier one (`email1.2`), the number of the first: both have the same message."""

    done: frozenset[str] = frozenset()

    def message_of(self, step: str, arming: int) -> int:
        """The arming that names this one's message, so that a letter that has left does not leave again."""
        return self.repeats.get(f"{step}.{arming}", arming)


@dataclass(frozen=True, slots=True)
class Heard:
    """An event for the run's key, with its number."""

    number: int
    type: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything besides the run that a decision may look at."""

    entity: Entity | None = None
    user: Mapping[str, Any] = field(default_factory=dict)
    zone: ZoneInfo = UTC_ZONE
    events: Sequence[Heard] = ()
    last_event: int = 0


# ── What may be decided ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Arm:
    """Make this step pending until this moment, or until its event comes."""

    step: Step
    due: Millis | None
    anchor: Millis | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """The pending step is not due yet."""

    until: Millis | None


@dataclass(frozen=True, slots=True)
class Perform:
    """Do this step now."""

    step: Step


@dataclass(frozen=True, slots=True)
class Skip:
    """Do not do this step, and why."""

    step: Step
    reason: str
    anchor: Millis | None = None


@dataclass(frozen=True, slots=True)
class PassOver:
    """This step was done before the date moved."""

    step: Step


@dataclass(frozen=True, slots=True)
class Received:
    """The event that was waited for has come."""

    step: Step
    event: Heard


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The event that was waited for has not come in time."""

    step: Step


@dataclass(frozen=True, slots=True)
class Fail:
    """A condition of this step can't be evaluated; a retry would not help."""

    step: Step
    reason: str


@dataclass(frozen=True, slots=True)
class Rewind:
    """A date has moved: go back to the first step that depends on it."""

    step: Step
    reason: str


@dataclass(frozen=True, slots=True)
class Over:
    """The run has no next step."""

    reason: str | None = None


Decision = Arm | Wait | Perform | Skip | PassOver | Received | TimedOut | Fail | Rewind | Over


def decide(definition: Definition, run: Run, facts: Facts, now: Millis) -> Decision:
    """The next decision for this run."""
    if run.status != "running":
        return Over(run.reason)
    if moved := _moved(definition, run, facts):
        return moved
    if run.position is None:
        return Over()
    step = definition.step(run.position)
    return _due(definition, run, step, facts, now) if run.armed else _next(run, step, facts, now, definition)


def is_wanted(definition: Definition, run: Run, facts: Facts, now: Millis) -> bool:
    """Whether a run begins at all, by the scenario's own `when`."""
    return definition.when is None or holds(
        definition.when, values_of(definition, run, facts, now), facts.zone.key
    )


def _moved(definition: Definition, run: Run, facts: Facts) -> Rewind | None:
    for step in definition.steps:
        if step.job in run.anchors:
            moment, _ = anchor_of(definition, run, step, facts)
            if moment != run.anchors[step.job]:
                path = step.moment.path if step.moment else ""
                return Rewind(step, f"{path} is {_said(moment, step)} now")
        if step.job == run.position:
            break
    return None


def _said(moment: Millis | None, step: Step) -> str:
    return "empty or unreadable" if moment is None else f"such that {step.job} is due {isoformat(moment)}"


def _next(run: Run, step: Step, facts: Facts, now: Millis, definition: Definition) -> Decision:
    """Decide about the step at the run's position, which is not pending yet."""
    if step.moment is None and step.job in run.done:
        return PassOver(step)
    if step.wait_for is not None:
        if event := _awaited(run, step, facts):
            return Received(step, event)
        return Arm(step, None if step.longest_wait is None else run.since + step.longest_wait)
    if step.moment is None:
        return Arm(step, run.since + step.delay)
    due, problem = anchor_of(definition, run, step, facts)
    if due is None:
        return Skip(step, f"{step.moment.path}: {problem}")
    if due >= now:
        return Arm(step, due, due)
    if step.past == "now":
        return Arm(step, now, due)
    return Skip(step, f"its moment, {isoformat(due)}, had passed already", due)


def _due(definition: Definition, run: Run, step: Step, facts: Facts, now: Millis) -> Decision:
    """Decide about the pending step."""
    assert run.armed is not None
    due = run.armed.due
    if event := _awaited(run, step, facts):
        return Received(step, event)
    if due is None or now < due:
        return Wait(due)
    if step.wait_for is not None:
        return TimedOut(step)
    if step.lateness is not None and now > due + step.lateness:
        return Skip(step, f"it was {describe_span(now - due)} late, more than its {step.expires}")
    return _conditions(definition, run, step, facts, now)


def _conditions(definition: Definition, run: Run, step: Step, facts: Facts, now: Millis) -> Decision:
    if definition.entity and facts.entity is None:
        return Skip(step, f"there is no {definition.entity} {run.entity_id} any more")
    values = values_of(definition, run, facts, now)
    try:
        if step.unless is not None and holds(step.unless, values, facts.zone.key):
            return Skip(step, f"unless: {step.unless}")
        if step.when is not None and not holds(step.when, values, facts.zone.key):
            return Skip(step, f"when: {step.when} does not hold")
    except ExpressionFailed as error:
        return Fail(step, str(error))
    return Perform(step)


def _awaited(run: Run, step: Step, facts: Facts) -> Heard | None:
    """The first event that this step waits for, if it has come."""
    floor = run.heard_at_start if step.since == "start" else run.heard
    return next(
        (event for event in facts.events if event.type == step.wait_for and event.number > floor), None
    )


def anchor_of(definition: Definition, run: Run, step: Step, facts: Facts) -> tuple[Millis | None, str | None]:
    """When a step with `at` is due by the newest date; None and a reason if there is no such moment."""
    if step.moment is None:
        return None, None
    try:
        return step.moment.moment(_look_up(definition, run, facts, step.moment.path), facts.zone), None
    except (ValueError, OverflowError) as error:
        return None, str(error)


def _look_up(definition: Definition, run: Run, facts: Facts, path: str) -> Any:
    """A value by its path: of the entity, or `event.data.x`, `user.x`; a bare name is a field of the entity or the event."""
    head, *rest = path.split(".")
    fields = facts.entity.fields if facts.entity else {}
    data = run.event.get("data") or {}
    roots: dict[str, Any] = {"event": run.event, "user": facts.user, definition.entity or "": fields}
    if not rest and head not in roots:
        return fields.get(head) if head in fields or definition.entity else data.get(head)
    value: Any = roots.get(head, fields.get(head))
    for name in rest:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def values_of(definition: Definition, run: Run, facts: Facts, now: Millis) -> dict[str, Any]:
    """What expressions and templates of a scenario see."""
    values: dict[str, Any] = {
        "event": dict(run.event),
        "user": dict(facts.user),
        "now": isoformat(now),
        "run": {
            "id": run.id,
            "scenario": run.scenario,
            "key": run.key,
            "started_at": isoformat(run.started_at),
        },
    }
    if definition.entity:
        fields = facts.entity.fields if facts.entity else {}
        values[definition.entity] = {"id": run.entity_id, **fields}
    return values
