"""What happens next in a run: one pure function decides, and a few more say how the run looks afterwards.

The engine executes the answers of `decide`; simulation, timeline and migration print them. Nothing here waits, reads
a clock or speaks to a database, so the same run, the same things known and the same moment give the same answer everywhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from zoneinfo import ZoneInfo

from yamchi.clock import Millis, describe_span, isoformat
from yamchi.scenarios.definition import CONTINUE, END, STOP, Definition, Step
from yamchi.scenarios.entities import Entity
from yamchi.scenarios.expressions import ExpressionFailed, holds

Status = Literal["running", "finished", "stopped", "failed"]
StepState = Literal["armed", "running", "done", "skipped", "cancelled", "failed"]

UTC_ZONE = ZoneInfo("UTC")


@dataclass(frozen=True, slots=True)
class Armed:
    """The step that is pending, under which number, and when; `due` None: it waits for an event as long as it takes."""

    step: str
    arming: int
    due: Millis | None


@dataclass(frozen=True, slots=True)
class Run:
    """One way of one key through one version of a scenario."""

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
    """When the step before ended."""

    heard: int = 0
    """The number of the last event that was there when the step before was begun; later ones count for `wait_for`."""

    heard_at_start: int = 0
    armed: Armed | None = None
    armings: Mapping[str, int] = field(default_factory=dict)
    anchors: Mapping[str, Millis | None] = field(default_factory=dict)
    """For which moment each step with `at` was last considered."""

    done: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Heard:
    """An event that came for the run's key, by its number."""

    number: int
    type: str


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything besides the run that a decision may look at, as it is now."""

    entity: Entity | None = None
    user: Mapping[str, Any] = field(default_factory=dict)
    zone: ZoneInfo = UTC_ZONE
    events: Sequence[Heard] = ()
    last_event: int = 0


# ── What may be decided ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Arm:
    """Pend this step until this moment, or until its event comes."""

    step: Step
    due: Millis | None
    anchor: Millis | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """It is pending, and its moment has not come."""

    until: Millis | None


@dataclass(frozen=True, slots=True)
class Perform:
    """Do it now."""

    step: Step


@dataclass(frozen=True, slots=True)
class Skip:
    """Not this one, and why."""

    step: Step
    reason: str
    anchor: Millis | None = None


@dataclass(frozen=True, slots=True)
class PassOver:
    """This one was done before the date moved."""

    step: Step


@dataclass(frozen=True, slots=True)
class Received:
    """The event that was waited for has come."""

    step: Step
    type: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The event that was waited for has not come in time."""

    step: Step


@dataclass(frozen=True, slots=True)
class Fail:
    """It can't be decided, whatever is tried."""

    step: Step
    reason: str


@dataclass(frozen=True, slots=True)
class Rewind:
    """A date has moved: go back to the first step that hangs on it."""

    step: Step
    reason: str


@dataclass(frozen=True, slots=True)
class Over:
    """Nothing is left."""

    reason: str | None = None


Decision = Arm | Wait | Perform | Skip | PassOver | Received | TimedOut | Fail | Rewind | Over


@dataclass(frozen=True, slots=True)
class StepChange:
    """What becomes of one step's record."""

    step: str
    arming: int
    state: StepState
    at: Millis
    due: Millis | None = None
    reason: str | None = None


def decide(definition: Definition, run: Run, scene: Scene, now: Millis) -> Decision:
    """What is next for this run, when, or why not."""
    if run.status != "running":
        return Over(run.reason)
    if moved := _moved(definition, run, scene):
        return moved
    if run.position is None:
        return Over()
    step = definition.step(run.position)
    return _due(definition, run, step, scene, now) if run.armed else _next(run, step, scene, now, definition)


def _moved(definition: Definition, run: Run, scene: Scene) -> Rewind | None:
    for step in definition.steps:
        if step.job in run.anchors:
            moment, _ = anchor_of(definition, run, step, scene)
            if moment != run.anchors[step.job]:
                path = step.moment.path if step.moment else ""
                return Rewind(step, f"{path} is {_said(moment, step)} now")
        if step.job == run.position:
            break
    return None


