"""The tables of leads: what scenarios, the API and the bot read and write, most of it within a transaction of theirs."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

import structlog
from sqlalchemy import Connection, Select, and_, delete, func, literal, or_, select, tuple_, update

from yamchi.clock import Clock, Millis, isoformat
from yamchi.leads.model import FIXED, NAMES, NEW, Lead, UnknownLead, check_extra, checked
from yamchi.leads.tables import lead_log, leads, lesson_slots
from yamchi.notifications.tables import users
from yamchi.scenarios.entities import LogLine
from yamchi.storage.database import Database
from yamchi.storage.upsert import insert_into, insert_new

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
_PERSON = {
    "email": "email",
    "phone": "phone",
    "tg_id": "telegram_id",
    "locale": "locale",
    "timezone": "timezone",
}
"""Fields that say where the person is reached, and their names among people."""


class Changes(Protocol):
    """Somebody who keeps a copy of the leads, told in the transaction that changes one."""

    def changed_in(self, connection: Connection, lead_id: str) -> None:
        """A lead is new, or has changed."""

    def logged_in(self, connection: Connection, line: Mapping[str, Any]) -> None:
        """A line is new in a lead's log."""

    def erased_in(self, connection: Connection, lead_id: str) -> None:
        """A lead is forgotten."""


class LeadStore:
    """`leads`, `lead_log` and `lesson_slots`."""

    def __init__(
        self, database: Database, clock: Clock, default_zone: str, changes: Changes | None = None
    ) -> None:
        self._database = database
        self._clock = clock
        self._zone = default_zone
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
        row = await self._database.read(lambda connection: connection.execute(query).first())
        return None if row is None else Lead.of(row)

    async def page(
        self,
        *,
        status: str | None = None,
        search: str | None = None,
        after: tuple[Millis, str] | None = None,
        limit: int = 50,
    ) -> list[Lead]:
        """The newest first; `after` is the last one of the page before."""
        query = _filtered(status, search)
        if after is not None:
            query = query.where(tuple_(leads.c.created_at, leads.c.id) < tuple_(*_bound(after)))
        query = query.order_by(leads.c.created_at.desc(), leads.c.id.desc()).limit(limit)
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return [Lead.of(row) for row in rows]

    async def batches(self, *, status: str | None = None) -> AsyncIterator[list[Lead]]:
        """All of them, some at a time."""
        after = None
        while found := await self.page(status=status, after=after, limit=EXPORTED_AT_ONCE):
            yield found
            after = (found[-1].created_at, found[-1].id)

    async def log(self, lead_id: str, limit: int = 500) -> list[dict[str, Any]]:
        query = select(lead_log).where(lead_log.c.lead_id == lead_id)
        query = query.order_by(lead_log.c.at, lead_log.c.id).limit(limit)
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return [{"at": isoformat(row.at), "text": row.text, "data": row.data} for row in rows]

    async def count(self) -> int:
        query = select(func.count()).select_from(leads)
        return int(await self._database.read(lambda connection: connection.execute(query).scalar_one()))

    # ── Writing, in a transaction of the caller ───────────────────────────────────────────────────────────────────

    def add_in(self, connection: Connection, row: Mapping[str, Any]) -> bool:
        """Keep a new lead, and the person behind it; False if there is one of this id."""
        now = self._clock.now()
        whole = {**EMPTY, "created_at": now, "updated_at": now, **row}
        if insert_new(connection, leads, [whole]) != 1:
            return False
        self._know_person(connection, str(whole["id"]))
        self._tell(connection, str(whole["id"]))
        return True

    def change_in(self, connection: Connection, lead_id: str, fields: Mapping[str, Any]) -> Lead | None:
        """Set fields; those that are no columns are kept beside them. None if there is no such lead."""
        lead = self.find_in(connection, lead_id, lock=True)
        if lead is None:
            return None
        zone = str(fields.get("timezone") or lead.timezone or self._zone)
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
        if "lesson_datetime" in known:
            self.hold_in(connection, lead_id, known["lesson_datetime"])
        if known.keys() & _PERSON.keys():
            self._know_person(connection, lead_id)
        self._tell(connection, lead_id)
        return self.find_in(connection, lead_id)

    def log_in(self, connection: Connection, lead_id: str, line: LogLine) -> None:
        row = {
            "id": line.id[:LONGEST_LOG_ID],
            "lead_id": lead_id,
            "text": line.text[:255],
            "data": dict(line.data),
            "at": self._clock.now(),
        }
        if insert_new(connection, lead_log, [row]) == 1 and self._changes is not None:
            self._changes.logged_in(connection, row)

    def hold_in(self, connection: Connection, lead_id: str, starts_at: Millis | None) -> bool:
        """The lead's lesson is then, and at no other time; False if somebody else has that time."""
        others = and_(lesson_slots.c.lead_id == lead_id, lesson_slots.c.starts_at != (starts_at or 0))
        if starts_at is None:
            connection.execute(delete(lesson_slots).where(lesson_slots.c.lead_id == lead_id))
            return True
        insert_new(connection, lesson_slots, [{"starts_at": starts_at, "lead_id": lead_id}])
        whose = select(lesson_slots.c.lead_id).where(lesson_slots.c.starts_at == starts_at)
        is_ours = str(connection.execute(whose).scalar_one()) == lead_id
        if is_ours:
            connection.execute(delete(lesson_slots).where(others))
        return is_ours

    async def change(self, lead_id: str, fields: Mapping[str, Any]) -> Lead:
        found = await self._database.write(lambda connection: self.change_in(connection, lead_id, fields))
        if found is None:
            raise UnknownLead(f"There is no lead {lead_id[:64]!r}.")
        return found

    async def forget(self, lead_id: str) -> int:
        def drop(connection: Connection) -> int:
            if self._changes is not None:
                self._changes.erased_in(connection, lead_id)
            connection.execute(delete(lead_log).where(lead_log.c.lead_id == lead_id))
            connection.execute(delete(lesson_slots).where(lesson_slots.c.lead_id == lead_id))
            return connection.execute(delete(leads).where(leads.c.id == lead_id)).rowcount

        return await self._database.write(drop)

    def _tell(self, connection: Connection, lead_id: str) -> None:
        if self._changes is not None:
            self._changes.changed_in(connection, lead_id)

    def _know_person(self, connection: Connection, lead_id: str) -> None:
        """A lead is also a person, of the same id: preferences, suppressions, campaigns and erasure know them."""
        lead = self.find_in(connection, lead_id)
        assert lead is not None
        reached = {theirs: getattr(lead, ours) for ours, theirs in _PERSON.items()}
        reached["locale"] = (lead.locale or "")[:16] or None
        now = self._clock.now()
        row = {
            "user_id": lead_id,
            **reached,
            "attributes": {"name": lead.name} if lead.name else {},
            "created_at": now,
            "updated_at": now,
        }
        new = insert_into(users, is_sqlite=self._database.is_embedded).values(row)
        known = {**reached, "updated_at": now}
        connection.execute(new.on_conflict_do_update(index_elements=["user_id"], set_=known))


def _filtered(status: str | None, search: str | None) -> Select[Any]:
    query = select(leads)
    if status:
        query = query.where(leads.c.status == status)
    if search:
        columns = (leads.c.id, leads.c.name, leads.c.email, leads.c.phone, leads.c.tg_id)
        query = query.where(or_(*(column.icontains(search, autoescape=True) for column in columns)))
    return query


def _bound(after: tuple[Millis, str]) -> tuple[Any, Any]:
    return literal(after[0], leads.c.created_at.type), literal(after[1])
