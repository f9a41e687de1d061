"""A lesson's meeting: there is one while there is a lesson, at the lesson's time, and never two.

A job brings Zoom to what the lead says, whatever came before: it creates, moves or deletes. That it is about to create is
written down first, and crossed out when the person has the link; so a job that finds this, and no meeting, looks at Zoom before
it creates another, and one that finds it beside a meeting tells the link.
"""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import structlog
from sqlalchemy import Connection, delete, select, update

from yamchi.clock import Clock, Millis
from yamchi.errors import Outage, Retryable, Snooze, Unrecoverable
from yamchi.faultpoints import fault_point
from yamchi.leads import entities
from yamchi.leads.model import Lead
from yamchi.leads.store import LeadStore
from yamchi.leads.tables import zoom_meetings as table
from yamchi.leads.zoom import Meeting, Zoom
from yamchi.notifications.schemas.event import Event
from yamchi.queues.job import Job
from yamchi.queues.queue import Queue
from yamchi.scenarios.outbox import Entry
from yamchi.scenarios.plugin import Scenarios
from yamchi.storage.database import Database
from yamchi.storage.upsert import insert_new

log = structlog.get_logger("yamchi.leads")

QUEUE = "lessons"
JOB = "meeting"
CONCERNED = (entities.BOOKED, entities.RESCHEDULED, entities.CANCELLED)
SWEEP_EVERY: Millis = 60_000
LATE: Millis = 120_000
UNDER_WAY: Millis = 60_000
"""How long a call to Zoom may last at most, with room."""

SWEPT_AT_ONCE = 200

_MADE = ("meeting_id", "asked_at")
"""The columns that say that there is, or may be, a meeting at Zoom."""

