"""The state of a run after a decision: pure functions from one state to the next, with the changes of its steps."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from yamchi.clock import Millis
from yamchi.scenarios import flow
from yamchi.scenarios.definition import CONTINUE, END, STOP, Definition, Step
from yamchi.scenarios.flow import (
    Arm,
    Armed,
    Decision,
    Facts,
    Fail,
    Over,
    PassOver,
    Perform,
    Received,
    Rewind,
    Run,
    Skip,
    Status,
    StepState,
    TimedOut,
    Wait,
    decide,
)


@dataclass(frozen=True, slots=True)
class StepChange:
    """A change of one step's record."""

    step: str
    arming: int
    state: StepState
    at: Millis
    due: Millis | None = None
    reason: str | None = None


Moved = tuple[Run, list[StepChange]]


def begin(definition: Definition, run: Run, facts: Facts, now: Millis) -> Moved:
    """A new run, advanced to the first step that has to wait."""
    first = replace(run, position=definition.steps[0].job, since=now)
    return go_on(definition, first, facts, now)


def go_on(definition: Definition, run: Run, facts: Facts, now: Millis) -> Moved:
    """Decide until a step has to wait or needs a job, or the run is over."""
    changes: list[StepChange] = []
    while True:
        decision = decide(definition, run, facts, now)
        match decision:
            case Wait() | Perform() | TimedOut() | Fail():
                return run, changes
            case Skip() if run.armed:
                return run, changes  # its job finds this out
            case Over() if run.position is None and run.status == "running":
                return _over(run, "finished", decision.reason, now), changes
            case Over():
                return run, changes
            case Arm():
                run, change = _arm(run, decision, now)
                return run, [*changes, change]
        run, made = _apply(definition, run, decision, now)
        changes += made


def enter(definition: Definition, run: Run, step: Step, facts: Facts, now: Millis) -> Moved:
    """Another program asks for this step now: as if it had been pending here and its moment had come.

    What was pending before it is not done any more. The dates of the steps above it count as considered, so that they
    are scheduled anew, too, when a date moves.
    """
    changes = [_ended(run.armed, "cancelled", now, f"{step.job} was asked for")] if run.armed else []
    above = definition.steps[: definition.places[step.job]]
    passed = {one.job: flow.anchor_of(definition, run, one, facts)[0] for one in above if one.moment}
    at = replace(run, position=step.job, since=now, armed=None, anchors={**run.anchors, **passed})
    if step.wait_for is not None:
        after, more = go_on(definition, at, facts, now)
        return after, [*changes, *more]
    anchor, _ = flow.anchor_of(definition, run, step, facts)
    after, change = _arm(at, Arm(step, now if anchor is None else min(now, anchor), anchor), now)
    return after, [*changes, change]


def hear(definition: Definition, run: Run, facts: Facts, type: str, now: Millis) -> Moved:
    """The run after an event for its key, or after a change of its entity."""
    if run.status == "running" and type in definition.stop_on:
        return stop(run, f"{type} came", now)
    return go_on(definition, run, facts, now)


def fire(
    definition: Definition, run: Run, facts: Facts, now: Millis
) -> tuple[Decision, Run, list[StepChange]]:
    """The pending step's moment, by its job: what is to be done, and what has been decided without doing anything.

    A job that comes early by our own clock was promoted, or the clock was set back: it is run.
    """
    assert run.armed is not None
    moment = now if run.armed.due is None else max(now, run.armed.due)
    decision = decide(definition, run, facts, moment)
    match decision:
        case Perform() | Fail() | Wait() | Over():
            return decision, run, []
    heard = run if isinstance(decision, Rewind | Received) else replace(run, heard=facts.last_event)
    after, changes = _apply(definition, heard, decision, now)
    after, more = go_on(definition, after, facts, now)
    return decision, after, [*changes, *more]


