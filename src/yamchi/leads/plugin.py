"""The feature of leads: what an application gets as `app.leads`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from yamchi.leads.contacts import Contact, read_form
from yamchi.leads.entities import LeadEntities
from yamchi.leads.model import Lead
from yamchi.leads.service import LeadService
from yamchi.leads.settings import LeadSettings
from yamchi.leads.store import LeadStore
from yamchi.notifications.plugin import Notifications
from yamchi.plugins import Application, Check, Plugin, Routes, load_attribute
from yamchi.scenarios.plugin import Scenarios

KIND = "lead"
FORM_LIMIT = 256 * 1024
"""Bytes of a form; Tilda's have a few hundred."""


class Leads(Plugin):
    """People who left a contact, from the form to the lesson."""

    name = "leads"
    summary = "Leads from Tilda's forms: kept once, followed up by scenarios, listed, changed, exported."
    requires = ("notifications", "scenarios")
    settings_class = LeadSettings
    migrations = Path(__file__).parent / "migrations"
    commands = MappingProxyType({"lead": "yamchi.leads.commands:group"})

    def __init__(self, app: Application) -> None:
        super().__init__(app)
        self.settings: LeadSettings
        settings, zone = self.settings, app.settings.default_timezone
        notifications, self._scenarios = app.plugin(Notifications), app.plugin(Scenarios)
        self.store = LeadStore(app.database, app.clock, zone)
        self.entities = LeadEntities(
            app.database,
            self.store,
            notifications.recipients,
            zone=zone,
            region=settings.lead_phone_region,
            locale=settings.lead_locale,
            bot_url=_bot_url(settings.telegram_bot_name),
        )
        self.service = LeadService(
            self.store,
            notifications.service,
            self._scenarios,
            app.clock,
            region=settings.lead_phone_region,
            zone=zone,
        )
        self._scenarios.entities.register(KIND, self.entities)
        notifications.service.checks.append(self.entities.check)

    # ── For your code ─────────────────────────────────────────────────────────────────────────────────────────────

    async def submit(self, **fields: Any) -> Lead:
        """Take in a form: `await app.leads.submit(name="Марат", phone="8 701 000 00 00", tranid="1:2")`."""
        lead, _ = await self.service.submit(fields, source="api")
        return lead

    def read(self, form: Mapping[str, Any]) -> Contact:
        """What a form says of a person, without keeping it."""
        return read_form(form, self.settings.lead_phone_region)

    async def get(self, lead_id: str) -> Lead:
        return await self.store.get(lead_id)

    async def edit(self, lead_id: str, **fields: Any) -> Lead:
        """Change a lead; what scenarios wait for, such as a new date of the lesson, is told as an event."""
        return await self.service.edit(lead_id, fields)

    async def tell(self, event_type: str, lead_id: str, **data: Any) -> None:
        """Something happened to a lead: `await app.leads.tell("lesson.booked", lead.id, lesson_datetime="…")`."""
        await self.service.tell(event_type, lead_id, **data)

    # ── For the rest of Yamchi ────────────────────────────────────────────────────────────────────────────────────

    def routers(self) -> Iterable[Routes]:
        found: tuple[Routes, ...] = load_attribute("yamchi.leads.routes:ROUTES")
        return found

    async def checks(self) -> Iterable[Check]:
        if self.settings.tilda_secret is None:
            return [Check("leads", None, "Tilda's webhook takes nothing until TILDA_SECRET is set")]
        return [Check("leads", True, "Tilda's webhook is at /api/webhooks/tilda")]

    async def erase(self, user_id: str) -> Mapping[str, int]:
        """A lead is a person of the same id: its runs are stopped, then it is forgotten."""
        runs = await self._scenarios.forget(KIND, user_id)
        return {"leads": await self.store.forget(user_id), "lead_runs": runs}


def _bot_url(name: str | None) -> str | None:
    return None if name is None else f"https://t.me/{name.removeprefix('@')}"
