"""Jobs that other programs put onto the queue of a scenario: each enters the run of its key at the step that it names.

A step's own job is known by its id. Any other job under a step's name asks for that step now, for what its data name. If
no run of that key lives, one begins there; one that has not come so far goes on from there. Then the step has a job of its
own, which does all the rest, and the one at hand is over. What was sent, stopped or is pending already is not asked for anew.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog
from pydantic import ValidationError
from sqlalchemy import Connection, Row

from yamchi.clock import Clock, Millis
from yamchi.errors import EngineUnavailable, InvalidJob, Outage, Snooze, Unrecoverable
from yamchi.faultpoints import fault_point
from yamchi.notifications.schemas.event import Event
from yamchi.queues.handlers import describe
from yamchi.queues.job import Job
from yamchi.scenarios import flow, moves, store
from yamchi.scenarios.definition import Definition, Step
from yamchi.scenarios.entities import Adopted, AdoptingEntities, EntityKinds
from yamchi.scenarios.expressions import ExpressionFailed, holds
from yamchi.scenarios.facts import FactReader, Fetched
from yamchi.scenarios.flow import Run
from yamchi.scenarios.library import Library, UnknownScenario
from yamchi.scenarios.matching import Match
from yamchi.scenarios.outbox import Entry, Outbox
from yamchi.scenarios.scenario_engine import ScenarioEngine, new_run
from yamchi.scenarios.store import StepId
from yamchi.storage.database import Database

log = structlog.get_logger("yamchi.scenarios")

_JOB = "job:"
LONGEST_EVENT_ID = 255


@dataclass(frozen=True, slots=True)
class Entered:
    """The run has the step pending, under this id."""

    id: StepId
    entries: list[Entry]


@dataclass(frozen=True, slots=True)
class Refused:
    """The job has no effect on the run, and why; what its data told may have moved other runs."""

    reason: str
    entries: list[Entry]
    is_unknown: bool = False
    """Whether that is so because nobody knows what it is about."""


class Entrance:
    """Takes jobs that other programs have put onto queues of scenarios."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        library: Library,
        kinds: EntityKinds,
        facts_reader: FactReader,
        engine: ScenarioEngine,
        outbox: Outbox,
    ) -> None:
        self._database = database
        self._clock = clock
        self._library = library
        self._kinds = kinds
        self._facts = facts_reader
        self._engine = engine
        self._outbox = outbox

    async def take(self, job: Job[Any]) -> dict[str, Any]:
        """Let a job enter a run; the answer says under which id the step is done, or why it is not."""
        definition, step = self._asked_for(job)
        event = _told_by(job)
        entity_id = self._entity_id(definition, event, job)
        try:
            await self._bring(definition, entity_id)
            fetched = await self._facts.fetch(definition.entity, entity_id)
            enter = partial(self._enter, definition=definition, step=step, event=event, fetched=fetched)
            found = await self._database.write(enter)
        except EngineUnavailable as error:
            raise Outage(str(error)) from error  # it may have a single attempt, as other programs' jobs have
        except UnknownScenario as error:
            raise Snooze("1m", str(error)) from error  # a newer process may be able to use it
        except InvalidJob as error:
            raise Unrecoverable(str(error)) from error
        fault_point("scenario.entered")
        await self._outbox.follow(found.entries)
        said = f"{job.name} {job.id}, which another program put onto {job.queue.name},"
        if isinstance(found, Refused):
            tell = log.warning if found.is_unknown else log.info
            tell(f"{said} has no effect: {found.reason}")
            return {"status": "nothing", "reason": found.reason}
        log.info(f"{said} entered {definition.scenario} as {found.id}")
        return {"status": "entered", "job": str(found.id)}

    def _asked_for(self, job: Job[Any]) -> tuple[Definition, Step]:
        """The one step of this name on this queue."""
        found = [
            one
            for one in self._library.current.values()
            if one.queue == job.queue.name and job.name in one.places
        ]
        match found:
            case [definition]:
                return definition, definition.step(job.name)
            case []:
                why = f"no scenario has a step {job.name!r} on the queue {job.queue.name}"
            case _:
                names = ", ".join(sorted(one.scenario for one in found))
                why = f"several scenarios have a step {job.name!r} on the queue {job.queue.name}: {names}"
        raise Unrecoverable(f"{job.id} is no step of a run and can't enter one, since {why}.")

    def _entity_id(self, definition: Definition, event: Event, job: Job[Any]) -> str | None:
        if definition.entity is None:
            return None
        entity_id = self._facts.concerned(event).get(definition.entity)
        if entity_id is None:
            raise Unrecoverable(
                f"{job.name} {job.id}: its data name no {definition.entity}, so there is no run that it could enter."
            )
        return entity_id

    async def _bring(self, definition: Definition, entity_id: str | None) -> None:
        entities = self._kinds.of(definition.entity) if definition.entity else None
        if entity_id is not None and isinstance(entities, AdoptingEntities):
            await entities.bring(entity_id)

    # ── In one transaction ────────────────────────────────────────────────────────────────────────────────────────

    def _enter(
        self, connection: Connection, definition: Definition, step: Step, event: Event, fetched: Fetched
    ) -> Entered | Refused:
        now, concerned = self._clock.now(), self._facts.concerned(event)
        store.lock_entities(connection, concerned.items())
        adopted = self._adopt(connection, definition, event)
        match = self._engine.matcher.match(connection, definition, event, concerned, fetched, now)
        if match is None:
            raise Unrecoverable(
                f"{step.job}: its data lack what the key of {definition.scenario} is made of."
            )
        key = (definition.scenario, match.key)
        store.lock_keys(connection, [key])
        number = store.write_down(connection, *key, event, now)  # erasing the key finds the job by this
        entries = self._follow_adopted(connection, match, fetched) if adopted else []
        row = store.latest(connection, *key, lock=True)
        if why := (adopted and adopted.outdated) or self._why_not(connection, match, step, event, row, now):
            is_unknown = bool(match.definition.entity) and match.facts.entity is None
            return Refused(why, entries, is_unknown)
        run, before = self._run(connection, match, event, number, row, now)
        follows = self._library.version(connection, run.scenario, run.version)
        facts = self._facts.of(connection, follows, run, fetched)
        after, changes = moves.enter(follows, run, follows.step(step.job), facts, now)
        entries += self._engine.saver.save(connection, follows, before, after, changes, facts, now)
        return Entered(StepId(run.id, step.job, after.armings[step.job]), entries)

    def _adopt(self, connection: Connection, definition: Definition, event: Event) -> Adopted | None:
        """What the job tells of its entity is taken over where nothing is known."""
        entities = self._kinds.of(definition.entity) if definition.entity else None
        if not isinstance(entities, AdoptingEntities):
            return None
        return entities.adopt_in(connection, event, definition.on)

    def _follow_adopted(self, connection: Connection, match: Match, fetched: Fetched) -> list[Entry]:
        kind, entity_id = match.definition.entity, match.entity_id
        assert kind is not None
        assert entity_id is not None
        return self._engine.changed_in(connection, kind, entity_id, fetched)

    def _run(
        self,
        connection: Connection,
        match: Match,
        event: Event,
        number: int,
        row: Row[Any] | None,
        now: Millis,
    ) -> tuple[Run, Row[Any] | None]:
        """The living run and its row, or one that begins."""
        if row is not None and row.status == "running":
            return store.restored(row), row
        run = _begun(match, event, number, 1 if row is None else row.generation + 1, now)
        self._library.keep(connection, match.definition)
        store.add(connection, run, match.definition.entity)
        return run, None

    def _why_not(
        self,
        connection: Connection,
        match: Match,
        step: Step,
        event: Event,
        row: Row[Any] | None,
        now: Millis,
    ) -> str | None:
        """Why the job has no effect."""
        definition, facts = match.definition, match.facts
        if definition.entity and facts.entity is None:
            return f"there is no {definition.entity} {match.entity_id}"
        run = _begun(match, event, 0, 0, now)
        due, problem = flow.anchor_of(definition, run, step, facts)
        if problem and step.moment:
            return f"{step.moment.path}: {problem}"
        if step.unless and _is_true(step.unless, flow.values_of(definition, run, facts, now), facts.zone.key):
            return f"unless: {step.unless}"
        if row is not None and (why := self._why_not_again(connection, definition, step, row, due)):
            return why
        if (row is None or row.status != "running") and not self._engine.wants(match, event, now):
            return f"{definition.scenario} is not begun for it: when: {definition.when}"
        return None

    def _why_not_again(
        self, connection: Connection, definition: Definition, step: Step, row: Row[Any], due: Millis | None
    ) -> str | None:
        """What the newest run of the key says against it."""
        run = store.restored(row)
        if run.status == "running":
            version = self._library.version(connection, run.scenario, run.version)
            return _why_not_further(version, run, step)
        if definition.again == "never":
            return f"{definition.scenario} runs once for a key, and has"
        if step.moment is not None and run.anchors.get(step.job) != due:
            return None  # that run was about another date
        if run.status == "stopped":
            return f"its run was stopped: {run.reason}"
        ended = {
            one.step: one.state
            for one in store.steps_of(connection, run.id)
            if one.arming == run.armings.get(one.step) and one.state in ("done", "failed")
        }
        from_here_on = [one.job for one in definition.steps[definition.places[step.job] :]]
        return next((f"{name} is {ended[name]} already" for name in from_here_on if name in ended), None)


