"""The life of a step, which is one job.

1. Lock the run, read it with its step and the newest entity. Not running, or another arming: no effect.
2. Conditions and lateness: skipped, with the reason; the next step is armed in the same transaction.
3. Send inside the job, so that the queue's retries are the step's. Right before the message leaves, a hold on the run is
   taken, which is refused if the run was stopped, its date moved or its conditions changed meanwhile.
4. One transaction: fields, log line, step done, next step armed, outbox.
5. Then the next job is queued; a sweeper does it if a crash did not.
Killed between any two of these and run again, it ends the same: the delivery's id is derived from the step.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection

from yamchi import errors
from yamchi.clock import Clock, Millis
from yamchi.errors import ConfigurationError, Outage, Snooze, Unrecoverable
from yamchi.faultpoints import fault_point
from yamchi.queues.job import Job
from yamchi.scenarios import moves, store
from yamchi.scenarios.claiming import Begun, Claimed, Claims, GivenUp, Left, Nothing, Settled
from yamchi.scenarios.entering import Entrance
from yamchi.scenarios.entities import Entity, EntityKinds
from yamchi.scenarios.facts import FactReader, Fetched
from yamchi.scenarios.flow import Facts, Perform
from yamchi.scenarios.library import Library, UnknownScenario
from yamchi.scenarios.messages import Messages
from yamchi.scenarios.outbox import Entry, Outbox
from yamchi.scenarios.scenario_engine import HOLDING, ScenarioEngine
from yamchi.scenarios.store import RunStep, StepId
from yamchi.scenarios.writing import Done, Writing
from yamchi.storage.database import Database

log = structlog.get_logger("yamchi.scenarios")

HOLD: Millis = 60_000
"""How long a hold is believed of a process that gives no sign of life; it is renewed three times as often."""

CLAIMS = 5
"""How often the world may change between looking and sending before the job is tried again later."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a function of one's own gets: `@app.scenarios.function("book_room")`.

    It may be called again after a crash or a failure: `id` is the same then. What it returns is set on the entity.
    """

    id: str
    scenario: str
    key: str
    step: str
    entity: Entity | None
    event: Mapping[str, Any]
    user: Mapping[str, Any]


Function = Callable[[Context], Awaitable[Mapping[str, Any] | None]]


class HeldBack(Exception):
    """The run changed at the last moment: look again."""


class Performer:
    """Handles the jobs of scenarios."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        library: Library,
        kinds: EntityKinds,
        facts_reader: FactReader,
        engine: ScenarioEngine,
        outbox: Outbox,
        messages: Messages,
        entrance: Entrance,
    ) -> None:
        self._entrance = entrance
        self._database = database
        self._clock = clock
        self._library = library
        self._kinds = kinds
        self._facts = facts_reader
        self._saver = engine.saver
        self._outbox = outbox
        self._messages = messages
        self._writing = Writing(clock, kinds, facts_reader, engine)
        self._claims = Claims(clock, library, kinds, facts_reader, engine.saver, self._writing)
        self.functions: dict[str, Function] = {}
        outbox.give_up = self._give_up

    async def handle(self, job: Job[Any]) -> dict[str, Any]:
        """Run one step; the answer says what became of it. Another program's job enters the run at that step."""
        id = StepId.read(job.id)
        if id is None:
            return await self._entrance.take(job)
        for _ in range(CLAIMS):
            fetched = await self._fetch(id)
            claim = partial(self._claims.claim, id=id, attempt=job.attempts_made, fetched=fetched)
            try:
                claimed = await self._database.write(claim)
            except UnknownScenario as error:
                raise Snooze("1m", str(error)) from error  # a newer process may be able to use it
            except Unrecoverable as error:  # a template that can't be filled in
                await self._went_wrong(job, id, error)
                raise
            fault_point("step.claimed")
            try:
                return await self._go_on(job, id, claimed)
            except HeldBack:
                continue
        raise errors.Retryable("The run changed again and again while its message was about to leave.")

    async def note_failure(self, job: Job[Any], error: str) -> None:
        """A job that ended without its handler's last word, such as one that killed its workers."""
        if id := StepId.read(job.id):
            await self.fail(id, error)

    async def _give_up(self, job_id: str, reason: str) -> None:
        if id := StepId.read(job_id):
            await self.fail(id, reason)

    async def _go_on(self, job: Job[Any], id: StepId, claimed: Claimed) -> dict[str, Any]:
        match claimed:
            case Nothing(reason=reason, key=key):
                await self._outbox.forget_key(key, str(id))
                return {"status": "nothing", "reason": reason}
            case Settled(state=state, reason=said, entries=entries):
                await self._outbox.follow(entries)
                return {"status": state, "reason": said}
            case GivenUp(reason=reason, entries=entries):
                await self._outbox.follow(entries)
                raise Unrecoverable(reason)
            case Left(step=step):
                return await self._recall(step)
            case Begun():
                return await self._perform(job, claimed.step, claimed.facts)

    async def _fetch(self, id: StepId) -> Fetched:
        """The newest entity, where it is kept outside the database."""
        if self._kinds.are_all_inside:
            return Fetched()
        row = await self._database.read(lambda connection: store.read(connection, id.run_id))
        return Fetched() if row is None else await self._facts.fetch(row.entity_kind, row.entity_id)

    # ── 3: the effect ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _perform(self, job: Job[Any], begun: RunStep, facts: Facts) -> dict[str, Any]:
        id = begun.id
        try:
            if begun.step.set_first:
                await self._outbox.follow(await self._writing.write_first(self._database, begun, facts))
            async with self._renewing(id):
                done = await self._act(job, begun, facts)
            fault_point("step.sent")
            await self._writing.apply_outside(begun, facts, done)
            fault_point("step.applied")
            fetched = await self._facts.fetch(begun.definition.entity, begun.run.entity_id)
            entries = await self._database.write(lambda c: self._writing.complete(c, begun, done, fetched))
        except HeldBack:
            raise
        except (Outage, Snooze) as error:
            await self._note(id, str(error))
            raise
        except Exception as error:
            await self._went_wrong(job, id, error)
            raise
        fault_point("step.completed")
        await self._outbox.follow(entries)
        fault_point("step.followed")
        return {"status": "skipped" if done.skipped else "done", "reason": done.skipped, **done.effects}

    async def _act(self, job: Job[Any], begun: RunStep, facts: Facts) -> Done:
        """Call and send. Each of them only while the run wants it."""
        step, fields = begun.step, {}

        async def entering() -> None:
            await self._hold(begun.id)

        if step.call:
            await entering()
            fields = dict(await self._function(step.call)(_context(begun, facts)) or {})
        if not step.send:
            return Done({}, fields)
        try:
            effects = await self._messages.send(job, begun, facts, entering)
        except errors.Cancelled:
            return Done({}, {}, skipped="the message was cancelled")
        status = effects["status"]
        if status in ("SENT", "UNKNOWN"):
            said = None if status == "SENT" else "the provider's answer was lost"
            return Done({"delivery": effects["delivery"], "channel": effects["channel"]}, fields, said=said)
        return Done(effects, {}, skipped=f"{status.lower()}: {effects.get('reason') or 'see the delivery'}")

    @asynccontextmanager
    async def _renewing(self, id: StepId) -> AsyncIterator[None]:
        """A hold that this step takes is believed for as long as it takes."""
        token = HOLDING.set(str(id))
        renewal = asyncio.create_task(self._renew(id))
        try:
            yield
        finally:
            HOLDING.reset(token)
            renewal.cancel()

    async def _renew(self, id: StepId) -> None:
        while True:
            await asyncio.sleep(HOLD / 3_000)  # a real message takes real time
            until = self._clock.now() + HOLD
            try:
                await self._database.write(partial(store.renew, run_id=id.run_id, by=str(id), until=until))
            except errors.EngineError as error:
                log.warning("a hold could not be renewed; trying again", step=str(id), error=str(error))

    def _function(self, name: str) -> Function:
        try:
            return self.functions[name]
        except KeyError:
            raise ConfigurationError(
                f"Nobody registered a function {name!r}: write @app.scenarios.function({name!r}) above one."
            ) from None

    async def _hold(self, id: StepId) -> None:
        """The last moment: from here on the message leaves, unless the run is no longer what it was."""
        fetched = await self._fetch(id)

        def take(connection: Connection) -> bool:
            now = self._clock.now()
            row = store.locked(connection, id.run_id)
            run = None if row is None else store.restored(row)
            if run is None or not store.is_pending(run, id):
                return False
            definition = self._library.version(connection, run.scenario, run.version)
            facts = self._facts.of(connection, definition, run, fetched)
            decision, _, _ = moves.fire(definition, run, facts, now)
            if not isinstance(decision, Perform):
                return False
            store.hold(connection, run.id, str(id), now + HOLD)
            return True

        if not await self._database.write(take):
            raise HeldBack
        fault_point("step.held")

    # ── 4: what is written, if the run did not wait for it ────────────────────────────────────────────────────────

    async def _recall(self, step: RunStep) -> dict[str, Any]:
        """The run was stopped or moved while this step's message may have been leaving: find out, and write it down."""
        delivery = await self._messages.left(step)
        if delivery is None:
            done = Done({}, {}, skipped="the run was stopped or moved before it was known to have left")
        else:
            done = Done({"delivery": delivery}, {})
            await self._apply_late(step, done)
        fetched = await self._fetch(step.id)

        def leave(connection: Connection) -> list[Entry]:
            row = store.locked_with_entity(connection, step.id.run_id)
            if row is None:
                return []
            return self._writing.leave(connection, replace(step, run=store.restored(row)), done, fetched)

        await self._outbox.follow(await self._database.write(leave))
        return {"status": "skipped" if done.skipped else "done"}

    async def _apply_late(self, step: RunStep, done: Done) -> None:
        """A store without transactions learns, too, that the message had left."""
        fetched = await self._fetch(step.id)

        def look(connection: Connection) -> tuple[RunStep, Facts] | None:
            row = store.read(connection, step.id.run_id)
            if row is None:
                return None
            run = store.restored(row)
            return replace(step, run=run), self._facts.of(connection, step.definition, run, fetched)

        if found := await self._database.read(look):
            await self._writing.apply_outside(*found, done)

    # ── What went wrong ───────────────────────────────────────────────────────────────────────────────────────────

    async def _went_wrong(self, job: Job[Any], id: StepId, error: Exception) -> None:
        said = str(error) if isinstance(error, errors.YamchiError) and str(error) else repr(error)
        if isinstance(error, Unrecoverable) or job.is_last_attempt:
            await self.fail(id, said)
        else:
            await self._note(id, f"attempt {job.attempts_made} failed: {said}")

    async def _note(self, id: StepId, said: str) -> None:
        """Why it has not happened yet, for whoever looks."""

        def note(connection: Connection) -> None:
            store.locked(connection, id.run_id)
            store.note(connection, id, said)
            store.release(connection, id.run_id, str(id))

        await self._database.write(note)

    async def fail(self, id: StepId, reason: str) -> None:
        """The step has used up its attempts: what its `on_failure` says."""
        fetched = await self._fetch(id)

        def fail(connection: Connection) -> list[Entry]:
            row = store.locked(connection, id.run_id)
            run = None if row is None else store.restored(row)
            if row is None or run is None:
                return []
            definition = self._library.version(connection, run.scenario, run.version)
            if not store.is_pending(run, id):
                return self._writing.give_up(connection, definition, run, id, reason)
            facts = self._facts.of(connection, definition, run, fetched)
            now = self._clock.now()
            after, changes = moves.fail(definition, run, facts, now, reason)
            return self._saver.save(connection, definition, row, after, changes, facts, now, by=str(id))

        entries = await self._database.write(fail)
        fault_point("step.failed")
        await self._outbox.follow(entries)


def _context(begun: RunStep, facts: Facts) -> Context:
    id, run = begun.id, begun.run
    return Context(str(id), run.scenario, run.key, id.step, facts.entity, run.event, facts.user)
