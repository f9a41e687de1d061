"""Digests: messages are collected and sent as one. Twenty new films are one e-mail, at nine in the morning.

A digest has an id derived from the person, the channel, the template and the moment at which it is due, so that all
processes collect into the same one, which one job sends. It is closed before it is sent: a message that comes later finds
it closed, by a row that both must write, and goes into the next. Collected deliveries end with the status of the digest.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from sqlalchemy import ColumnElement, Connection, asc, delete, exists, func, literal, or_, select, update

from yamchi.clock import Clock, Millis, as_datetime
from yamchi.notifications.people.quiet_hours import moment_of, read_time
from yamchi.notifications.policy.context import SendContext
from yamchi.notifications.policy.model import DAY, Digest, Policy, as_meta
from yamchi.notifications.schemas.notification_job import Meta, NotificationJob, derived_id
from yamchi.notifications.sending.deliveries import Deliveries
from yamchi.notifications.sending.statuses import FINAL, OVER
from yamchi.notifications.tables import digest_items as items
from yamchi.notifications.tables import digests as table
from yamchi.notifications.tables import notification_delivery as delivered
from yamchi.storage.database import Database
from yamchi.storage.tables import Moment

MAX_ITEMS = 200
"""Items that a template sees; the rest is counted."""

RETENTION: Millis = 2 * DAY
"""How long a digest that is over and was due is remembered, so that nothing more is collected for it."""

LONGEST_RETENTION: Millis = 30 * DAY
"""The same whoever it is of, and with its items, which one that was cancelled has still."""

PRUNE_EVERY: Millis = DAY
PRUNE_BATCH = 1_000

GONE_WITH_DIGEST = "Its digest was cancelled"

MAY_BE_TOLD_AGAIN = ("FAILED", "CANCELLED")
"""A dead letter may be replayed, and a job that was cancelled put back: their items are kept."""

UNCHANGED_STATUSES = tuple(status for status in FINAL if status != "FAILED")
"""What stays as it is when its digest is told after all."""


def next_due(digest: Digest, now: Millis, zone: ZoneInfo) -> Millis:
    """When a digest that collects now is sent. Weeks begin on Monday."""
    if digest.time is None:
        return (now // digest.every + 1) * digest.every
    days, clock = digest.every // DAY, read_time(digest.time)
    today = as_datetime(now).astimezone(zone).date()
    day = today + timedelta(days=-(today.toordinal() - 1) % days)
    if (due := moment_of(day, clock, zone)) > now:
        return due
    return moment_of(day + timedelta(days=days), clock, zone)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The items of a digest."""

    items: list[dict[str, Any]]
    count: int

    def as_data(self) -> dict[str, Any]:
        """As its template sees it."""
        return {"items": self.items, "count": self.count, "more": self.count - len(self.items)}


