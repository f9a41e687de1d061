"""What every part of a dialogue needs: the services behind it, and to speak to a person in their language and on their clock."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from yamchi.clock import Clock
from yamchi.leads.chat import Chat, Keyboard
from yamchi.leads.model import Lead
from yamchi.leads.service import LeadService
from yamchi.leads.slots import Slots
from yamchi.leads.store import LeadStore
from yamchi.leads.updates import ButtonPress, Person
from yamchi.notifications.templates import Rendered
from yamchi.storage.database import Database
from yamchi.storage.keys import Keys

LANGUAGES = ("ru", "en", "kk")
REMEMBERED = "30d"
"""How long a chat is known to be about a lead, beyond what the lead itself says."""


@dataclass(frozen=True, slots=True)
class BotServices:
    """What the bot uses, and its defaults."""

    database: Database
    store: LeadStore
    service: LeadService
    slots: Slots
    keys: Keys
    clock: Clock
    zone: str
    locale: str
    region: str
    admin_group: str | None
    admin_locale: str | None


class Speaker:
    """Speaks by templates, and knows which lead a chat is about."""

    def __init__(self, services: BotServices, chat: Chat) -> None:
        self._services = services
        self._chat = chat

    async def say(
        self,
        chat: str,
        code: str,
        lead: Lead | None,
        person: Person,
        data: Mapping[str, Any] | None = None,
        above: Keyboard = (),
        *,
        edits: int | None = None,
    ) -> None:
        await self._chat.say(chat, await self.render(code, lead, person, data), above, edits=edits)

    async def refuse(self, pressed: ButtonPress, code: str, lead: Lead | None) -> None:
        await self._chat.answer(pressed.query, await self.render(code, lead, pressed.person))

    async def render(
        self, code: str, lead: Lead | None, person: Person, data: Mapping[str, Any] | None = None
    ) -> Rendered:
        known = {} if lead is None else {name: one for name, one in lead.to_dict().items() if one is not None}
        if lead is not None:
            known["lead_id"] = lead.id
        zone = self.zone(lead).key
        return await self._chat.render(code, self.language(person, lead), zone, {**known, **(data or {})})

    def language(self, person: Person, lead: Lead | None = None) -> str:
        if lead is not None and lead.locale:
            return lead.locale
        return person.language if person.language in LANGUAGES else self._services.locale

    def zone(self, lead: Lead | None) -> ZoneInfo:
        return ZoneInfo(lead.timezone) if lead and lead.timezone else self._services.slots.zone

    async def lead_of(self, person: Person) -> Lead | None:
        """The lead that this person's chat is about; it must still be theirs."""
        named = await self._services.keys.get(f"tg_lead:{person.id}")
        lead = await self._services.store.find(named) if named else None
        if lead is not None and lead.tg_id == person.id:
            return lead
        return await self._services.store.newest("tg_id", person.id)

    async def remember(self, person: Person, lead: Lead) -> None:
        """This person's chat is about this lead, also after a restart."""
        await self._services.keys.set(f"tg_lead:{person.id}", lead.id, REMEMBERED)
