"""From an event to queued notifications, so that a crash anywhere loses and doubles nothing.

The event and the rows of its deliveries are written in one transaction; then the jobs are queued; then the event is
marked `enqueued`. Ids are derived, so each step may be repeated: by the caller who got no answer, or by the sweeper,
which finishes events that stayed `accepted`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from pydantic import ValidationError
from sqlalchemy import Connection, Row, select

from yamchi.clock import Clock, Millis, to_moment
from yamchi.errors import InvalidJob, YamchiError
from yamchi.faultpoints import fault_point
from yamchi.notifications.channels.base import Recipient
from yamchi.notifications.people.recipients import Recipients
from yamchi.notifications.policy.rules import EventRulesHandler
from yamchi.notifications.schemas.event import Event, EventAnswer, PlannedJob, TrialEvent
from yamchi.notifications.schemas.notification_job import DirectMessage, NotificationJob, as_test
from yamchi.notifications.sending.deliveries import Deliveries
from yamchi.notifications.tables import events, notification_delivery
from yamchi.perloop import PerLoop
from yamchi.queues.handlers import describe
from yamchi.queues.newjobs import New
from yamchi.queues.queue import Queue
from yamchi.queues.records import NewJob
from yamchi.storage.batching import Batcher
from yamchi.storage.database import Database
from yamchi.storage.outbox import PENDING, Outbox

log = structlog.get_logger("yamchi.notifications")

JOB = "send"
"""The name of notification jobs. It is fixed, since a process that only accepts events has no handlers."""

PLANNED_WITHOUT_PAUSE = 200
"""Events."""

STORED_TOGETHER = 500
"""Events of a batch. Others write between two such transactions: one of thousands that start scenarios takes a minute."""

REPEATED_AT_ONCE = 500
"""How many events that were accepted before are looked up in one query."""

PRIORITIES = {"normal": 5, "high": 10}


class EventFollower(Protocol):
    """A feature that takes part when events are stored: `notifications.service.followers.append(…)`."""

    async def prepare(self, events: Sequence[Event]) -> Any:
        """Load what it needs for these events from outside the database."""

    def store(self, connection: Connection, events: Sequence[Event], prepared: Any, now: Millis) -> Any:
        """Called in the transaction that stores these new events: store what they lead to."""

    async def follow(self, stored: Any) -> None:
        """Called after that transaction: do what was stored. After a crash in between, the follower's own sweeper does it."""