class Digests:
    """The tables `digests` and `digest_items`."""

    def __init__(self, database: Database, deliveries: Deliveries, clock: Clock) -> None:
        self._database = database
        self._deliveries = deliveries
        self._clock = clock
        self._open = database.insert(table).on_conflict_do_nothing()
        self._add = database.insert(items).on_conflict_do_nothing()
        deliveries.when_cancelled.append(self._cancel)
        deliveries.when_restored.append(self._restore)

    # ── Collecting ────────────────────────────────────────────────────────────────────────────────────────────────

    async def collect(self, context: SendContext, digest: Digest) -> NotificationJob | None:
        """Store this item in its digest; returns the job that sends the digest, None if the item is over. Repeating changes nothing."""
        found = await self._database.write(lambda connection: self._collect(connection, context, digest))
        return found and _digest_job(context, digest, found.digest_id, found.due_at)

    def _collect(self, connection: Connection, context: SendContext, digest: Digest) -> Any:
        job_id = context.job.delivery_id
        place = select(items.c.digest_id, table.c.due_at).join_from(items, table, _belongs())
        place = place.where(items.c.job_id == job_id)
        if known := connection.execute(place).first():
            return known
        # Whoever runs its job once more may have looked at it before its digest was told, and comes here after.
        status = connection.execute(select(delivered.c.status).where(delivered.c.job_id == job_id)).scalar()
        if status in OVER:
            return None
        if status is None:
            # What another program queued has no row yet: it could not be told from what was never told.
            self._deliveries.queue(connection, [context.job])
        connection.execute(
            self._add, _item(context, self._into(connection, context, digest), self._clock.now())
        )
        return connection.execute(place).one()

    def _into(self, connection: Connection, context: SendContext, digest: Digest) -> str:
        """The next digest that is still open; its row is ours until this transaction ends."""
        user_id, now = str(context.job.user_id), self._clock.now()
        due = next_due(digest, now, context.zone)
        while True:
            digest_id = str(derived_id("digest", digest.template, user_id, context.channel.name, str(due)))
            row = {"digest_id": digest_id, "user_id": user_id, "due_at": due, "touched_at": now}
            connection.execute(self._open, row | {"carrier": digest_id})
            is_open = (table.c.digest_id == digest_id) & table.c.closed_at.is_(None)
            if connection.execute(update(table).where(is_open).values(touched_at=now)).rowcount:
                return digest_id
            due = next_due(digest, due, context.zone)

    # ── Telling ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def gather(self, digest_id: str, job: NotificationJob) -> Gathered:
        """Close the digest and return its items, oldest first. None for a job that is not the digest's own."""
        return await self._database.write(lambda connection: self._gather(connection, digest_id, job))

    def _gather(self, connection: Connection, digest_id: str, job: NotificationJob) -> Gathered:
        now = self._clock.now()
        is_its_own = (table.c.carrier == job.delivery_id) & (table.c.user_id == str(job.user_id))
        closing = update(table).where((table.c.digest_id == digest_id) & is_its_own)
        closing = closing.values(closed_at=func.coalesce(table.c.closed_at, literal(now, Moment)))
        if not connection.execute(closing).rowcount:
            return Gathered([], 0)
        joined = items.outerjoin(delivered, delivered.c.job_id == items.c.job_id)
        is_told = (
            (items.c.digest_id == digest_id)
            & or_(items.c.expires_at.is_(None), items.c.expires_at > now)
            & func.coalesce(delivered.c.status, "QUEUED").not_in(("CANCELLED", "EXPIRED"))
        )
        count = connection.execute(select(func.count()).select_from(joined).where(is_told)).scalar_one()
        told = select(items.c.data).select_from(joined).where(is_told).limit(MAX_ITEMS)
        told = told.order_by(asc(items.c.collected_at), asc(items.c.job_id))
        return Gathered(list(connection.execute(told).scalars()), count)

    async def hand_over(self, digest_id: str, job_id: str, next_id: str) -> None:
        """From now on another job sends the digest, if it was this one that did."""
        is_ours = (table.c.digest_id == digest_id) & (table.c.carrier == job_id)
        change = update(table).where(is_ours).values(carrier=next_id)
        await self._database.execute(change)

    async def settle(self, digest_id: str, job_id: str) -> None:
        """Once the job of the digest is over, its items end with the same status."""
        await self._database.write(lambda connection: self._settle(connection, digest_id, job_id))

    def _settle(self, connection: Connection, digest_id: str, job_id: str) -> None:
        is_it = (table.c.digest_id == digest_id) & (table.c.carrier == job_id)
        query = select(table.c.user_id, delivered).join_from(table, delivered, delivered.c.job_id == job_id)
        digest_delivery = connection.execute(query.where(is_it)).first()
        if digest_delivery is None or digest_delivery.status not in FINAL:
            return
        self._end_late(connection, digest_id)
        if digest_delivery.status == "SENT":  # though it was cancelled, when its provider had it already
            self._restore(connection, job_id)
        self._deliveries.end(
            connection,
            _collected(digest_id),
            digest_delivery.status,
            unless=UNCHANGED_STATUSES,
            error=digest_delivery.last_error,
            provider_message_id=digest_delivery.provider_message_id,
        )
        if digest_delivery.status not in MAY_BE_TOLD_AGAIN:
            connection.execute(delete(items).where(items.c.digest_id == digest_id))
            before = self._clock.now() - RETENTION
            is_old = (table.c.closed_at < before) & (table.c.due_at < before)
            may_be_told = exists().where(_belongs())
            theirs = (table.c.user_id == digest_delivery.user_id) & is_old & ~may_be_told
            connection.execute(delete(table).where(theirs))

    def _end_late(self, connection: Connection, digest_id: str) -> None:
        """Items that expired before their digest was sent."""
        is_late = items.c.expires_at <= self._clock.now()
        self._deliveries.end(connection, _collected(digest_id, is_late), "EXPIRED")

    def _cancel(self, connection: Connection, job_id: str) -> None:
        """A digest was cancelled: close it, and cancel its items. They are kept, since its job may be put back."""
        closing = update(table).where(_carried_by(job_id)).values(closed_at=self._clock.now())
        digest_id = connection.execute(closing.returning(table.c.digest_id)).scalar()
        if digest_id is not None:
            self._deliveries.end(connection, _collected(digest_id), "CANCELLED", error=GONE_WITH_DIGEST)

    def _restore(self, connection: Connection, job_id: str) -> None:
        """A digest is told after all: so is what was cancelled with it."""
        digest_id = connection.execute(select(table.c.digest_id).where(_carried_by(job_id))).scalar()
        if digest_id is not None:
            went_along = (delivered.c.status == "CANCELLED") & (delivered.c.last_error == GONE_WITH_DIGEST)
            self._deliveries.end(connection, _collected(digest_id) & went_along, "QUEUED", unless=())

    # ── Forgetting ────────────────────────────────────────────────────────────────────────────────────────────────

    async def watch(self) -> None:
        """Prune once a day."""
        while True:
            await self.prune()
            await self._clock.sleep(PRUNE_EVERY)

    async def prune(self) -> int:
        """Forget digests that have long been over, except those that failed, which may be told whenever; how many went."""
        gone = 0
        while some := await self._database.write(self._forget_some):
            gone += some
        return gone

    def _forget_some(self, connection: Connection) -> int:
        before = self._clock.now() - LONGEST_RETENTION
        is_over = exists().where(
            delivered.c.job_id == table.c.carrier, delivered.c.status.in_(UNCHANGED_STATUSES)
        )
        old = select(table.c.digest_id).where(table.c.closed_at < before, table.c.due_at < before, is_over)
        ids = connection.execute(old.limit(PRUNE_BATCH)).scalars().all()
        connection.execute(delete(items).where(items.c.digest_id.in_(ids)))
        connection.execute(delete(table).where(table.c.digest_id.in_(ids)))
        return len(ids)


