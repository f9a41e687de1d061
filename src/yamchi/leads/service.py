"""What happens to leads: a form comes in, a person opens the bot, a lesson is booked. Each is an event, told once.

The event, what it says of the lead, and the scenarios that it starts or stops are written in one transaction.
"""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import structlog

from yamchi.clock import Clock, isoformat
from yamchi.errors import InvalidJob
from yamchi.leads import entities
from yamchi.leads.contacts import Contact, read_email, read_form, read_phone
from yamchi.leads.entities import event_of
from yamchi.leads.model import Lead, read_moment
from yamchi.leads.store import LeadStore
from yamchi.notifications.sending.service import NotificationService
from yamchi.scenarios.plugin import Scenarios

log = structlog.get_logger("yamchi.leads")


class LeadService:
    """The way in for everything that is about a lead."""

    def __init__(
        self,
        store: LeadStore,
        events: NotificationService,
        scenarios: Scenarios,
        clock: Clock,
        *,
        region: str,
        zone: str,
    ) -> None:
        self._store = store
        self._events = events
        self._scenarios = scenarios
        self._clock = clock
        self._region = region
        self._zone = zone

    async def submit(self, form: Mapping[str, Any], source: str = "tilda") -> tuple[Lead, bool]:
        """Take in a form; the lead, and whether it is new. The same form again is the same lead."""
        return await self.create(read_form(form, self._region), source)

    async def create(self, contact: Contact, source: str) -> tuple[Lead, bool]:
        told = {
            "source": source,
            "name": contact.name,
            "email": contact.email,
            "phone": contact.phone,
            "locale": contact.locale,
            "timezone": contact.timezone,
            "extra": dict(contact.extra),
        }
        answer = await self.tell(entities.CREATED, contact.id, f"{entities.CREATED}:{contact.id}", **told)
        return await self._store.get(contact.id), not answer

    async def tell(self, event_type: str, lead_id: str, event_id: str | None = None, **data: Any) -> bool:
        """Tell of something that happened to a lead; whether it had been told before."""
        given = {name: value for name, value in data.items() if value is not None}
        event = event_of(event_type, lead_id, event_id or f"{event_type}:{uuid4()}", **given)
        return (await self._events.handle_event(event)).duplicate

    async def edit(self, lead_id: str, fields: Mapping[str, Any]) -> Lead:
        """Change a lead by hand. What scenarios wait for is told as the event that it is."""
        lead = await self._store.get(lead_id)
        plain = {name: value for name, value in fields.items() if name not in _TOLD}
        if fields.get("bot_activated") is False:
            plain["bot_activated"] = False
        if fields.get("confirmed") is False:
            plain["confirmed"] = False
        plain = {name: self._corrected(name, value) for name, value in plain.items()}
        moment = self._lesson(lead, plain, fields)
        if plain:
            await self._store.change(lead_id, plain)
            await self._scenarios.changed("lead", lead_id)
        if fields.get("bot_activated") and not lead.bot_activated:
            await self.tell(entities.ACTIVATED, lead_id, by="api")
        if moment is not None and moment != lead.lesson_datetime:
            kind = entities.BOOKED if lead.lesson_datetime is None else entities.RESCHEDULED
            await self.tell(kind, lead_id, lesson_datetime=isoformat(moment), by="api")
        if "lesson_datetime" in fields and moment is None and lead.lesson_datetime is not None:
            await self.tell(entities.CANCELLED, lead_id, by="api")
        if fields.get("confirmed") and not lead.confirmed:
            await self.tell(entities.CONFIRMED, lead_id, by="api")
        return await self._store.get(lead_id)

    def _lesson(self, lead: Lead, plain: Mapping[str, Any], fields: Mapping[str, Any]) -> int | None:
        if fields.get("lesson_datetime") is None:
            return None
        zone = str(plain.get("timezone") or lead.timezone or self._zone)
        moment = read_moment(fields["lesson_datetime"], zone)
        if moment <= self._clock.now() and moment != lead.lesson_datetime:
            raise InvalidJob(f"lesson_datetime: {isoformat(moment)} is in the past.")
        return moment

    def _corrected(self, name: str, value: Any) -> Any:
        if name == "phone" and value:
            if (phone := read_phone(str(value), self._region)) is None:
                raise InvalidJob(f"phone: {str(value)[:64]!r} is no phone number; write it as +77010000000.")
            return phone
        if name == "email" and value:
            if (email := read_email(str(value))) is None:
                raise InvalidJob(f"email: {str(value)[:64]!r} is no e-mail address.")
            return email
        return value


_TOLD = ("bot_activated", "confirmed", "lesson_datetime")
"""Fields whose change is an event."""