class NotificationService:
    """Accepts events and notification jobs, and queues them."""

    def __init__(
        self,
        database: Database,
        queue: Queue,
        rules: EventRulesHandler,
        recipients: Recipients,
        deliveries: Deliveries,
        clock: Clock,
    ) -> None:
        self._database = database
        self._queue = queue
        self._rules = rules
        self._recipients = recipients
        self._deliveries = deliveries
        self._clock = clock
        self.outbox = Outbox(
            database,
            clock,
            key=events.c.event_id,
            state=events.c.state,
            since=events.c.received_at,
            finish=self._finish,
            give_up=self._give_up,
            what="events",
        )
        self._arriving: PerLoop[Batcher[Event, EventAnswer]] = PerLoop(lambda: Batcher(self._accept_each))
        self.followers: list[EventFollower] = []
        self.checks: list[Callable[[Event], None]] = []
        """Each may refuse an event with `InvalidJob`, before anything of it is stored."""
        self.before_answering: list[Callable[[Sequence[Event]], Awaitable[None]]] = []
        """Awaited after events are stored and followed, before the caller gets the answer."""

    async def handle_event(self, event: Event) -> EventAnswer:
        """Accept one event. When this returns, every job it leads to is queued.

        Events that come at the same time are accepted together.
        """
        try:
            return await self._arriving.get().do(event)
        finally:
            await self._before_answering([event])

    async def handle_events(self, batch: Sequence[Event]) -> list[EventAnswer]:
        """Accept many events, a few hundred in one transaction and one call to the queue.

        If one of them can't be used, it raises and stores none. After an outage the whole batch may come again: events that were
        stored are then repetitions.
        """
        now = self._clock.now()
        plans = await self._plan(batch, now)
        for plan in plans:
            if plan.refused:
                raise plan.refused
        try:
            answers: list[EventAnswer] = []
            for begin in range(0, len(batch), STORED_TOGETHER):
                part = slice(begin, begin + STORED_TOGETHER)
                answers += await self._accept(batch[part], plans[part], now)
            return answers
        finally:
            await self._before_answering(batch)

    async def _before_answering(self, batch: Sequence[Event]) -> None:
        for wait in self.before_answering:
            await wait(batch)

    async def _accept_each(self, batch: Sequence[Event]) -> list[EventAnswer | Exception]:
        """The same for events of different callers: an event that is refused is an error for its own caller only."""
        now = self._clock.now()
        plans = await self._plan(batch, now)
        good = [(event, plan) for event, plan in zip(batch, plans, strict=True) if plan.refused is None]
        answers = iter(await self._accept([event for event, _ in good], [plan for _, plan in good], now))
        return [plan.refused or next(answers) for plan in plans]

    async def _accept(
        self, batch: Sequence[Event], plans: Sequence["_Plan"], now: Millis
    ) -> list[EventAnswer]:
        if not batch:
            return []
        fault_point("event.received")
        followed = [event for event in batch if not isinstance(event, TrialEvent)]  # tests start nothing else
        prepared = [await follower.prepare(followed) for follower in self.followers]
        fresh, stored = await self._database.write(
            lambda connection: self._store(connection, batch, plans, prepared, now)
        )
        fault_point("event.stored")
        for follower, what in zip(self.followers, stored, strict=True):
            await follower.follow(what)
        new = [(event, plan) for event, plan, is_new in zip(batch, plans, fresh, strict=True) if is_new]
        await self._queue.add_prepared([job for _, plan in new for job in plan.prepared])
        fault_point("event.enqueued")
        await self.outbox.mark([event.event_id for event, _ in new])
        fault_point("event.marked")
        repeated = [event for event, is_new in zip(batch, fresh, strict=True) if not is_new]
        answers = iter(await self._repeat(repeated))
        return [
            _answer(event, plan.jobs) if is_new else next(answers)
            for event, plan, is_new in zip(batch, plans, fresh, strict=True)
        ]

    async def send(self, jobs: Sequence[NotificationJob]) -> None:
        """Queue notification jobs as they are; a job that exists already is left alone.

        The jobs come first: after a crash in between, a job without a row gets its row when it runs, but nothing would ever queue
        the job of a row.
        """
        await self._queue.add_prepared(self._queue.prepare([_queued(job) for job in jobs]))
        await self._database.write(lambda connection: self._deliveries.queue(connection, jobs))

    async def send_direct(self, message: DirectMessage | Mapping[str, Any], job_id: str) -> None:
        """Queue a message to an address, with the priority of others: on Redis a job without one would overtake them."""
        await self._queue.add(message, name=JOB, id=job_id, priority=PRIORITIES["normal"])

    async def cancel(self, job_id: str) -> None:
        """Cancel the delivery first, then the job: a worker that has the job already sees the delivery's status."""
        await self._deliveries.cancel(job_id)
        try:
            await self._queue.cancel(job_id)
        except YamchiError as error:
            log.debug(
                "the job was not in its queue; the cancelled delivery is enough", job=job_id, error=str(error)
            )

    # ── Steps ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _plan(self, batch: Sequence[Event], now: Millis) -> list["_Plan"]:
        """The jobs of each event. People are looked up in one query."""
        users = {event.user_id: str(event.user_id) for event in batch if event.user_id}
        people = await self._recipients.get_all(users.values())
        plans = []
        for number, event in enumerate(batch, start=1):
            person = people.get(users[event.user_id]) if event.user_id else None
            plans.append(await self._plan_one(event, person, now))
            if number % PLANNED_WITHOUT_PAUSE == 0:
                await asyncio.sleep(0)  # a batch of thousands must not keep everybody else waiting
        return plans

    async def _plan_one(self, event: Event, person: Recipient | None, now: Millis) -> "_Plan":
        """The jobs of one event, encoded before anything is stored: an event whose jobs can't be queued is refused."""
        try:
            for check in self.checks:
                check(event)
            jobs = await self._rules.plan(event, person, now)
            if isinstance(event, TrialEvent):
                jobs = [as_test(job) for job in jobs]
            return _Plan(jobs, self._queue.prepare([_queued(job) for job in jobs], now))
        except InvalidJob as error:
            return _Plan([], [], error)

    def _store(
        self,
        connection: Connection,
        batch: Sequence[Event],
        plans: Sequence["_Plan"],
        prepared: Sequence[Any],
        now: Millis,
    ) -> tuple[list[bool], list[Any]]:
        """Store the events, their deliveries and what other features add, together. True for each event that is new."""
        rows = [_event_row(event, now) for event in batch]
        fresh = self.outbox.store(connection, rows)
        planned = [job for plan, is_new in zip(plans, fresh, strict=True) if is_new for job in plan.jobs]
        self._deliveries.queue(connection, planned)
        new = [
            event
            for event, is_new in zip(batch, fresh, strict=True)
            if is_new and not isinstance(event, TrialEvent)
        ]
        stored = [
            follower.store(connection, new, known, now)
            for follower, known in zip(self.followers, prepared, strict=True)
        ]
        return fresh, stored

    async def _finish(self, event_id: str) -> None:
        """Queue what an accepted event leads to, from its own rows, and mark it. What can't be queued has failed."""
        prepared: list[NewJob] = []
        refused: dict[str, str] = {}
        for row in await self._deliveries.of_event(event_id):
            if row.status == "QUEUED" and row.job:
                try:
                    prepared += self._queue.prepare([_queued(NotificationJob.model_validate(row.job))])
                except (InvalidJob, ValidationError) as error:
                    refused[row.job_id] = f"It can't be queued: {_reason(error)}"
        await self._queue.add_prepared(prepared)
        await self._fail(refused)
        await self.outbox.mark([event_id])

    async def _give_up(self, event_id: str, reason: str) -> None:
        waiting = [row.job_id for row in await self._deliveries.of_event(event_id) if row.status == "QUEUED"]
        await self._fail(dict.fromkeys(waiting, reason))
        await self.outbox.mark([event_id])

    async def _fail(self, reasons: Mapping[str, str]) -> None:
        """Mark these deliveries as failed; their jobs were never queued."""
        if not reasons:
            return

        def end(connection: Connection) -> None:
            for job_id, reason in reasons.items():
                which = notification_delivery.c.job_id == job_id
                self._deliveries.end(connection, which, "FAILED", error=reason)

        await self._database.write(end)
        for job_id, reason in reasons.items():
            log.error(f"notification {job_id} failed: {reason}")

    async def _repeat(self, repeated: Sequence[Event]) -> list[EventAnswer]:
        """Answer for events that were accepted before; those that were interrupted then are finished now.

        A caller who sends another event under the same id only learns that the id is taken.
        """
        answers: list[EventAnswer] = []
        for begin in range(0, len(repeated), REPEATED_AT_ONCE):
            some = repeated[begin : begin + REPEATED_AT_ONCE]
            kept = await self._kept(some)
            same = {event.event_id for event in some if _is_same(event, kept.get(event.event_id))}
            for event_id in same:
                if kept[event_id].state == PENDING:
                    await self._finish(event_id)
            rows = await self._deliveries.of_events(list(same)) if same else {}
            answers += [
                _repeated(event, rows[event.event_id] if _is_same(event, kept.get(event.event_id)) else [])
                for event in some
            ]
        return answers

    async def _kept(self, some: Sequence[Event]) -> dict[str, Row[Any]]:
        """What is kept under the ids of these events."""
        query = select(*(events.c[name] for name in ("event_id", "event_type", "user_id", "state"))).where(
            events.c.event_id.in_({event.event_id for event in some})
        )
        rows = await self._database.rows(query)
        return {row.event_id: row for row in rows}


