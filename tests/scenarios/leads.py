"""Leads for tests: two tables beside Yamchi's own, as a plugin of somebody else would keep them."""

from typing import Any

from sqlalchemy import JSON, Column, Connection, MetaData, String, Table, insert, select, update

from yamchi.notifications.channels.base import Recipient
from yamchi.notifications.schemas.event import Event
from yamchi.scenarios.entities import Change, Entity
from yamchi.storage.database import Database

metadata = MetaData()
leads = Table(
    "test_leads", metadata, Column("id", String(64), primary_key=True), Column("fields", JSON, nullable=False)
)
lines = Table(
    "test_lead_log",
    metadata,
    Column("id", String(255), primary_key=True),
    Column("lead_id", String(64), nullable=False),
    Column("text", String(255), nullable=False),
)

SAYS: dict[str, dict[str, Any]] = {
    "bot.activated": {"bot_activated": True},
    "lesson.confirmed": {"confirmed": True},
    "lesson.rescheduled": {"confirmed": False},
}


class TableLeads:
    """A kind of entity in Yamchi's own database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, lead_id: str, **fields: Any) -> None:
        def make(connection: Connection) -> None:
            metadata.create_all(connection)
            connection.execute(insert(leads).values(id=lead_id, fields=fields))

        await self._database.write(make)

    async def change(self, lead_id: str, **fields: Any) -> None:
        await self._database.write(lambda c: self.apply_in(c, lead_id, Change(fields)))

    async def fields(self, lead_id: str) -> dict[str, Any]:
        found = await self.get(lead_id)
        return {} if found is None else dict(found.fields)

    async def log(self, lead_id: str) -> list[str]:
        query = select(lines.c.text).where(lines.c.lead_id == lead_id).order_by(lines.c.text)
        return list(await self._database.read(lambda c: c.execute(query).scalars().all()))

    # ── The protocol ──────────────────────────────────────────────────────────────────────────────────────────────

    def id_of(self, event: Event) -> str | None:
        found = event.data.get("lead_id", event.data.get("leadId"))
        return found if isinstance(found, str) else None

    async def get(self, entity_id: str) -> Entity | None:
        return await self._database.read(lambda c: self.get_in(c, entity_id))

    async def note(self, event: Event) -> None:
        await self._database.write(lambda c: self.note_in(c, event))

    async def apply(self, entity_id: str, change: Change) -> None:
        await self._database.write(lambda c: self.apply_in(c, entity_id, change))

    def get_in(self, connection: Connection, entity_id: str) -> Entity | None:
        row = connection.execute(select(leads).where(leads.c.id == entity_id)).first()
        if row is None:
            return None
        fields = row.fields
        recipient = Recipient(
            email=fields.get("email"), telegram_id=fields.get("tg_id"), locale=fields.get("locale", "ru")
        )
        return Entity(row.id, fields, fields.get("zone"), recipient)

    def note_in(self, connection: Connection, event: Event) -> None:
        said = {**SAYS.get(event.event_type, {}), **event.data.get("fields", {})}
        if "lesson_datetime" in event.data:
            said["lesson_datetime"] = event.data["lesson_datetime"]
        lead_id = self.id_of(event)
        if said and lead_id:
            self.apply_in(connection, lead_id, Change(said))

    def apply_in(self, connection: Connection, entity_id: str, change: Change) -> None:
        row = connection.execute(select(leads).where(leads.c.id == entity_id).with_for_update()).first()
        if row is None:
            return
        if change.fields:
            fields = {**row.fields, **change.fields}
            connection.execute(update(leads).where(leads.c.id == entity_id).values(fields=fields))
        if change.log and not connection.execute(select(lines).where(lines.c.id == change.log.id)).first():
            line = {"id": change.log.id, "lead_id": entity_id, "text": change.log.text}
            connection.execute(insert(lines).values(line))


class RemoteLeads:
    """The same kept outside, without transactions, as in a spreadsheet; `calls` counts what was asked of it."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.lines: dict[str, tuple[str, str]] = {}
        self.calls = 0

    def id_of(self, event: Event) -> str | None:
        found = event.data.get("lead_id")
        return found if isinstance(found, str) else None

    async def get(self, entity_id: str) -> Entity | None:
        self.calls += 1
        fields = self.rows.get(entity_id)
        if fields is None:
            return None
        return Entity(entity_id, dict(fields), None, Recipient(email=fields.get("email"), locale="ru"))

    async def note(self, event: Event) -> None:
        said = {**SAYS.get(event.event_type, {}), **event.data.get("fields", {})}
        if "lesson_datetime" in event.data:
            said["lesson_datetime"] = event.data["lesson_datetime"]
        lead_id = self.id_of(event)
        if lead_id in self.rows:
            self.rows[lead_id] |= said

    async def apply(self, entity_id: str, change: Change) -> None:
        self.rows[entity_id] |= change.fields
        if change.log:
            self.lines.setdefault(change.log.id, (entity_id, change.log.text))