def _why_not_further(definition: Definition, run: Run, step: Step) -> str | None:
    """Where a living run is that need not be brought to this step."""
    if step.job not in definition.places:
        return f"its run follows version {definition.version}, which has no step {step.job}"
    assert run.position is not None
    ahead = definition.places[run.position] - definition.places[step.job]
    if ahead < 0:
        return None
    return f"{step.job} is pending already" if ahead == 0 else f"its run is at {run.position} already"


def _begun(match: Match, event: Event, number: int, generation: int, now: Millis) -> Run:
    """A run of the person behind its entity: the job names nobody else."""
    run = new_run(match, event, number, generation, now)
    return replace(run, user_id=match.facts.entity.recipient.user_id) if match.facts.entity else run


def _is_true(expression: str, values: dict[str, Any], zone: str) -> bool:
    try:
        return holds(expression, values, zone)
    except ExpressionFailed:
        return False  # the step's own job fails of it, and says so


def _told_by(job: Job[Any]) -> Event:
    """What a job says, as an event: templates see its data as `event.data`."""
    try:
        event_id = f"{_JOB}{job.queue.name}:{job.id}"[:LONGEST_EVENT_ID]
        return Event(event_type=f"job.{job.name}", event_id=event_id, data=job.data)
    except ValidationError as error:
        raise Unrecoverable(f"{job.name} {job.id} can't enter a run: {describe(error)}") from error


def job_of(event_id: str) -> tuple[str, str] | None:
    """The queue and the id of the job that came as this event; None if it was no job."""
    if not event_id.startswith(_JOB):
        return None
    queue, _, job_id = event_id.removeprefix(_JOB).partition(":")
    return (queue, job_id) if job_id else None