def _is_same(event: Event, kept: Row[Any] | None) -> bool:
    """Whether the event that is kept under this id is of the same type and about the same person."""
    told = (event.event_type, event.person_id)
    return kept is not None and (kept.event_type, kept.user_id) == told


def _repeated(event: Event, rows: Sequence[Row[Any]]) -> EventAnswer:
    planned = [
        PlannedJob(job_id=row.job_id, channel=row.channel, template_code=row.template_code, status=row.status)
        for row in rows
    ]
    return EventAnswer(event_id=event.event_id, jobs=planned, duplicate=True)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What an event leads to, or why it can't be taken."""

    jobs: list[NotificationJob]
    prepared: list[NewJob]
    refused: InvalidJob | None = None


def _reason(error: Exception) -> str:
    return describe(error) if isinstance(error, ValidationError) else str(error)


def _event_row(event: Event, now: Millis) -> dict[str, Any]:
    return {
        "event_id": event.event_id,
        "event_type": event.event_type,
        "user_id": event.person_id,
        "data": event.data,
        "occurred_at": to_moment(event.occurred_at) if event.occurred_at else now,
        "received_at": now,
    }


def _queued(job: NotificationJob) -> New:
    return New(
        job, name=JOB, id=job.delivery_id, run_at=job.send_after, priority=PRIORITIES[job.meta.priority]
    )


def _answer(event: Event, jobs: Sequence[NotificationJob]) -> EventAnswer:
    planned = [
        PlannedJob(
            job_id=job.delivery_id, channel=job.channel, template_code=job.template_code, status="QUEUED"
        )
        for job in jobs
    ]
    return EventAnswer(event_id=event.event_id, jobs=planned)