Told = Callable[[Lead], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Due:
    """A lead whose meeting is to be brought up to date, and the id of the job that does it."""

    lead_id: str
    id: str


class Meetings:
    """Follows events about lessons; an event leaves a row, and the row a job."""

    def __init__(
        self,
        database: Database,
        store: LeadStore,
        scenarios: Scenarios,
        zoom: Zoom,
        queue: Queue,
        clock: Clock,
        minutes: int,
        tell: Told | None,
    ) -> None:
        self._database = database
        self._store = store
        self._scenarios = scenarios
        self._zoom = zoom
        self._queue = queue
        self._clock = clock
        self._minutes = minutes
        self._tell = tell

    # ── Following events ──────────────────────────────────────────────────────────────────────────────────────────

    async def prepare(self, events: Sequence[Event]) -> None:
        """Nothing is needed from outside."""

    def store(
        self, connection: Connection, events: Sequence[Event], prepared: None, now: Millis
    ) -> list[Due]:
        """Note, with the event, that a meeting is to be brought up to date. A lesson that comes with a link needs no new one."""
        needed: dict[str, bool] = {}
        for data in (entities.said_by(event) for event in events if event.event_type in CONCERNED):
            lead_id = data.get("lead_id")
            if isinstance(lead_id, str) and len(lead_id) <= entities.LONGEST_ID:
                needed[lead_id] = needed.get(lead_id, False) or not data.get("zoom_link")
        noted = (self._note(connection, lead_id, now, is_new=new) for lead_id, new in needed.items())
        return [due for due in noted if due is not None]

    def _note(self, connection: Connection, lead_id: str, now: Millis, *, is_new: bool) -> Due | None:
        """None if there is nothing to bring up to date, and nothing new is needed."""
        due = Due(lead_id, uuid4().hex)
        values = {"due_at": now, "due_id": due.id}
        if is_new:
            insert_new(connection, table, [{"lead_id": lead_id, **values}])
        known = update(table).where(table.c.lead_id == lead_id).values(values)
        return due if connection.execute(known).rowcount else None

    async def follow(self, stored: Sequence[Due]) -> None:
        for due in stored:
            await self._queue.add({"leadId": due.lead_id}, name=JOB, id=f"zoom-{due.id}")

    async def watch(self) -> None:
        """Give a job to meetings whose job was lost; any number of processes may."""
        while True:
            await self.sweep()
            await self._clock.sleep(SWEEP_EVERY)

    async def sweep(self) -> int:
        """How many are late. A job that is still there is not added again."""
        columns = (table.c.lead_id, table.c.due_id)
        query = select(*columns).where(table.c.due_at < self._clock.now() - LATE).limit(SWEPT_AT_ONCE)
        late = await self._database.rows(query)
        await self.follow([Due(row.lead_id, row.due_id) for row in late])
        return len(late)

    async def forget(self, lead_id: str) -> None:
        """A lead was erased: its meeting goes too."""
        now = self._clock.now()
        due = await self._database.write(
            lambda connection: self._note(connection, lead_id, now, is_new=False)
        )
        await self.follow([due] if due else [])

    # ── The job ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def handle(self, job: Job[dict[str, Any]]) -> dict[str, str]:
        lead_id = str(job.data.get("leadId"))
        row = await self._row(lead_id)
        if row is None:
            return {"meeting": "none is wanted"}
        lead = await self._store.find(lead_id)
        if lead is not None and lead.zoom_link not in (None, row.link):
            return {"meeting": await self._end(lead_id, row)}  # the lesson has a link of its own
        wanted = None if lead is None else lead.lesson_datetime
        try:
            done = await self._bring(lead_id, lead, row, wanted)
        except Unrecoverable:
            await self._set(lead_id, due_at=None)
            raise
        await self._check_date(lead_id, wanted)
        return {"meeting": done}

    async def _check_date(self, lead_id: str, wanted: Millis | None) -> None:
        """Of two jobs that moved the meeting at once the slower may have been the one with the older date."""
        lead = await self._store.find(lead_id)
        if (None if lead is None else lead.lesson_datetime) != wanted:
            raise Snooze("1s", "the lesson was moved meanwhile")

    async def _bring(self, lead_id: str, lead: Lead | None, row: Any, wanted: Millis | None) -> str:
        if wanted is None or lead is None:
            return await self._end(lead_id, row)
        if row.meeting_id is not None:
            # Also if it is there already, for all we know: the answer to a move with an older date may have been lost.
            if await self._zoom.move(row.meeting_id, wanted, self._minutes):
                await self._keep(lead_id, Meeting(row.meeting_id, row.link), wanted)
                if row.asked_at is not None:
                    self._wait_for_another(row)
                    await self._announce(lead_id, wanted)
                return "as it was" if row.starts_at == wanted else "moved"
            await self._set(lead_id, **dict.fromkeys(_MADE))  # somebody deleted it at Zoom
            row = await self._row(lead_id)
        meeting = await self._made_before(lead_id, row)
        if meeting is None:
            meeting = await self._create(lead, row, wanted)
        elif not await self._zoom.move(meeting.id, wanted, self._minutes):
            raise Retryable(f"The meeting {meeting.id} was at Zoom, and is no longer.")
        if not await self._keep(lead_id, meeting, wanted):
            await self._zoom.delete(meeting.id)
            return "deleted"
        await self._announce(lead_id, wanted)
        return "created"

    async def _made_before(self, lead_id: str, row: Any) -> Meeting | None:
        """What an attempt that was interrupted has left at Zoom; one that may still be under way is waited for."""
        if row.asked_at is None:
            return None
        self._wait_for_another(row)
        return await self._zoom.find(lead_id)

    def _wait_for_another(self, row: Any) -> None:
        if self._clock.now() - row.asked_at < UNDER_WAY:
            raise Snooze("30s", "another attempt may still be under way")

    async def _create(self, lead: Lead, row: Any, wanted: Millis) -> Meeting:
        """That we ask is written down first, and only one asks at a time."""
        same = table.c.asked_at.is_(None) if row.asked_at is None else table.c.asked_at == row.asked_at
        claim = update(table).where(table.c.lead_id == lead.id, same).values(asked_at=self._clock.now())
        if not await self._database.execute(claim):
            raise Snooze("30s", "another attempt is under way")
        fault_point("zoom.asking")
        try:
            meeting = await self._zoom.create(lead.id, _topic(lead), wanted, self._minutes)
        except (Outage, Unrecoverable):
            await self._set(lead.id, asked_at=None)  # it was not made
            raise
        fault_point("zoom.created")
        return meeting

    async def _end(self, lead_id: str, row: Any) -> str:
        """Delete the meeting, and the row unless the lesson was booked again meanwhile: then there is to be another."""
        meeting_id = row.meeting_id
        if meeting_id is None and (found := await self._made_before(lead_id, row)):
            meeting_id = found.id
        if meeting_id is not None:
            await self._zoom.delete(meeting_id)
        if not await self._drop(row):
            raise Snooze("1s", "the lesson was booked again meanwhile")
        return "deleted" if meeting_id is not None else "none is wanted"

    async def _drop(self, row: Any) -> bool:
        """Forget the row if nothing new is to be done; else only the meeting that it named, which is gone."""
        which = table.c.lead_id == row.lead_id
        gone = delete(table).where(which, table.c.due_id == row.due_id)
        as_read = (getattr(table.c, name).is_not_distinct_from(getattr(row, name)) for name in _MADE)
        emptied = update(table).where(which, *as_read).values(dict.fromkeys(_MADE))

        def drop(connection: Connection) -> bool:
            if connection.execute(gone).rowcount:
                return True
            connection.execute(emptied)
            return False

        return await self._database.write(drop)

    async def _keep(self, lead_id: str, meeting: Meeting, starts_at: Millis) -> bool:
        """The id first and with everything else: a link that is lost could be had again, a meeting not.

        False if the row is gone, or the lesson has got a link of its own: nobody else knows of the meeting.
        """

        def keep(connection: Connection) -> tuple[bool, list[Entry]]:
            self._scenarios.lock_in(connection, entities.KIND, lead_id)
            lead = self._store.find_in(connection, lead_id, lock=True)
            link = connection.execute(select(table.c.link).where(table.c.lead_id == lead_id)).scalar()
            if lead is not None and lead.zoom_link not in (None, link, meeting.link):
                return False, []
            known: dict[str, Any] = {"meeting_id": meeting.id, "link": meeting.link, "starts_at": starts_at}
            if lead is not None and lead.lesson_datetime == starts_at:
                known["due_at"] = None  # else it was moved meanwhile, and that has a job of its own
            is_kept = connection.execute(
                update(table).where(table.c.lead_id == lead_id).values(known)
            ).rowcount
            entries = []
            if is_kept and lead is not None and lead.lesson_datetime is not None:
                shown = {"zoom_link": meeting.link, "zoom_meeting_id": meeting.id}
                self._store.change_in(connection, lead_id, shown)
                if lead.zoom_link != meeting.link:  # the jobs of its reminders name it
                    entries = self._scenarios.changed_in(connection, entities.KIND, lead_id)
            return bool(is_kept), entries

        is_kept, entries = await self._database.write(keep)
        await self._scenarios.follow(entries)
        return is_kept

    async def _announce(self, lead_id: str, wanted: Millis) -> None:
        """Tell the link, and write down that it was told; what fails here is done by the next attempt."""
        lead = await self._store.find(lead_id)
        if lead is None or lead.lesson_datetime != wanted:
            return
        if self._tell is not None:
            await self._tell(lead)
        await self._set(lead_id, asked_at=None)

    async def _row(self, lead_id: str) -> Any:
        return await self._database.first(select(table).where(table.c.lead_id == lead_id))

    async def _set(self, lead_id: str, **values: Any) -> None:
        await self._database.execute(update(table).where(table.c.lead_id == lead_id).values(values))


def _topic(lead: Lead) -> str:
    return f"Lesson: {lead.name}" if lead.name else "Lesson"
