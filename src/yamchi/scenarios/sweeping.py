"""What nobody else will do: finish what a crash interrupted, ask after jobs that are late, forget what is long over."""

from collections.abc import Callable, Collection
from typing import Any

import structlog
from sqlalchemy import Connection, Row, delete, exists, or_, select, update

from yamchi.clock import Clock, Millis
from yamchi.errors import EngineError, UnknownQueue, YamchiError
from yamchi.queues.queue import Queue
from yamchi.queues.records import JobRecord
from yamchi.scenarios import moves, store
from yamchi.scenarios.definition import DEFAULT_QUEUE
from yamchi.scenarios.facts import FactReader, Fetched
from yamchi.scenarios.library import Library, UnknownScenario
from yamchi.scenarios.outbox import Entry, Outbox
from yamchi.scenarios.performing import Performer
from yamchi.scenarios.scenario_engine import ScenarioEngine
from yamchi.scenarios.store import StepId
from yamchi.scenarios.tables import scenario_acts as acts
from yamchi.scenarios.tables import scenario_definitions as definitions
from yamchi.scenarios.tables import scenario_events as events
from yamchi.scenarios.tables import scenario_runs as runs
from yamchi.scenarios.tables import scenario_steps as steps
from yamchi.storage.database import Database

log = structlog.get_logger("yamchi.scenarios")

EVERY: Millis = 5_000
LATE: Millis = 60_000
"""A step that is late by so much is asked after, and then as often."""

ASKED_AT_ONCE = 200
FORGOTTEN_AT_ONCE = 1_000
PRUNE_EVERY: Millis = 3_600_000
OVER = ("finished", "stopped", "failed")