def _said(moment: Millis | None, step: Step) -> str:
    return "empty or unreadable" if moment is None else f"such that {step.job} is due {isoformat(moment)}"


def _next(run: Run, step: Step, scene: Scene, now: Millis, definition: Definition) -> Decision:
    """A step that is reached, before it is pending."""
    if step.moment is None and step.job in run.done:
        return PassOver(step)
    if step.wait_for is not None:
        if _has_come(run, step, scene):
            return Received(step, step.wait_for)
        return Arm(step, None if step.patience is None else run.since + step.patience)
    if step.moment is None:
        return Arm(step, run.since + step.delay)
    due, problem = anchor_of(definition, run, step, scene)
    if due is None:
        return Skip(step, f"{step.moment.path}: {problem}")
    if due >= now:
        return Arm(step, due, due)
    if step.past == "now":
        return Arm(step, now, due)
    return Skip(step, f"its moment, {isoformat(due)}, had passed already", due)


def _due(definition: Definition, run: Run, step: Step, scene: Scene, now: Millis) -> Decision:
    """A step that is pending."""
    assert run.armed is not None
    due = run.armed.due
    if step.wait_for is not None and _has_come(run, step, scene):
        return Received(step, step.wait_for)
    if due is None or now < due:
        return Wait(due)
    if step.wait_for is not None:
        return TimedOut(step)
    if step.lateness is not None and now > due + step.lateness:
        return Skip(step, f"it was {describe_span(now - due)} late, more than its {step.expires}")
    return _conditions(definition, run, step, scene, now)


def _conditions(definition: Definition, run: Run, step: Step, scene: Scene, now: Millis) -> Decision:
    if definition.entity and scene.entity is None:
        return Skip(step, f"there is no {definition.entity} {run.entity_id} any more")
    values = values_of(definition, run, scene, now)
    try:
        if step.unless is not None and holds(step.unless, values, scene.zone.key):
            return Skip(step, f"unless: {step.unless}")
        if step.when is not None and not holds(step.when, values, scene.zone.key):
            return Skip(step, f"when: {step.when} does not hold")
    except ExpressionFailed as error:
        return Fail(step, str(error))
    return Perform(step)


def _has_come(run: Run, step: Step, scene: Scene) -> bool:
    floor = run.heard_at_start if step.since == "start" else run.heard
    return any(event.type == step.wait_for and event.number > floor for event in scene.events)


def anchor_of(definition: Definition, run: Run, step: Step, scene: Scene) -> tuple[Millis | None, str | None]:
    """When a step with `at` is due by the newest date; None, and why, when there is no such moment."""
    if step.moment is None:
        return None, None
    try:
        return step.moment.moment(_look_up(definition, run, scene, step.moment.path), scene.zone), None
    except (ValueError, OverflowError) as error:
        return None, str(error)


def _look_up(definition: Definition, run: Run, scene: Scene, path: str) -> Any:
    """A value by its path: of the entity, or `event.data.x`, `user.x`; a bare name is a field of the entity or the event."""
    head, *rest = path.split(".")
    fields = scene.entity.fields if scene.entity else {}
    data = run.event.get("data") or {}
    roots: dict[str, Any] = {"event": run.event, "user": scene.user, definition.entity or "": fields}
    if not rest and head not in roots:
        return fields.get(head) if head in fields or definition.entity else data.get(head)
    value: Any = roots.get(head, fields.get(head))
    for name in rest:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def values_of(definition: Definition, run: Run, scene: Scene, now: Millis) -> dict[str, Any]:
    """What expressions and templates of a scenario see."""
    values: dict[str, Any] = {
        "event": dict(run.event),
        "user": dict(scene.user),
        "now": isoformat(now),
        "run": {
            "id": run.id,
            "scenario": run.scenario,
            "key": run.key,
            "started_at": isoformat(run.started_at),
        },
    }
    if definition.entity:
        fields = scene.entity.fields if scene.entity else {}
        values[definition.entity] = {"id": run.entity_id, **fields}
    return values


# ── How the run looks afterwards ──────────────────────────────────────────────────────────────────────────────────

Moved = tuple[Run, list[StepChange]]