def _belongs() -> ColumnElement[bool]:
    return table.c.digest_id == items.c.digest_id


def _carried_by(job_id: str) -> ColumnElement[bool]:
    person = select(delivered.c.user_id).where(delivered.c.job_id == job_id).scalar_subquery()
    return (table.c.user_id == person) & (table.c.carrier == job_id)


def _collected(digest_id: str, *which: ColumnElement[bool]) -> ColumnElement[bool]:
    """The deliveries of what was collected."""
    query = select(items.c.job_id).where(items.c.digest_id == digest_id, *which)
    return delivered.c.job_id.in_(query)


def _item(context: SendContext, digest_id: str, now: Millis) -> dict[str, Any]:
    job = context.job
    return {
        "job_id": job.delivery_id,
        "digest_id": digest_id,
        "user_id": str(job.user_id),
        "event_type": job.meta.event_type,
        "data": job.data,
        "collected_at": now,
        "expires_at": context.expires_at,
    }


def _digest_job(context: SendContext, digest: Digest, digest_id: str, due: Millis) -> NotificationJob:
    """The job that sends a digest: the same for every item."""
    job, policy = context.job, context.policy
    handling = Policy(then=policy.then, cap=policy.cap, escalate=policy.escalate, gathers=digest_id)
    return job.model_copy(
        update={
            "job_id": UUID(digest_id),
            "template_code": digest.template,
            "data": {},
            "meta": Meta(
                event_type="digest",
                event_id=f"digest-{digest_id}",
                priority=job.meta.priority,
                **as_meta(handling),
            ),
            "send_after": as_datetime(due),
            "expires_at": None,
        }
    )
