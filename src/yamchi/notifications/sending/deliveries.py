"""The table `notification_delivery`: one row per job with its status, and `delivery_attempts`: one row per attempt."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, get_args

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    case,
    null,
    or_,
    select,
    update,
)

from yamchi.clock import Clock, Millis, to_moment
from yamchi.errors import UnknownJob, WrongState
from yamchi.notifications.schemas.notification_job import NOBODY, NotificationJob
from yamchi.notifications.sending.campaign_counts import CampaignCounts, Place
from yamchi.notifications.sending.delivery_views import DeliveryViews
from yamchi.notifications.sending.statuses import (
    BEING_SENT,
    FINAL,
    LOST,
    NOT_AGAIN,
    NOT_SENT,
    OVER,
    WAITING,
    Outcome,
    Status,
    is_being_sent,
)
from yamchi.notifications.tables import delivery_attempts
from yamchi.notifications.tables import notification_delivery as table
from yamchi.storage.bulkinsert import write_rows
from yamchi.storage.database import Database, Put, Together
from yamchi.storage.database import Row as NewRow

Observer = Callable[[str, str], None]
"""Called with the channel and status of every delivery that is recorded."""

LONGEST_RUN: Millis = 300_000
"""No message takes longer than this, unless its job says so: every request to a provider has a deadline of its own."""

LONGEST_VARIANT = 64


class Deliveries(DeliveryViews):
    """Reads and writes in batches. `SENT` is never overwritten; `CANCELLED` only by a final status."""

    def __init__(
        self, database: Database, clock: Clock, observe: Observer = lambda channel, status: None
    ) -> None:
        super().__init__(database)
        self._clock = clock
        self._observe = observe
        self.campaign_counts = CampaignCounts(database)
        self._queue = database.insert(table).on_conflict_do_nothing()
        new = database.insert(table)
        changed = (
            "channel",  # and the template: a dead letter may be corrected before it is replayed
            "template_code",
            "status",
            "attempts",
            "last_error",
            "provider_message_id",
            "updated_at",
            "sent_at",
            "due_at",
        )
        is_over = or_(table.c.status != "CANCELLED", and_(*(new.excluded.status != one for one in WAITING)))
        kept = case((new.excluded.status == "UNKNOWN", new.excluded.job), else_=_kept_with(table.c.user_id))
        self._save = new.on_conflict_do_update(
            index_elements=["job_id"],
            set_={
                "job": kept,
                "user_id": case(
                    (table.c.user_id.is_(None), null()), else_=new.excluded.user_id
                ),  # erased stays so
                **{name: new.excluded[name] for name in changed},
            },
            where=(table.c.status != "SENT") & is_over,
        )
        self._note = database.insert(delivery_attempts).on_conflict_do_nothing()
        self._save_all: Together = self._save_together
        self.when_not_sent: list[Callable[[Connection, Sequence[str]], None]] = []
        """Called in the transaction that ends jobs without a message, with their ids."""
        self.when_cancelled: list[Callable[[Connection, str], None]] = []
        """Called in the transaction that cancels a job, with its id."""
        self.when_restored: list[Callable[[Connection, str], None]] = []
        """Called in the transaction that restores a job, with its id."""

    def queue(self, connection: Connection, jobs: Sequence[NotificationJob]) -> None:
        """Inside a transaction of the caller: create the rows of jobs that are about to be queued."""
        now = self._clock.now()
        rows = [_row(job, "QUEUED", now, keep_job=True) for job in jobs]
        write_rows(connection, self._queue, [row for row in rows if not row["campaign_id"]])
        for row in rows:
            if row["campaign_id"]:
                self._make(connection, row)

    def _make(self, connection: Connection, row: NewRow) -> bool:
        """Create a row, and count it for its campaign; False if there is one."""
        if not write_rows(connection, self._queue, [row]):
            return False
        if row["campaign_id"]:
            place = row["campaign_id"], row["variant"] or "", row["status"]
            self.campaign_counts.shift(connection, {place: 1})
        return True

    async def record(
        self,
        job: NotificationJob,
        status: Status,
        *,
        attempts: int,
        error: str | None = None,
        provider_message_id: str | None = None,
        due_at: Millis | None = None,
        beside: Sequence[Put] = (),
    ) -> None:
        """Set the status and write `beside` in one transaction. A job that another system queued gets its row here.

        One that is `UNKNOWN` keeps its job, to be sent again from.
        """
        now = self._clock.now()
        row = _row(job, status, now, keep_job=status == "UNKNOWN")
        row |= {"attempts": attempts, "last_error": error, "provider_message_id": provider_message_id}
        row["due_at"] = due_at
        row["sent_at"] = now if status == "SENT" else None
        await self._database.put_all(Put(self._save_all, row), *beside)
        self._observe(job.channel, status)

    async def note_due(self, job: NotificationJob) -> None:
        """Note until when a job waits that came before its `send_after`, as another program's may."""
        row = _row(job, "QUEUED", self._clock.now())
        is_waiting = (table.c.job_id == job.delivery_id) & (table.c.status == "QUEUED")
        change = update(table).where(is_waiting).values(due_at=row["due_at"])

        def note(connection: Connection) -> None:
            if not self._make(connection, row):
                connection.execute(change)

        await self._database.write(note)

    async def hand_over(self, job: NotificationJob, attempts: int) -> bool:
        """Set `UNKNOWN` and return True, unless it is over or another worker is sending it: of two that ask, one may send."""
        row = _row(job, "UNKNOWN", self._clock.now(), keep_job=True)
        row |= {"attempts": attempts, "last_error": BEING_SENT, "due_at": None}
        query = select(table.c.status).where(table.c.job_id == job.delivery_id).with_for_update()

        def begin(connection: Connection) -> bool:
            known = connection.execute(query).scalar()
            if known is None:  # there is nothing to lock: who makes the row may send
                return self._make(connection, row)
            if known in (*OVER, "UNKNOWN"):
                return False
            self._save_together(connection, [row])
            return True

        return await self._database.write(begin)

    def _save_together(self, connection: Connection, rows: Sequence[NewRow]) -> None:
        if of_campaigns := [row for row in rows if row["campaign_id"]]:
            self._shift_counts(connection, of_campaigns)
        write_rows(connection, self._save, rows)
        self._tell_not_sent(connection, [row["job_id"] for row in rows if row["status"] in NOT_SENT])

    def _tell_not_sent(self, connection: Connection, job_ids: Sequence[str]) -> None:
        for tell in self.when_not_sent if job_ids else ():
            tell(connection, job_ids)

    def _shift_counts(self, connection: Connection, rows: Sequence[NewRow]) -> None:
        """Update the counts of campaigns for rows that are about to be saved. One query for all rows."""
        ids = sorted(row["job_id"] for row in rows)
        query = select(table.c.job_id, table.c.status).where(table.c.job_id.in_(ids))
        before = connection.execute(query.order_by(table.c.job_id).with_for_update())
        statuses: dict[str, str] = {row.job_id: row.status for row in before}
        moves: Counter[Place] = Counter()
        for row in rows:
            old, new = statuses.get(row["job_id"]), row["status"]
            if old != "SENT" and not (old == "CANCELLED" and new in WAITING):
                _move(moves, row["campaign_id"], row["variant"], old, new)
                statuses[row["job_id"]] = new
        self.campaign_counts.shift(connection, moves)

    def attempt(
        self, job_id: str, attempt: int, outcome: Outcome, answer: str | None, started_at: Millis
    ) -> Put:
        """The row of an attempt that has just ended, to be written with the status."""
        row = {
            "job_id": job_id,
            "started_at": started_at,
            "attempt": attempt,
            "outcome": outcome,
            "answer": answer,
            "finished_at": self._clock.now(),
        }
        return Put(self._note, row)

    async def cancel(self, job_id: str) -> None:
        """Set `CANCELLED`, which is checked before sending. Raises if it is too late."""
        if not await self._database.write(lambda connection: self._cancel(connection, job_id, FINAL)):
            current = await self.status(job_id)
            if current is None:
                raise UnknownJob(f"There is no notification {job_id!r}.")
            raise WrongState(f"Notification {job_id} can't be cancelled: it is {current}.")

    async def withdraw(self, jobs: Sequence[NotificationJob], status: Status = "CANCELLED") -> None:
        """Their jobs will not run: end the deliveries that wait, and leave to a person those that may have arrived.

        A job that another program queued has no row before it is sent, and gets one here.
        """
        over = tuple(one for one in get_args(Status) if one not in WAITING)
        job_ids = sorted(job.delivery_id for job in jobs)

        def end(connection: Connection) -> None:
            self.queue(connection, jobs)
            for job_id in job_ids:
                self._cancel(connection, job_id, over, status)
            connection.execute(_LEAVE, {"job_ids": job_ids})

        await self._database.write(end)

    async def leave(self, job_id: str) -> None:
        """A delivery that is `UNKNOWN` is not sent again without a person's decision."""
        await self._database.write(
            lambda connection: connection.execute(_LEAVE, {"job_ids": [job_id]}).rowcount
        )

    async def restore(self, job_ids: Sequence[str]) -> None:
        """Their jobs are put back: those that are `CANCELLED` wait again."""

        def restore(connection: Connection) -> None:
            for job_id in sorted(job_ids):
                self._change(connection, job_id, "CANCELLED", "QUEUED")

        await self._database.write(restore)

    def _change(
        self, connection: Connection, job_id: str, before: Status, status: Status, said: str | None = None
    ) -> bool:
        """Change one status to another. `QUEUED` restores the delivery."""
        which = (table.c.job_id == job_id) & (table.c.status == before)
        has_changed = bool(self.end(connection, which, status, unless=(), error=said))
        for tell in self.when_restored if has_changed and status == "QUEUED" else ():
            tell(connection, job_id)
        return has_changed

    def _cancel(
        self,
        connection: Connection,
        job_id: str,
        unless: Sequence[Status],
        status: Status = "CANCELLED",
    ) -> bool:
        if not self.end(connection, table.c.job_id == job_id, status, unless=unless):
            return False
        for tell in self.when_cancelled:
            tell(connection, job_id)
        return True

    async def being_sent_until(self, job_id: str) -> Millis | None:
        """Until when a worker may be sending this. None if none is, or if that worker will never report."""
        is_it = (table.c.job_id == job_id) & is_being_sent()
        lost = update(table).where(is_it & (table.c.updated_at <= self._clock.now() - LONGEST_RUN))
        lost = lost.values(last_error=LOST)
        began = select(table.c.updated_at).where(is_it)

        def look(connection: Connection) -> Millis | None:
            connection.execute(lost)
            return connection.execute(began).scalar()

        began_at = await self._database.write(look)
        return None if began_at is None else began_at + LONGEST_RUN

    async def decide(self, job_id: str, status: Status, said: str) -> None:
        """Set the status of a delivery that is left to a person."""
        await self.check_left(job_id)
        if not await self._database.write(lambda c: self._change(c, job_id, "UNKNOWN", status, said)):
            raise WrongState(f"Notification {job_id} was decided about by somebody else at this moment.")

    async def check_left(self, job_id: str) -> None:
        """Raise unless it is `UNKNOWN` and no worker is sending it at this moment."""
        if await self.being_sent_until(job_id) is not None:
            raise WrongState(f"Notification {job_id} is being sent: wait for what becomes of it.")
        if (status := await self.status(job_id)) != "UNKNOWN":
            raise WrongState(f"Notification {job_id} is {status}, not UNKNOWN.")

    def end(
        self,
        connection: Connection,
        which: ColumnElement[bool],
        status: Status,
        *,
        unless: Sequence[Status] = FINAL,
        error: str | None = None,
        provider_message_id: str | None = None,
    ) -> int:
        """Inside a transaction of the caller: give these deliveries another status, unless theirs is final; how many changed."""
        pending = which & table.c.status.not_in(unless)
        columns = (table.c.job_id, table.c.campaign_id, table.c.variant, table.c.status)
        look = select(*columns).where(pending).with_for_update()
        found = connection.execute(look).all()
        moves: Counter[Place] = Counter()
        for row in found:
            if row.campaign_id:
                _move(moves, row.campaign_id, row.variant, row.status, status)
        self.campaign_counts.shift(connection, moves)
        now = self._clock.now()
        values: dict[str, Any] = {"status": status, "updated_at": now, "last_error": error, "due_at": None}
        values |= {"provider_message_id": provider_message_id, "sent_at": now if status == "SENT" else None}
        values |= {"job": _kept_with(table.c.user_id)} if status in FINAL else {}
        ended = connection.execute(update(table).where(pending).values(values)).rowcount
        if status in NOT_SENT:
            self._tell_not_sent(connection, [row.job_id for row in found])
        return ended


