"""WelcomeScene: a person opens the bot, by the link of a letter or by their own number."""

from yamchi.leads import entities
from yamchi.leads.chat import Chat
from yamchi.leads.contacts import read_phone
from yamchi.leads.datepicker import DatePickerScene
from yamchi.leads.model import Lead
from yamchi.leads.speaking import BotServices, Speaker
from yamchi.leads.updates import IncomingMessage

MOST_WRONG = 10
"""Wrong ids that an account may try in an hour."""


class WelcomeScene:
    """Finds the lead, tells that it has opened the bot, which ends its letters, and lets the person pick a date."""

    def __init__(
        self, services: BotServices, chat: Chat, speaker: Speaker, date_picker: DatePickerScene
    ) -> None:
        self._services = services
        self._chat = chat
        self._speaker = speaker
        self._date_picker = date_picker

    async def start(self, said: IncomingMessage, lead_id: str) -> None:
        """An id opens a lead to whoever has it, so an account that tries one after the other is no longer listened to."""
        if not lead_id:
            lead = await self._speaker.lead_of(said.person)
        elif await self._is_guessing(said):
            await self._speaker.say(said.chat, "bot_wait", None, said.person)
            return
        else:
            lead = await self._services.store.find(lead_id[:64])
        if lead_id and (lead is None or lead.tg_id not in (None, said.person.id)):
            await self._services.keys.incr(_wrong(said), "1h")
        if lead is None:
            rendered = await self._speaker.render("bot_contact", None, said.person)
            await self._chat.ask_contact(said.chat, rendered)
        else:
            await self._welcome(lead, said)

    async def welcome_by_phone(self, said: IncomingMessage) -> None:
        """A number opens a lead only to whom it belongs."""
        if not said.is_own_phone:
            await self._speaker.say(said.chat, "bot_not_yours", None, said.person)
            return
        digits = f"+{(said.phone or '').lstrip('+')}"
        phone = read_phone(digits, self._services.region) or read_phone(
            said.phone or "", self._services.region
        )
        lead = await self._services.store.newest("phone", phone) if phone else None
        if lead is None:
            await self._speaker.say(said.chat, "bot_unknown", None, said.person)
        else:
            await self._welcome(lead, said)

    async def _is_guessing(self, said: IncomingMessage) -> bool:
        return int(await self._services.keys.get(_wrong(said)) or 0) >= MOST_WRONG

    async def _welcome(self, lead: Lead, said: IncomingMessage) -> None:
        if lead.tg_id in (None, said.person.id):
            lead = await self._activate(lead, said)
        if lead.tg_id != said.person.id:  # of two who open it at once, one was first
            await self._speaker.say(said.chat, "bot_not_yours", None, said.person)
            return
        await self._speaker.remember(said.person, lead)
        await self._date_picker.offer_days(lead, said.person, said.chat)

    async def _activate(self, lead: Lead, said: IncomingMessage) -> Lead:
        locale = None if lead.locale else self._speaker.language(said.person)
        service = self._services.service
        event_id = await service.event_id_of(said.update_id, lead.id)
        await service.tell(entities.ACTIVATED, lead.id, event_id, tg_id=said.person.id, locale=locale)
        return await self._services.store.get(lead.id)


def _wrong(said: IncomingMessage) -> str:
    return f"tg_wrong:{said.person.id}"