def complete(
    definition: Definition,
    run: Run,
    facts: Facts,
    now: Millis,
    *,
    heard: int,
    skipped: str | None = None,
    said: str | None = None,
) -> Moved:
    """The run after its pending step is done, or was skipped at the last moment."""
    assert run.armed is not None
    armed, step = run.armed, definition.step(run.armed.step)
    state: StepState = "done" if skipped is None else "skipped"
    change = StepChange(armed.step, armed.arming, state, now, armed.due, skipped or said)
    done = run.done | {armed.step} if skipped is None else run.done
    after = replace(_moved_to(run, definition.after(step), now), heard=heard, done=done)
    after, more = go_on(definition, after, facts, now)
    return after, [change, *more]


def fail(definition: Definition, run: Run, facts: Facts, now: Millis, reason: str) -> Moved:
    """The run after its pending step has used up its attempts."""
    assert run.armed is not None
    armed, step = run.armed, definition.step(run.armed.step)
    change = StepChange(armed.step, armed.arming, "failed", now, armed.due, reason)
    if step.on_failure == STOP:
        return _over(replace(run, armed=None), "failed", f"{armed.step}: {reason}", now), [change]
    after, more = go_on(definition, _jumped(definition, run, step, step.on_failure, now), facts, now)
    return after, [change, *more]


def revive(definition: Definition, run: Run, step: str, now: Millis) -> Moved:
    """The run with a failed step pending again, due now. The step that has been pending since comes after it."""
    changes = [_ended(run.armed, "cancelled", now, f"{step} is tried anew before it")] if run.armed else []
    back = replace(run, status="running", reason=None, ended_at=None, position=step, since=now, armed=None)
    after, change = _arm(back, Arm(definition.step(step), now, run.anchors.get(step)), now)
    return _repeating(after, run.armings[step]), [*changes, change]


def rearm(definition: Definition, run: Run, now: Millis, reason: str) -> Moved:
    """The run with its pending step under a new number, for the same moment."""
    assert run.armed is not None
    step, due = definition.step(run.armed.step), run.armed.due
    after, change = _arm(run, Arm(step, due, run.anchors.get(step.job)), now)
    return _repeating(after, run.armed.arming), [_ended(run.armed, "cancelled", now, reason), change]


def stop(run: Run, reason: str, now: Millis) -> Moved:
    changes = [_ended(run.armed, "cancelled", now, reason)] if run.armed else []
    return _over(run, "stopped", reason, now), changes


def migrated(old: Definition, new: Definition, run: Run, facts: Facts, now: Millis) -> Moved:
    """The run under another version: at the pending step by its name, or at the next one that the version has."""
    changes = [_ended(run.armed, "cancelled", now, f"moved to version {new.version}")] if run.armed else []
    position = _surviving(old, new, run.position)
    anchors = {name: moment for name, moment in run.anchors.items() if _has_same_anchor(old, new, name)}
    moved = replace(run, version=new.version, position=position, armed=None, anchors=anchors)
    moved, more = go_on(new, moved, facts, now)
    if run.armed and moved.armed and moved.armed.step == run.armed.step:
        moved = _repeating(moved, run.armed.arming)
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
        case Received(step=step, event=event):
            run, change = _record(run, step, "done", now, f"received {event.type}")
            after = _moved_to(run, definition.after(step), now)
            heard = max(run.heard, event.number)  # one event ends one wait
            return replace(after, done=run.done | {step.job}, heard=heard), [change]
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
    """The anchors of the steps before this one; those from here on are decided again."""
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


def _repeating(run: Run, arming: int) -> Run:
    """Note that the pending step repeats this arming, which did not finish."""
    assert run.armed is not None
    step, number = run.armed.step, run.armed.arming
    return replace(run, repeats={**run.repeats, f"{step}.{number}": run.message_of(step, arming)})


def _record(
    run: Run, step: Step, state: StepState, now: Millis, reason: str, anchor: Millis | None = None
) -> tuple[Run, StepChange]:
    """Record the end of a step that needed no job, or whose job had nothing to do."""
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
