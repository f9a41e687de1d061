"""From an event to queued notifications, so that a crash anywhere loses and doubles nothing.

The event and the rows of its deliveries are written in one transaction; then the jobs are queued; then the event is
marked `enqueued`. Ids are derived, so each step may be repeated: by the caller who got no answer, or by the sweeper,
which finishes events that stayed `accepted`.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import structlog
from sqlalchemy import Connection, Insert, Row, select, update
from sqlalchemy.dialects import postgresql, sqlite

from yamchi.clock import Clock, Millis, to_moment
from yamchi.errors import EngineError, YamchiError
from yamchi.faultpoints import fault_point
from yamchi.notifications.deliveries import Deliveries
from yamchi.notifications.recipients import Recipients
from yamchi.notifications.rules import EventRulesHandler
from yamchi.notifications.schemas.event import Event, EventAnswer, PlannedJob
from yamchi.notifications.schemas.notification_job import NotificationJob
from yamchi.queues.queue import New, Queue
from yamchi.storage.batching import Batcher
from yamchi.storage.database import Database
from yamchi.storage.hotrows import write_rows
from yamchi.storage.tables import events

log = structlog.get_logger("yamchi.notifications")

JOB = "send"
"""The name of notification jobs, whoever adds them: a process that only takes events in has no handlers to tell."""

PRIORITIES = {"normal": 5, "high": 10}
SWEEP_AFTER: Millis = 10_000
"""An event that has been `accepted` for this long was interrupted."""

SWEPT_AT_ONCE = 200


class NotificationService:
    """The way in: events, and notification jobs as they are."""

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
        dialect = sqlite if database.is_embedded else postgresql
        self._new_event = dialect.insert(events).on_conflict_do_nothing()
        self._arriving = Batcher(self.handle_events)

    async def handle_event(self, event: Event) -> EventAnswer:
        """Accept one event; when this returns, everything it leads to is safely queued.

        Events that come at the same time are accepted together.
        """
        return await self._arriving.do(event)

    async def handle_events(self, batch: Sequence[Event]) -> list[EventAnswer]:
        """Accept many events with one transaction and one call to the queue."""
        now = self._clock.now()
        plans = await self._plan(batch, now)
        fault_point("event.received")
        fresh = await self._database.write(lambda connection: self._store(connection, batch, plans, now))
        fault_point("event.stored")
        new_jobs = [job for jobs, is_new in zip(plans, fresh, strict=True) if is_new for job in jobs]
        await self._enqueue(new_jobs)
        fault_point("event.enqueued")
        await self._mark([event.event_id for event, is_new in zip(batch, fresh, strict=True) if is_new])
        fault_point("event.marked")
        return [
            _answer(event, jobs) if is_new else await self._repeat(event)
            for event, jobs, is_new in zip(batch, plans, fresh, strict=True)
        ]

    async def send(self, jobs: Sequence[NotificationJob]) -> None:
        """Queue notification jobs as they are; one that is there already is left alone."""
        await self._database.write(lambda connection: self._deliveries.queue(connection, jobs))
        await self._enqueue(jobs)

    async def cancel(self, job_id: str) -> None:
        """The tombstone first, then the job: whatever is under way meets the one or the other."""
        await self._deliveries.cancel(job_id)
        try:
            await self._queue.cancel(job_id)
        except YamchiError as error:
            log.debug("the job was not in its queue; its tombstone is enough", job=job_id, error=str(error))

    async def sweep(self) -> int:
        """Finish events that a crash interrupted; how many there were."""
        before = self._clock.now() - SWEEP_AFTER
        query = (
            select(events.c.event_id)
            .where((events.c.state == "accepted") & (events.c.received_at <= before))
            .limit(SWEPT_AT_ONCE)
        )
        found = await self._database.read(lambda connection: connection.execute(query).scalars().all())
        for event_id in found:
            await self._finish(event_id)
        return len(found)

    async def watch(self) -> None:
        """Sweep for ever; any number of processes may."""
        while True:
            try:
                if swept := await self.sweep():
                    log.warning(f"finished {swept} events that had been interrupted")
            except EngineError as error:
                log.warning("interrupted events could not be looked for; trying again", error=str(error))
            await self._clock.sleep(SWEEP_AFTER // 2)

    # ── Steps ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _plan(self, batch: Sequence[Event], now: Millis) -> list[list[NotificationJob]]:
        """What each event leads to. People are looked up together; the rest hardly ever waits."""
        users = {event.user_id: str(event.user_id) for event in batch if event.user_id}
        found = await asyncio.gather(*map(self._recipients.get, users.values()))
        people = dict(zip(users, found, strict=True))
        return [
            await self._rules.plan(event, people[event.user_id] if event.user_id else None, now)
            for event in batch
        ]

    def _store(
        self,
        connection: Connection,
        batch: Sequence[Event],
        plans: Sequence[list[NotificationJob]],
        now: Millis,
    ) -> list[bool]:
        """The event and its deliveries together. True for each event that is new."""
        rows = [_event_row(event, now) for event in batch]
        fresh = _insert_each(connection, self._new_event, rows)
        planned = [job for jobs, is_new in zip(plans, fresh, strict=True) if is_new for job in jobs]
        self._deliveries.queue(connection, planned)
        return fresh

    async def _enqueue(self, jobs: Sequence[NotificationJob]) -> None:
        if jobs:
            await self._queue.add_many([_queued(job) for job in jobs])

    async def _mark(self, event_ids: Sequence[str]) -> None:
        if event_ids:
            done = update(events).where(events.c.event_id.in_(event_ids)).values(state="enqueued")
            await self._database.write(lambda connection: connection.execute(done).rowcount)

    async def _finish(self, event_id: str) -> list[Row[Any]]:
        """Queue what an accepted event leads to, from its own rows, and mark it."""
        rows = await self._deliveries.of_event(event_id)
        pending = [row for row in rows if row.status == "QUEUED" and row.job]
        await self._enqueue([NotificationJob.model_validate(row.job) for row in pending])
        await self._mark([event_id])
        return rows

    async def _repeat(self, event: Event) -> EventAnswer:
        """An event that was accepted before: if it was interrupted then, finish it now."""
        state = select(events.c.state).where(events.c.event_id == event.event_id)
        interrupted = await self._database.read(lambda c: c.execute(state).scalar()) == "accepted"
        rows = await (self._finish if interrupted else self._deliveries.of_event)(event.event_id)
        planned = [
            PlannedJob(
                job_id=row.job_id, channel=row.channel, template_code=row.template_code, status=row.status
            )
            for row in rows
        ]
        return EventAnswer(event_id=event.event_id, jobs=planned, duplicate=True)


def _insert_each(connection: Connection, statement: Insert, rows: list[dict[str, Any]]) -> list[bool]:
    """Which rows are new: all of them nearly always, and then it is one statement; else those known are left out."""
    with connection.begin_nested() as attempt:
        if write_rows(connection, statement, rows) == len(rows):
            return [True] * len(rows)
        attempt.rollback()
    known = select(events.c.event_id).where(events.c.event_id.in_([row["event_id"] for row in rows]))
    taken = set(connection.execute(known).scalars())
    fresh = []
    for row in rows:
        fresh.append(row["event_id"] not in taken)
        taken.add(row["event_id"])
    new = [row for row, is_new in zip(rows, fresh, strict=True) if is_new]
    if new and write_rows(connection, statement, new) != len(new):
        raise EngineError("The same events were accepted elsewhere at this moment: send them again.")
    return fresh


def _event_row(event: Event, now: Millis) -> dict[str, Any]:
    return {
        "event_id": event.event_id,
        "event_type": event.event_type,
        "user_id": None if event.user_id is None else str(event.user_id),
        "data": event.data,
        "occurred_at": to_moment(event.occurred_at) if event.occurred_at else now,
        "received_at": now,
        "state": "accepted",
    }


def _queued(job: NotificationJob) -> New:
    return New(
        job, name=JOB, id=job.delivery_id, run_at=job.send_after, priority=PRIORITIES[job.meta.priority]
    )


def _answer(event: Event, jobs: Sequence[NotificationJob]) -> EventAnswer:
    """Made of what has been checked already, so it is not checked again."""
    planned = [
        PlannedJob.model_construct(
            job_id=job.delivery_id, channel=job.channel, template_code=job.template_code, status="QUEUED"
        )
        for job in jobs
    ]
    return EventAnswer.model_construct(event_id=event.event_id, jobs=planned)
