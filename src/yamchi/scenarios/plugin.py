"""The feature of scenarios: what an application gets as `app.scenarios`."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Connection, delete, select, tuple_

from yamchi.clock import to_millis
from yamchi.errors import ConfigurationError
from yamchi.notifications.plugin import Notifications
from yamchi.notifications.schemas.event import Event
from yamchi.plugins import Application, BoardPage, Check, Plugin
from yamchi.queues.handlers import Handler
from yamchi.queues.job import Job
from yamchi.queues.queue import Queue
from yamchi.scenarios import entering, store
from yamchi.scenarios.actions import Acted, Actions
from yamchi.scenarios.defaults import FOLDER
from yamchi.scenarios.entering import Entrance
from yamchi.scenarios.entities import EntityKinds
from yamchi.scenarios.facts import FactReader
from yamchi.scenarios.library import Library
from yamchi.scenarios.linting import Linter
from yamchi.scenarios.messages import Messages
from yamchi.scenarios.migrating import Migrator
from yamchi.scenarios.outbox import Entry, Outbox
from yamchi.scenarios.performing import Function, Performer
from yamchi.scenarios.scenario_engine import ScenarioEngine, Stopped
from yamchi.scenarios.settings import ScenarioSettings
from yamchi.scenarios.store import StepId
from yamchi.scenarios.sweeping import Sweeper
from yamchi.scenarios.tables import scenario_acts, scenario_events, scenario_runs, scenario_steps
from yamchi.scenarios.timeline import Timelines

SIGNATURE_DIGITS = 32

HERE = Path(__file__).parent

QUEUE_LIMITS: dict[str, Any] = {
    "concurrency": 5,
    "attempts": 3,
    "backoff": ["1m", "5m", "15m"],
    "keep_completed": 100,
    "keep_failed": 200,
}


class Scenarios(Plugin):
    """Durable flows: an event starts them, time and events move them, and they stop when the client reacts."""

    name = "scenarios"
    summary = (
        "Follow-ups in YAML that wait, send and stop when the client reacts: letters, reminders, alerts."
    )
    requires = ("notifications",)
    settings_class = ScenarioSettings
    migrations = HERE / "migrations"
    routes = "yamchi.scenarios.routes:ROUTES"
    commands: ClassVar = {
        "scenario": "yamchi.scenarios.commands:group",
        "schema": "yamchi.scenarios.commands:schema",
    }

    def __init__(self, app: Application) -> None:
        super().__init__(app)
        self.settings: ScenarioSettings
        settings, database, clock = app.settings, app.database, app.clock
        notifications = app.plugin(Notifications)
        self._queues: set[str] = set()
        self._served: set[str] = set()
        self.entities = EntityKinds()
        """Who keeps leads, orders and the like: `app.scenarios.entities.register("order", Orders())`."""
        self.library = Library([settings.home / "scenarios", FOLDER], clock, is_embedded=database.is_embedded)
        self.facts = FactReader(self.entities, notifications.recipients, settings.default_timezone)
        self.outbox = Outbox(database, clock, self.queue, app.keys, self._emit)
        self.scenario_engine = ScenarioEngine(
            database, clock, self.library, self.entities, self.facts, self.outbox
        )
        self.actions = Actions(
            database,
            clock,
            self.library,
            self.entities,
            self.facts,
            self.scenario_engine,
            app.links,
            notifications.unsubscribe_links.base,
            self.settings.scenario_link_lifetime,
        )
        self.messages = Messages(
            database,
            clock,
            notifications.processor,
            notifications.deliveries,
            notifications.suppressions,
            notifications.channels,
            self.facts,
            self.actions.links,
            notifications.settings.telegram_admin_locale,
        )
        self.performer = Performer(
            database,
            clock,
            self.library,
            self.entities,
            self.facts,
            self.scenario_engine,
            self.outbox,
            self.messages,
            Entrance(
                database,
                clock,
                self.library,
                self.entities,
                self.facts,
                self.scenario_engine,
                self.outbox,
            ),
        )
        self.sweeper = Sweeper(
            database,
            clock,
            self.library,
            self.facts,
            self.scenario_engine,
            self.performer,
            self.outbox,
            self.queue,
            self._served,
            to_millis(self.settings.scenario_keep),
        )
        self.timelines = Timelines(database, clock, self.library, self.entities, self.facts)
        self.migrator = Migrator(database, clock, self.library, self.facts, self.scenario_engine)
        self.linter = Linter(self.library, self.entities, notifications.templates, self.performer.functions)
        notifications.service.followers.append(self.scenario_engine)
        notifications.service.before_answering.append(self.scenario_engine.wait_for_leaving)

    async def _emit(self, event: Event) -> None:
        """Under an id that nobody else can give first: who knows the key of a run can work out those of its steps."""
        signature = await self.app.signer.sign("event of a scenario", event.event_id)
        signed = event.model_copy(update={"event_id": f"{event.event_id}:{signature[:SIGNATURE_DIGITS]}"})
        await self.app.plugin(Notifications).service.handle_event(signed)

    # ── Being part of an application ──────────────────────────────────────────────────────────────────────────────

    def declare(self) -> None:
        for name in sorted(self.library.queues):
            self._define(name)

    def serve(self) -> None:
        for name in sorted(self._queues):
            self._serve(self.app.queue(name))
        self.app.service("scenario sweeper", self.sweeper.watch)

    def _serve(self, queue: Queue) -> None:
        """Its jobs are steps, those of older versions too, whose names no file has any more."""

        async def step(job: Job[Any]) -> dict[str, Any]:
            return await self.performer.handle(job)

        handlers = queue.definition.handlers
        for definition in self.library.current.values():
            if definition.queue == queue.name:
                for one in definition.steps:
                    handlers.setdefault(one.job, Handler(one.job, step))
        queue.definition.any_name = Handler("step", step)
        handlers.setdefault("step", queue.definition.any_name)
        self._served.add(queue.name)
        queue.listeners.on("failed", self.performer.note_failure)  # this process's own failures

    def queue(self, name: str) -> Queue:
        """A queue of a scenario; one whose file came after this process was started is declared now."""
        if name not in self._queues:
            self._define(name)
        return self.app.queue(name)

    def _define(self, name: str) -> None:
        self.app.define(name, **QUEUE_LIMITS).is_own = True
        self._queues.add(name)

    def static(self) -> dict[str, Path]:
        return {"/scenario-board": HERE / "static" / "board"}

    def pages(self) -> Iterable[BoardPage]:
        yield BoardPage("Scenarios", "/scenarios")

    async def checks(self) -> Sequence[Check]:
        """Files that can't be used, and runs that fail."""
        scenarios = self.library.current
        said = f"{len(scenarios)} in force: {', '.join(sorted(scenarios)) or 'none'}"
        found = [Check("scenarios", True, said)]
        return found + [Check("scenario file", False, str(problem)) for problem in self.library.problems]

    async def erase(self, user_id: str) -> dict[str, int]:
        """Stop and forget the runs of a person."""
        living = select(scenario_runs.c.run_id).where(scenario_runs.c.user_id == user_id)
        ids = await self.app.database.column(living)
        return {"scenario_runs": await self._forget(ids)}

    async def forget(self, kind: str, entity_id: str) -> int:
        """Stop and forget the runs of an entity that is being erased; how many there were."""
        runs = scenario_runs
        query = select(runs.c.run_id).where(runs.c.entity_kind == kind, runs.c.entity_id == entity_id)
        ids = await self.app.database.column(query)
        return await self._forget(ids)

    async def _forget(self, ids: Sequence[str]) -> int:
        for run_id in ids:
            await self.scenario_engine.stop_run(run_id, "the person was erased")
        await self._forget_jobs(ids)

        def drop(connection: Connection) -> int:
            connection.execute(delete(scenario_events).where(_are_of(ids)))
            connection.execute(delete(scenario_steps).where(scenario_steps.c.run_id.in_(ids)))
            connection.execute(delete(scenario_acts).where(scenario_acts.c.run_id.in_(ids)))
            return connection.execute(delete(scenario_runs).where(scenario_runs.c.run_id.in_(ids))).rowcount

        return await self.app.database.write(drop) if ids else 0

    async def _forget_jobs(self, ids: Sequence[str]) -> None:
        """The jobs of all steps of these runs, finished ones too, and their dead letters: their data name the person.

        So do the jobs of other programs that came for the same keys.
        """
        steps = scenario_steps.c
        query = select(steps.queue, steps.run_id, steps.step, steps.arming)
        query = query.where(steps.run_id.in_(ids), steps.queue.is_not(None))
        rows = await self.app.database.rows(query)
        jobs: defaultdict[str, list[str]] = defaultdict(list)
        for name, *step in rows:
            jobs[name].append(str(StepId(*step)))
        for event_id in await self.app.database.column(
            select(scenario_events.c.event_id).where(_are_of(ids))
        ):
            if foreign := entering.job_of(event_id):
                jobs[foreign[0]].append(foreign[1])
        for name, job_ids in jobs.items():
            queue = self.queue(name)
            await queue.remove(job_ids)
            await queue.dead_letters.purge(job_ids)

    # ── For other features and the user's own code ────────────────────────────────────────────────────────────────

    def function(self, name: str) -> Callable[[Function], Function]:
        """Let steps call the function below: `call: book_room`. It may be called again, with the same `context.id`."""

        def register(function: Function) -> Function:
            if name in self.performer.functions:
                raise ConfigurationError(f"There is a function {name!r} already: give this one another name.")
            self.performer.functions[name] = function
            return function

        return register

    async def act(self, scenario: str, key: str, action: str, *, by: str) -> Acted:
        """Do what a button says: `act("lesson_reminders", lead_id, "confirm", by="telegram:123")`.

        Who calls this has made sure that the button was theirs to press.
        """
        return await self.actions.act(scenario, key, action, by=by)

    async def stop(self, scenario: str, key: str, reason: str = "stopped by hand") -> Stopped | None:
        """Stop the living run of a key; None if there is none."""
        return await self.scenario_engine.stop(scenario, key, reason)

    async def changed(self, kind: str, entity_id: str) -> None:
        """An entity was changed otherwise than by an event: its runs look at their dates anew, and their jobs get their data anew."""
        await self.scenario_engine.changed(kind, entity_id)

    def lock_in(self, connection: Connection, kind: str, entity_id: str) -> None:
        """Before a transaction that will call `changed_in` changes the entity: the engine's own take their locks in this order."""
        store.lock_entities(connection, [(kind, entity_id)])

    def changed_in(self, connection: Connection, kind: str, entity_id: str) -> list[Entry]:
        """The same in the transaction that changes it; pass what it returns to `follow` after the commit."""
        return self.scenario_engine.changed_in(connection, kind, entity_id, refresh=True)

    async def follow(self, entries: Sequence[Entry]) -> None:
        await self.scenario_engine.follow(entries)


def _are_of(run_ids: Sequence[str]) -> ColumnElement[bool]:
    """The events of these runs' keys."""
    of_these = select(scenario_runs.c.scenario, scenario_runs.c.key).where(
        scenario_runs.c.run_id.in_(run_ids)
    )
    return tuple_(scenario_events.c.scenario, scenario_events.c.key).in_(of_these)
