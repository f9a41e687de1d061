"""What happens to leads: a form comes in, a person opens the bot, a lesson is booked. Each is an event, told once.

The event, what it says of the lead, and the scenarios that it starts or stops are written in one transaction.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4, uuid5

import structlog
from sqlalchemy import Connection

from yamchi.clock import Clock, Millis, isoformat, isoformat_or_none
from yamchi.errors import InvalidJob
from yamchi.http.signing import Signer
from yamchi.leads import entities
from yamchi.leads.contacts import SPACE, Contact, read_email, read_form, read_phone
from yamchi.leads.entities import event_of
from yamchi.leads.model import Lead, UnknownLead, read_moment
from yamchi.leads.store import LeadStore
from yamchi.notifications.sending.service import NotificationService
from yamchi.scenarios.outbox import Entry
from yamchi.scenarios.plugin import Scenarios
from yamchi.storage.database import Database

log = structlog.get_logger("yamchi.leads")

CHANNEL = "telegram"
SIGNATURE_DIGITS = 32


class LeadService:
    """The way in for everything that is about a lead."""

    def __init__(
        self,
        database: Database,
        store: LeadStore,
        events: NotificationService,
        scenarios: Scenarios,
        clock: Clock,
        signer: Signer,
        *,
        region: str,
        zone: str,
    ) -> None:
        self._database = database
        self._store = store
        self._events = events
        self._scenarios = scenarios
        self._clock = clock
        self._signer = signer
        self._region = region
        self._zone = zone

    async def submit(self, form: Mapping[str, Any], source: str = "tilda") -> tuple[Lead, bool]:
        """Take in a form; the lead, and whether it is new. The same form again is the same lead."""
        contact = read_form(form, self._region)
        lead_id = await self.id_of(contact)
        told = {
            "source": source,
            "name": contact.name,
            "email": contact.email,
            "phone": contact.phone,
            "locale": contact.locale,
            "timezone": contact.timezone,
            "extra": dict(contact.extra),
        }
        answer = await self.tell(entities.CREATED, lead_id, f"{entities.CREATED}:{lead_id}", **told)
        return await self._store.get(lead_id), not answer

    async def id_of(self, contact: Contact) -> str:
        """The id of the lead that a form is: always the same, and nobody else can work it out.

        It is a secret: whoever has it opens the lead's chat by `/start`. Leads of before have one made of the form alone.
        """
        known = str(uuid5(SPACE, contact.form))
        if await self._store.find(known) is not None:
            return known
        signature = await self._signer.sign("lead", contact.form)
        return str(UUID(hex=signature[:SIGNATURE_DIGITS], version=4))

    async def event_id_of(self, update_id: int, lead_id: str) -> str:
        """The id of the event that an update of Telegram becomes: who knows a lead can count updates, but not tell of one first."""
        event_id = f"tg:{update_id}:{lead_id}"
        signature = await self._signer.sign("event of the bot", event_id)
        return f"{event_id}:{signature[:SIGNATURE_DIGITS]}"

    async def tell(self, event_type: str, lead_id: str, event_id: str | None = None, **data: Any) -> bool:
        """Tell of something that happened to a lead; whether it had been told before."""
        given = {name: value for name, value in data.items() if value is not None}
        event = event_of(event_type, lead_id, event_id or f"{event_type}:{uuid4()}", **given)
        return (await self._events.handle_event(event)).duplicate

    async def confirm(self, lead: Lead, event_id: str, *, by: str) -> None:
        """The lead comes to its lesson, as it is here; `LessonMoved` if that has another date by now."""
        when = isoformat_or_none(lead.lesson_datetime)
        await self.tell(entities.CONFIRMED, lead.id, event_id, lesson_datetime=when, by=by)

    async def confirm_date(self, lead_id: str, seen: str | None) -> None:
        """The lead comes to its lesson, by the word of somebody who sees this date; `LessonMoved` if it has another by now."""
        lead = await self._store.get(lead_id)
        moment = self._checked(read_moment(seen, lead.timezone or self._zone) if seen else None)
        if lead.lesson_datetime != moment or not lead.confirmed:
            await self.tell(entities.CONFIRMED, lead_id, lesson_datetime=isoformat(moment), by="api")

    async def has_moved_since(self, lead_id: str, message: int) -> bool:
        """Whether a message of the bot, by its number in the chat, reminds of a date that the lesson no longer has."""
        actions = self._scenarios.actions
        return not await actions.is_latest_word(entities.KIND, lead_id, CHANNEL, str(message))

    async def edit(self, lead_id: str, fields: Mapping[str, Any]) -> Lead:
        """Change a lead by hand. What scenarios wait for is told as the event that it is."""
        lead = await self._store.get(lead_id)
        plain = {name: value for name, value in fields.items() if name not in _TOLD}
        if fields.get("bot_activated") is False:
            plain["bot_activated"] = False
        if fields.get("confirmed") is False:
            plain["confirmed"] = False
        plain = {name: self.corrected(name, value) for name, value in plain.items()}
        moment = self._lesson(lead, plain, fields)
        if fields.get("confirmed"):
            confirmed = self._checked(moment if "lesson_datetime" in fields else lead.lesson_datetime)
        if plain:
            await self._change(lead_id, plain)
        if fields.get("bot_activated") and not lead.bot_activated:
            await self.tell(entities.ACTIVATED, lead_id, by="api")
        is_moved = moment is not None and moment != lead.lesson_datetime
        if moment is not None and is_moved:
            kind = entities.BOOKED if lead.lesson_datetime is None else entities.RESCHEDULED
            link = fields.get("zoom_link")
            await self.tell(kind, lead_id, lesson_datetime=isoformat(moment), zoom_link=link, by="api")
        if "lesson_datetime" in fields and moment is None and lead.lesson_datetime is not None:
            await self.tell(entities.CANCELLED, lead_id, by="api")
        if fields.get("confirmed") and (is_moved or not lead.confirmed):
            await self.tell(entities.CONFIRMED, lead_id, lesson_datetime=isoformat(confirmed), by="api")
        edited = await self._store.get(lead_id)
        if plain.get("status", edited.status) == edited.status:
            return edited
        await self._change(lead_id, {"status": plain["status"]})  # an event has set its own
        return await self._store.get(lead_id)

    async def _change(self, lead_id: str, fields: Mapping[str, Any]) -> None:
        """Set fields, and let the lead's runs look at them anew, in one transaction."""

        def change(connection: Connection) -> Sequence[Entry]:
            self._scenarios.lock_in(connection, entities.KIND, lead_id)
            if self._store.change_in(connection, lead_id, fields) is None:
                raise UnknownLead(f"There is no lead {lead_id[:64]!r}.")
            return self._scenarios.changed_in(connection, entities.KIND, lead_id)

        await self._scenarios.follow(await self._database.write(change))

    def _lesson(self, lead: Lead, plain: Mapping[str, Any], fields: Mapping[str, Any]) -> Millis | None:
        if fields.get("lesson_datetime") is None:
            return None
        zone = str(plain.get("timezone") or lead.timezone or self._zone)
        moment = read_moment(fields["lesson_datetime"], zone)
        if moment <= self._clock.now() and moment != lead.lesson_datetime:
            raise InvalidJob(f"lesson_datetime: {isoformat(moment)} is in the past.")
        return moment

    def _checked(self, moment: Millis | None) -> Millis:
        """The date that is confirmed: should the lesson move meanwhile, the new one is not."""
        if moment is None or moment <= self._clock.now():
            raise InvalidJob("confirmed: there is no lesson to come that could be confirmed.")
        return moment

    def corrected(self, name: str, value: Any) -> Any:
        """An address or a number as it is kept; refused in a sentence if it is none."""
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