def begin(definition: Definition, run: Run, scene: Scene, now: Millis) -> Moved:
    """A new run, led to the first step that has to wait."""
    first = replace(run, position=definition.steps[0].job, since=now)
    return go_on(definition, first, scene, now)


def go_on(definition: Definition, run: Run, scene: Scene, now: Millis) -> Moved:
    """Decide and decide again until something has to wait, is to be done by a job, or is over."""
    changes: list[StepChange] = []
    while True:
        decision = decide(definition, run, scene, now)
        match decision:
            case Wait() | Perform() | TimedOut() | Fail():
                return run, changes
            case Skip() if run.armed:
                return run, changes  # its job finds this out
            case Over():
                return (
                    (_over(run, "finished", decision.reason, now), changes)
                    if run.position is None and (run.status == "running")
                    else (run, changes)
                )
            case Arm():
                run, change = _arm(run, decision, now)
                return run, [*changes, change]
        run, made = _apply(definition, run, decision, now)
        changes += made


def hear(definition: Definition, run: Run, scene: Scene, type: str, now: Millis) -> Moved:
    """An event has come for the run's key, or its entity has changed."""
    if run.status == "running" and type in definition.stop_on:
        return stop(run, f"{type} came", now)
    return go_on(definition, run, scene, now)


def fire(
    definition: Definition, run: Run, scene: Scene, now: Millis
) -> tuple[Decision, Run, list[StepChange]]:
    """The pending step's moment, by its job: what is to be done, and what has been decided without doing anything.

    A job that comes early by our own clock was promoted, or the clock was set back: it is run.
    """
    assert run.armed is not None
    moment = now if run.armed.due is None else max(now, run.armed.due)
    decision = decide(definition, run, scene, moment)
    match decision:
        case Perform() | Fail() | Wait() | Over():
            return decision, run, []
    heard = run if isinstance(decision, Rewind) else replace(run, heard=scene.last_event)
    after, changes = _apply(definition, heard, decision, now)
    after, more = go_on(definition, after, scene, now)
    return decision, after, [*changes, *more]


def complete(
    definition: Definition,
    run: Run,
    scene: Scene,
    now: Millis,
    *,
    heard: int,
    skipped: str | None = None,
    said: str | None = None,
) -> Moved:
    """The pending step is done (or, at the last moment, was not): on to the next."""
    assert run.armed is not None
    armed, step = run.armed, definition.step(run.armed.step)
    state: StepState = "done" if skipped is None else "skipped"
    change = StepChange(armed.step, armed.arming, state, now, armed.due, skipped or said)
    done = run.done | {armed.step} if skipped is None else run.done
    after = replace(_moved_to(run, definition.after(step), now), heard=heard, done=done)
    after, more = go_on(definition, after, scene, now)
    return after, [change, *more]


def fail(definition: Definition, run: Run, scene: Scene, now: Millis, reason: str) -> Moved:
    """The pending step has used up its attempts."""
    assert run.armed is not None
    armed, step = run.armed, definition.step(run.armed.step)
    change = StepChange(armed.step, armed.arming, "failed", now, armed.due, reason)
    if step.on_failure == STOP:
        return _over(replace(run, armed=None), "failed", f"{armed.step}: {reason}", now), [change]
    after, more = go_on(definition, _jumped(definition, run, step, step.on_failure, now), scene, now)
    return after, [change, *more]


def revive(definition: Definition, run: Run, step: str, now: Millis) -> Moved:
    """A failed step is tried anew, at once."""
    back = replace(run, status="running", reason=None, ended_at=None, position=step, since=now, armed=None)
    after, change = _arm(back, Arm(definition.step(step), now, run.anchors.get(step)), now)
    return after, [change]


def rearm(definition: Definition, run: Run, now: Millis, reason: str) -> Moved:
    """The pending step, under a new number, for the same moment."""
    assert run.armed is not None
    step, due = definition.step(run.armed.step), run.armed.due
    after, change = _arm(run, Arm(step, due, run.anchors.get(step.job)), now)
    return after, [_ended(run.armed, "cancelled", now, reason), change]


def stop(run: Run, reason: str, now: Millis) -> Moved:
    changes = [_ended(run.armed, "cancelled", now, reason)] if run.armed else []
    return _over(run, "stopped", reason, now), changes