class Sweeper:
    """Any number of processes may sweep."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        library: Library,
        facts_reader: FactReader,
        engine: ScenarioEngine,
        performer: Performer,
        outbox: Outbox,
        queue: Callable[[str], Queue],
        served: Collection[str],
        keep: Millis,
    ) -> None:
        self._database = database
        self._clock = clock
        self._library = library
        self._facts = facts_reader
        self._engine = engine
        self._performer = performer
        self._outbox = outbox
        self._queue = queue
        self._served = served
        self._keep = keep
        self._pruned_at: Millis | None = None

    async def watch(self) -> None:
        """Sweep for ever."""
        while True:
            try:
                await self.sweep()
            except EngineError as error:
                log.warning("the sweep of scenarios failed; trying again", error=str(error))
            await self._clock.sleep(EVERY)

    async def sweep(self) -> None:
        if swept := await self._outbox.sweep():
            log.warning(f"finished {swept} jobs and events of scenarios that had been interrupted")
        await self.ask_after_the_late()
        now = self._clock.now()
        if self._pruned_at is None or now - self._pruned_at >= PRUNE_EVERY:
            self._pruned_at = now
            await self.prune()

    # ── Jobs that are late ────────────────────────────────────────────────────────────────────────────────────────

    async def ask_after_the_late(self) -> int:
        """Steps whose moment passed a while ago: their jobs wait, or are gone; how many were asked after."""
        rows = await self._database.write(self._late)
        for row in rows:
            id = StepId(row.run_id, row.step, row.arming)
            try:
                await self._ask_after(id, row)
            except (UnknownQueue, UnknownScenario, EngineError) as error:
                log.warning(
                    "a step is late, and its queue can't be asked for its job", step=str(id), error=str(error)
                )
        return len(rows)

    def _late(self, connection: Connection) -> list[Any]:
        now = self._clock.now()
        is_pending = runs.c.armed_step == steps.c.step, runs.c.arming == steps.c.arming
        query = (
            select(steps.c.run_id, steps.c.step, steps.c.arming, steps.c.queue)
            .join(runs, runs.c.run_id == steps.c.run_id)
            .where(steps.c.state.in_(("armed", "running")), steps.c.due_at <= now - LATE, *is_pending)
            .where(steps.c.queue.is_not(None))
            .where(or_(steps.c.looked_at.is_(None), steps.c.looked_at <= now - LATE))
            .limit(ASKED_AT_ONCE)
        )
        rows = list(connection.execute(query).all())
        for row in rows:
            which = store.is_step(StepId(row.run_id, row.step, row.arming))
            connection.execute(update(steps).where(which).values(looked_at=now))
        return rows

    async def _ask_after(self, id: StepId, row: Row[Any]) -> None:
        job = await _found(self._queue(row.queue), str(id))
        match job.state if job else None:
            case "failed":
                await self._performer.fail(id, (job and job.failed_reason) or "its job failed")
            case "cancelled" | "expired" as state:
                await self._engine.stop_run(id.run_id, f"the job of {id.step} was {state} in the queue")
            case None | "completed":
                log.warning("the job of a step is gone from its queue: it is queued anew", step=str(id))
                await self._queue_anew(id, "its job was gone from the queue")
            case "waiting" | "delayed" if self._is_stranded(row.queue, job):
                log.warning(
                    f"nobody here works on the queue {row.queue}, which no file named when this process was started: "
                    f"the step goes to the queue {DEFAULT_QUEUE}",
                    step=str(id),
                )
                await self._queue_anew(id, f"nobody worked on the queue {row.queue}", DEFAULT_QUEUE)

    def _is_stranded(self, queue: str, job: JobRecord | None) -> bool:
        """Whether it has been due for a while on a queue that has no handlers here, such as one of an older version."""
        return queue not in self._served and job is not None and job.run_at <= self._clock.now() - LATE

    async def _queue_anew(self, id: StepId, reason: str, queue: str | None = None) -> None:
        await self._outbox.follow(await self._database.write(lambda c: self._rearm(c, id, reason, queue)))

    def _rearm(self, connection: Connection, id: StepId, reason: str, queue: str | None) -> list[Entry]:
        row = store.locked(connection, id.run_id)
        if row is None or row.status != "running" or (row.armed_step, row.arming) != (id.step, id.arming):
            return []
        run, now = store.restored(row), self._clock.now()
        definition = self._library.version(connection, run.scenario, run.version)
        facts = self._facts.of(connection, definition, run, Fetched())
        after, changes = moves.rearm(definition, run, now, reason)
        return self._engine.saver.save(connection, definition, row, after, changes, facts, now, queue=queue)

    # ── What is long over ─────────────────────────────────────────────────────────────────────────────────────────

    async def prune(self) -> int:
        """Forget runs that ended long ago, events that nobody can wait for, versions that no run follows; how many rows.

        A run of a scenario that is never to run again for its key is what remembers that: it stays.
        """
        gone = 0
        while forgotten := await self._database.write(self._forget):
            gone += forgotten
        return gone

    def _forget(self, connection: Connection) -> int:
        before = self._clock.now() - self._keep
        old = select(runs.c.run_id).where(runs.c.status.in_(OVER), runs.c.ended_at < before)
        old = old.where(runs.c.scenario.not_in(self._library.once(connection)))
        ids = list(connection.execute(old.limit(FORGOTTEN_AT_ONCE)).scalars())
        gone = 0
        if ids:
            connection.execute(delete(steps).where(steps.c.run_id.in_(ids)))
            connection.execute(delete(acts).where(acts.c.run_id.in_(ids)))
            gone += connection.execute(delete(runs).where(runs.c.run_id.in_(ids))).rowcount
        waits = exists().where(
            runs.c.scenario == events.c.scenario, runs.c.key == events.c.key, runs.c.status == "running"
        )
        stale = select(events.c.number).where(events.c.received_at < before, ~waits).limit(FORGOTTEN_AT_ONCE)
        numbers = list(connection.execute(stale).scalars())
        if numbers:
            gone += connection.execute(delete(events).where(events.c.number.in_(numbers))).rowcount
        _forget_versions(connection, before)
        return gone


def _forget_versions(connection: Connection, before: Millis) -> None:
    """Versions that no run follows. Locked first and looked at again: a run may be beginning that nobody sees yet."""
    follows = exists().where(runs.c.scenario == definitions.c.name, runs.c.version == definitions.c.version)
    unused = definitions.c.created_at < before, ~follows
    locked = select(definitions.c.name, definitions.c.version).where(*unused).with_for_update()
    for name, version in connection.execute(locked).all():
        which = definitions.c.name == name, definitions.c.version == version
        connection.execute(delete(definitions).where(*which, ~follows))


async def _found(queue: Queue, job_id: str) -> JobRecord | None:
    try:
        return (await queue.job(job_id)).record
    except EngineError:
        raise
    except YamchiError:
        return None