def _row(job: NotificationJob, status: Status, now: Millis, *, keep_job: bool = False) -> dict[str, Any]:
    return {
        "job_id": job.delivery_id,
        "channel": job.channel,
        "template_code": job.template_code,
        "user_id": str(job.user_id),
        "event_id": job.meta.event_id,
        "campaign_id": job.meta.campaign_id,
        "status": status,
        "attempts": 0,
        "last_error": None,
        "provider_message_id": None,
        "job": orjson.Fragment(job.model_dump_json()) if keep_job else None,
        "created_at": now,
        "updated_at": now,
        "sent_at": None,
        "due_at": None if job.send_after is None else to_moment(job.send_after),
        "variant": _variant(job),
    }


def _kept_with(user_id: ColumnElement[str | None]) -> ColumnElement[Any]:
    """The job, except what was written to an address: whose that is nobody knows, and it could not be erased with them."""
    return case((user_id == str(NOBODY), null()), else_=table.c.job)


_LEAVE = (
    update(table)
    .where(table.c.job_id.in_(bindparam("job_ids", expanding=True)))
    .where(table.c.status == "UNKNOWN", ~is_being_sent())
    .values(last_error=NOT_AGAIN)
)


def _variant(job: NotificationJob) -> str | None:
    """The variant's name in the campaign. Another system may have written anything there; what is no name is left out."""
    given = (job.meta.model_extra or {}).get("variant")
    return given if isinstance(given, str) and len(given) <= LONGEST_VARIANT else None


def _move(moves: Counter[Place], campaign: str, variant: str | None, old: str | None, new: str) -> None:
    if old is not None:
        moves[campaign, variant or "", old] -= 1
    moves[campaign, variant or "", new] += 1