def migrated(old: Definition, new: Definition, run: Run, scene: Scene, now: Millis) -> Moved:
    """The run under another version: the pending step by its name, or else the next one that is still there."""
    changes = [_ended(run.armed, "cancelled", now, f"moved to version {new.version}")] if run.armed else []
    position = _surviving(old, new, run.position)
    anchors = {name: moment for name, moment in run.anchors.items() if _has_same_anchor(old, new, name)}
    moved = replace(run, version=new.version, position=position, armed=None, anchors=anchors)
    moved, more = go_on(new, moved, scene, now)
    return moved, [*changes, *more]


def _has_same_anchor(old: Definition, new: Definition, name: str) -> bool:
    return name in new.places and new.step(name).at == old.step(name).at


def _surviving(old: Definition, new: Definition, position: str | None) -> str | None:
    if position is None:
        return None
    for step in old.steps[old.places[position] :]:
        if step.job in new.places:
            return step.job
    return None


def _apply(definition: Definition, run: Run, decision: Decision, now: Millis) -> Moved:
    match decision:
        case Skip(step=step, reason=reason):
            run, change = _record(run, step, "skipped", now, reason, decision.anchor)
            return _moved_to(run, definition.after(step), now), [change]
        case Received(step=step, type=type):
            run, change = _record(run, step, "done", now, f"received {type}")
            after = _moved_to(run, definition.after(step), now)
            return replace(after, done=run.done | {step.job}), [change]
        case TimedOut(step=step):
            run, change = _record(run, step, "done", now, f"no {step.wait_for} came within {step.timeout}")
            if step.on_timeout == STOP:
                return _over(run, "stopped", f"no {step.wait_for} came", now), [change]
            after = _jumped(definition, run, step, step.on_timeout, now)
            return replace(after, done=run.done | {step.job}), [change]
        case PassOver(step=step):
            return _moved_to(run, definition.after(step), run.since), []
        case Rewind(step=step, reason=reason):
            changes = [_ended(run.armed, "cancelled", now, reason)] if run.armed else []
            return replace(
                run, position=step.job, armed=None, anchors=_before(definition, run, step)
            ), changes
    raise AssertionError(f"{decision} changes nothing")


def _before(definition: Definition, run: Run, step: Step) -> Mapping[str, Millis | None]:
    """The anchors of the steps above this one; those from here on are considered anew."""
    place = definition.places[step.job]
    return {name: moment for name, moment in run.anchors.items() if definition.places[name] < place}


def _jumped(definition: Definition, run: Run, step: Step, target: str, now: Millis) -> Run:
    following = definition.after(step) if target == CONTINUE else None if target == END else target
    return _moved_to(run, following, now)


def _moved_to(run: Run, position: str | None, now: Millis) -> Run:
    return replace(run, position=position, since=now, armed=None)


def _arm(run: Run, arm: Arm, now: Millis) -> tuple[Run, StepChange]:
    name = arm.step.job
    number = run.armings.get(name, 0) + 1
    anchors = {**run.anchors, name: arm.anchor} if arm.step.moment else run.anchors
    armed = replace(
        run, armed=Armed(name, number, arm.due), armings={**run.armings, name: number}, anchors=anchors
    )
    return armed, StepChange(name, number, "armed", now, arm.due)


def _record(
    run: Run, step: Step, state: StepState, now: Millis, reason: str, anchor: Millis | None = None
) -> tuple[Run, StepChange]:
    """The end of a step that needed no job, or whose job had nothing to do."""
    if run.armed:
        return run, _ended(run.armed, state, now, reason)
    number = run.armings.get(step.job, 0) + 1
    anchors = {**run.anchors, step.job: anchor} if step.moment else run.anchors
    recorded = replace(run, armings={**run.armings, step.job: number}, anchors=anchors)
    return recorded, StepChange(step.job, number, state, now, anchor, reason)


def _ended(armed: Armed, state: StepState, now: Millis, reason: str) -> StepChange:
    return StepChange(armed.step, armed.arming, state, now, armed.due, reason)


def _over(run: Run, status: Status, reason: str | None, now: Millis) -> Run:
    return replace(run, status=status, reason=reason, ended_at=now, armed=None, position=None)
