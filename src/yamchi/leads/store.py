"""The tables of leads: what scenarios, the API and the bot read and write, most of it within a transaction of theirs."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import structlog
from sqlalchemy import ColumnElement, Connection, Select, delete, func, or_, select, update

from yamchi.clock import Clock, Millis, isoformat
from yamchi.http.cursors import Place, is_older
from yamchi.leads.model import FIXED, NAMES, NEW, Lead, UnknownLead, check_extra, checked
from yamchi.leads.sheets.pending import PendingChanges
from yamchi.leads.tables import lead_log, leads, lesson_slots
from yamchi.notifications.tables import events, users
from yamchi.scenarios.entities import LogLine
from yamchi.storage.database import Database
from yamchi.storage.upsert import insert_new

log = structlog.get_logger("yamchi.leads")

EMPTY: dict[str, Any] = {
    **dict.fromkeys(NAMES),
    "source": "event",
    "status": NEW,
    "bot_activated": False,
    "confirmed": False,
    "email_1_sent": False,
    "email_2_sent": False,
    "extra": {},
}
EXPORTED_AT_ONCE = 500
LONGEST_LOG_ID = 255
LONGEST_LOCALE = 16
EVENT_LINE = "event:"
"""How the id of a line begins that tells of an event; then comes the event's."""

_PERSON = {
    "email": "email",
    "phone": "phone",
    "tg_id": "telegram_id",
    "locale": "locale",
    "timezone": "timezone",
}
"""Fields that say where the person is reached, and their names among people."""


class LeadStore:
    """`leads`, `lead_log` and `lesson_slots`."""

    def __init__(
        self, database: Database, clock: Clock, default_zone: str, changes: PendingChanges | None
    ) -> None:
        self._database = database
        self._clock = clock
        self.zone = default_zone
        self._changes = changes

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, lead_id: str) -> Lead:
        found = await self.find(lead_id)
        if found is None:
            raise UnknownLead(f"There is no lead {lead_id[:64]!r}.")
        return found

    async def find(self, lead_id: str) -> Lead | None:
        return await self._database.read(lambda connection: self.find_in(connection, lead_id))

    def find_in(self, connection: Connection, lead_id: str, *, lock: bool = False) -> Lead | None:
        query = select(leads).where(leads.c.id == lead_id)
        row = connection.execute(query.with_for_update() if lock else query).first()
        return None if row is None else Lead.of(row)

    async def newest(self, column: str, value: str) -> Lead | None:
        """The newest lead with this phone, address or chat."""
        query = select(leads).where(leads.c[column] == value).order_by(leads.c.created_at.desc()).limit(1)
        row = await self._database.first(query)
        return None if row is None else Lead.of(row)

    async def page(
        self,
        *,
        status: str | None = None,
        search: str | None = None,
        after: Place | None = None,
        limit: int = 50,
    ) -> list[Lead]:
        """The newest first; `after` is the last one of the page before."""
        query = _filtered(status, search)
        if after is not None:
            query = query.where(is_older(leads.c.created_at, leads.c.id, after))
        query = query.order_by(leads.c.created_at.desc(), leads.c.id.desc()).limit(limit)
        rows = await self._database.rows(query)
        return [Lead.of(row) for row in rows]

    async def batches(self, *, status: str | None = None) -> AsyncIterator[list[Lead]]:
        """All of them, some at a time."""
        after = None
        while found := await self.page(status=status, after=after, limit=EXPORTED_AT_ONCE):
            yield found
            after = (found[-1].created_at, found[-1].id)

    async def log(self, lead_id: str, limit: int = 500) -> list[dict[str, Any]]:
        """The last lines, the oldest of them first."""
        order = (column.desc() for column in (lead_log.c.number, lead_log.c.at, lead_log.c.id))
        query = select(lead_log).where(lead_log.c.lead_id == lead_id).order_by(*order).limit(limit)
        rows = await self._database.rows(query)
        return [{"at": isoformat(row.at), "text": row.text, "data": row.data} for row in reversed(rows)]

    async def was_told(self, event_id: str) -> bool:
        """Whether the log has a line of this event."""
        query = select(lead_log.c.id).where(lead_log.c.id == f"{EVENT_LINE}{event_id}"[:LONGEST_LOG_ID])
        return await self._database.first(query) is not None

    def is_told_in(self, connection: Connection, event_id: str) -> bool:
        """Whether this event has come, be its lead here or erased since."""
        return (
            connection.execute(select(events.c.event_id).where(events.c.event_id == event_id)).first()
            is not None
        )

    async def count(self) -> int:
        query = select(func.count()).select_from(leads)
        return int(await self._database.value(query))

    # ── Writing, in a transaction of the caller ───────────────────────────────────────────────────────────────────

    def add_in(self, connection: Connection, row: Mapping[str, Any]) -> bool:
        """Keep a new lead, and the person behind it; False if there is one of this id."""
        now = self._clock.now()
        whole = {**EMPTY, "created_at": now, "updated_at": now, **row}
        if insert_new(connection, leads, [whole]) != 1:
            return False
        self._make_person(connection, str(whole["id"]))
        self._tell(connection, str(whole["id"]))
        return True

    def change_in(self, connection: Connection, lead_id: str, fields: Mapping[str, Any]) -> Lead | None:
        """Set fields; those that are no columns are kept beside them. None if there is no such lead."""
        lead = self.find_in(connection, lead_id, lock=True)
        if lead is None:
            return None
        zone = str(fields.get("timezone") or lead.timezone or self.zone)
        known = {
            name: checked(name, value, zone)
            for name, value in fields.items()
            if name in NAMES and name not in FIXED
        }
        others = {name: value for name, value in fields.items() if name not in NAMES}
        if others:
            known["extra"] = check_extra({**lead.extra, **others})
        known["updated_at"] = self._clock.now()
        connection.execute(update(leads).where(leads.c.id == lead_id).values(known))
        if "lesson_datetime" in known and not self.hold_in(connection, lead_id, known["lesson_datetime"]):
            self._free_in(connection, lead_id)  # it is moved all the same, onto a time that somebody else has
        changed = self.find_in(connection, lead_id)
        assert changed is not None
        self._change_person(connection, lead, changed)
        self._tell(connection, lead_id)
        return changed

    def log_in(self, connection: Connection, lead_id: str, line: LogLine) -> None:
        """Append a line, unless it is there: two of one millisecond are told apart by their numbers."""
        last = select(func.max(lead_log.c.number)).where(lead_log.c.lead_id == lead_id)
        row = {
            "id": line.id[:LONGEST_LOG_ID],
            "lead_id": lead_id,
            "text": line.text[:255],
            "data": dict(line.data),
            "at": self._clock.now(),
            "number": (connection.execute(last).scalar() or 0) + 1,
        }
        if insert_new(connection, lead_log, [row]) == 1 and self._changes is not None:
            self._changes.logged_in(connection, row)

    def hold_in(self, connection: Connection, lead_id: str, starts_at: Millis | None) -> bool:
        """The lead's lesson is then, and at no other time; False if somebody else has that time."""
        if starts_at is None:
            self._free_in(connection, lead_id)
            return True
        whose = select(lesson_slots.c.lead_id).where(lesson_slots.c.starts_at == starts_at).with_for_update()
        holder = None
        while holder is None:  # whoever has it may free it at this moment
            insert_new(connection, lesson_slots, [{"starts_at": starts_at, "lead_id": lead_id}])
            holder = connection.execute(whose).scalar()
        if holder != lead_id:
            return False
        self._free_in(connection, lead_id, lesson_slots.c.starts_at != starts_at)
        return True

    def _free_in(self, connection: Connection, lead_id: str, *which: ColumnElement[bool]) -> None:
        """A time that another lead was moved onto, while this one had it, is that lead's now."""
        left = delete(lesson_slots).where(lesson_slots.c.lead_id == lead_id, *which)
        for starts_at in connection.execute(left.returning(lesson_slots.c.starts_at)).scalars().all():
            others = select(leads.c.id).where(leads.c.lesson_datetime == starts_at, leads.c.id != lead_id)
            heir = connection.execute(others.order_by(leads.c.id).limit(1)).scalar()
            if heir is not None:
                insert_new(connection, lesson_slots, [{"starts_at": starts_at, "lead_id": heir}])

    async def forget(self, lead_id: str) -> int:
        def drop(connection: Connection) -> int:
            if self._changes is not None:
                self._changes.erased_in(connection, lead_id)
            _empty_events(connection, lead_id)
            connection.execute(delete(lead_log).where(lead_log.c.lead_id == lead_id))
            self._free_in(connection, lead_id)
            return connection.execute(delete(leads).where(leads.c.id == lead_id)).rowcount

        return await self._database.write(drop)

    def _tell(self, connection: Connection, lead_id: str) -> None:
        if self._changes is not None:
            self._changes.changed_in(connection, lead_id)

    def _make_person(self, connection: Connection, lead_id: str) -> None:
        """A lead is also a person, of the same id: preferences, suppressions, campaigns and erasure know them.

        One who was there before stays as they are: whoever may tell of a lead may not change where people are reached.
        """
        lead = self.find_in(connection, lead_id)
        assert lead is not None
        attributes = {"name": lead.name} if lead.name else {}
        moments = {"created_at": lead.created_at, "updated_at": lead.created_at}
        row = {"user_id": lead_id, **_reached(lead), "attributes": attributes, **moments}
        if insert_new(connection, users, [row]) == 1:
            return
        zone = select(users.c.timezone).where(users.c.user_id == lead_id).scalar_subquery()
        theirs = {"made_person": False, "timezone": func.coalesce(leads.c.timezone, zone)}
        connection.execute(update(leads).where(leads.c.id == lead_id).values(theirs))

    def _change_person(self, connection: Connection, before: Lead, after: Lead) -> None:
        """The person that a lead brought follows it, until somebody else writes to them."""
        was, now = _reached(before), _reached(after)
        changed = {name: value for name, value in now.items() if value != was[name]}
        if not changed:
            return
        is_made = select(leads.c.id).where(leads.c.id == after.id, leads.c.made_person).exists()
        is_as_left = (users.c[name].is_not_distinct_from(value) for name, value in was.items())
        person = update(users).where(users.c.user_id == after.id, is_made, *is_as_left)
        connection.execute(person.values({**changed, "updated_at": after.updated_at}))


def _reached(lead: Lead) -> dict[str, str | None]:
    """Where a lead is reached, as people have it."""
    return {theirs: getattr(lead, ours) for ours, theirs in _PERSON.items()} | {
        "locale": (lead.locale or "")[:LONGEST_LOCALE] or None
    }


def _empty_events(connection: Connection, lead_id: str) -> None:
    """What was told of a lead goes with it: its events need not name a person, but its log names them."""
    told = func.substr(lead_log.c.id, len(EVENT_LINE) + 1)
    ids = select(told).where(lead_log.c.lead_id == lead_id, lead_log.c.id.startswith(EVENT_LINE))
    connection.execute(update(events).where(events.c.event_id.in_(ids)).values(data={}))


def _filtered(status: str | None, search: str | None) -> Select[Any]:
    query = select(leads)
    if status:
        query = query.where(leads.c.status == status)
    if search:
        columns = (leads.c.id, leads.c.name, leads.c.email, leads.c.phone, leads.c.tg_id)
        query = query.where(or_(*(column.icontains(search, autoescape=True) for column in columns)))
    return query
