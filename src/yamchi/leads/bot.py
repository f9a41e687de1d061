"""The bot: a lead opens it, picks a time, confirms or moves the lesson; the team takes calls.

What a dialogue needs is in its buttons and in the lead; which lead a chat is about is in the key store. So a restart in the
middle loses nothing. A button is believed only as far as the lead belongs to whoever pressed it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Protocol
from zoneinfo import ZoneInfo

import structlog
from babel.dates import format_date, format_time
from sqlalchemy import Connection

from yamchi.clock import Clock, Millis, as_datetime, isoformat
from yamchi.leads import entities
from yamchi.leads.chat import Chat, Keyboard
from yamchi.leads.contacts import read_phone
from yamchi.leads.model import Lead
from yamchi.leads.service import LeadService
from yamchi.leads.slots import Slots
from yamchi.leads.store import LeadStore
from yamchi.leads.updates import ButtonPress, IncomingMessage, Person, read_update
from yamchi.notifications.templates import Rendered
from yamchi.scenarios.entities import LogLine
from yamchi.storage.database import Database
from yamchi.storage.keys import Keys

log = structlog.get_logger("yamchi.leads")

LANGUAGES = ("ru", "en", "kk")
REMEMBERED = "30d"
"""How long a chat is known to be about a lead, beyond what the lead itself says."""

DONE = "48h"
"""How long an update is remembered: Telegram repeats one for a day."""

DAYS_IN_A_ROW, TIMES_IN_A_ROW = 2, 4
MOST_DAYS = 14


class Talk(Protocol):
    """Answers what is no command."""

    async def answer(self, person: Person, text: str) -> str | None:
        """Plain words; None if there are none, and "" if the person has asked too often."""


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


class Bot:
    """Handles updates, each once; what fails is tried again by its job."""

    def __init__(self, services: BotServices, chat: Chat, talk: Talk | None = None) -> None:
        self._services = services
        self._chat = chat
        self._talk = talk

    async def handle(self, update: Mapping[str, Any]) -> str:
        """What became of an update."""
        found = read_update(update)
        if found is None:
            return "ignored"
        done = f"tg_update:{found.update_id}"
        if await self._services.keys.get(done):
            return "seen before"
        await (
            self._handle_message(found) if isinstance(found, IncomingMessage) else self._handle_button(found)
        )
        await self._services.keys.set(done, "1", DONE)
        return "handled"

    async def tell_link(self, lead: Lead) -> None:
        """The link of a lesson has come; it is told to whom the lesson is."""
        if lead.tg_id is not None:
            person = Person(lead.tg_id, lead.name or "", None)
            await self._say(lead.tg_id, "bot_zoom", lead, person)

    # ── Messages ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _handle_message(self, said: IncomingMessage) -> None:
        command, _, argument = said.text.strip().partition(" ")
        if said.phone is not None:
            await self._welcome_by_phone(said)
        elif command.partition("@")[0] == "/start":
            await self._start(said, argument.strip())
        else:
            await self._reply(said)

    async def _start(self, said: IncomingMessage, lead_id: str) -> None:
        lead = await self._services.store.find(lead_id[:64]) if lead_id else await self._lead_of(said.person)
        if lead is None:
            rendered = await self._render("bot_contact", None, said.person)
            await self._chat.ask_contact(said.chat, rendered)
        else:
            await self._welcome(lead, said)

    async def _welcome_by_phone(self, said: IncomingMessage) -> None:
        """A number opens a lead only to whom it belongs."""
        if not said.is_own_phone:
            await self._say(said.chat, "bot_not_yours", None, said.person)
            return
        digits = f"+{(said.phone or '').lstrip('+')}"
        phone = read_phone(digits, self._services.region) or read_phone(
            said.phone or "", self._services.region
        )
        lead = await self._services.store.newest("phone", phone) if phone else None
        if lead is None:
            await self._say(said.chat, "bot_unknown", None, said.person)
        else:
            await self._welcome(lead, said)

    async def _welcome(self, lead: Lead, said: IncomingMessage) -> None:
        if lead.tg_id not in (None, said.person.id):
            await self._say(said.chat, "bot_not_yours", None, said.person)
            return
        locale = None if lead.locale else self._language(said.person)
        await self._services.service.tell(
            entities.ACTIVATED, lead.id, f"tg:{said.update_id}", tg_id=said.person.id, locale=locale
        )
        await self._services.keys.set(f"tg_lead:{said.person.id}", lead.id, REMEMBERED)
        await self._offer_days(await self._services.store.get(lead.id), said.person, said.chat)

    async def _reply(self, said: IncomingMessage) -> None:
        lead = await self._lead_of(said.person)
        words = await self._talk.answer(said.person, said.text) if self._talk and said.text else None
        if words:
            await self._chat.say_plainly(said.chat, words)
        else:
            await self._say(said.chat, "bot_help" if words is None else "bot_wait", lead, said.person)

    # ── Buttons ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _handle_button(self, pressed: ButtonPress) -> None:
        action, _, argument = pressed.data.partition(":")
        match action:
            case "taken":
                await self._take_call(pressed, argument)
            case "confirm" | "reschedule":
                await self._about_lesson(pressed, action, argument)
            case "days" | "day" | "slot":
                await self._pick(pressed, action, argument)
            case _:
                await self._chat.answer(pressed.query)

    async def _about_lesson(self, pressed: ButtonPress, action: str, lead_id: str) -> None:
        lead = await self._services.store.find(lead_id[:64])
        if lead is None or lead.tg_id != pressed.person.id:
            log.warning(
                f"{pressed.person.id} pressed {action} of the lead {lead_id[:64]!r}, which is not theirs"
            )
            await self._refuse(pressed, "bot_not_yours", None)
        elif lead.lesson_datetime is None or lead.lesson_datetime <= self._services.clock.now():
            await self._refuse(pressed, "bot_over", lead)
        elif action == "confirm":
            if not lead.confirmed:
                by = f"telegram:{pressed.person.id}"
                await self._services.service.tell(
                    entities.CONFIRMED, lead.id, f"tg:{pressed.update_id}", by=by
                )
            await self._chat.answer(pressed.query)
            await self._say(pressed.chat, "bot_confirmed", lead, pressed.person)
        else:
            await self._services.keys.set(f"tg_lead:{pressed.person.id}", lead.id, REMEMBERED)
            await self._chat.answer(pressed.query)
            await self._offer_days(lead, pressed.person, pressed.chat)

    async def _pick(self, pressed: ButtonPress, action: str, argument: str) -> None:
        lead = await self._lead_of(pressed.person)
        if lead is None:
            await self._refuse(pressed, "bot_not_yours", None)
            return
        if action == "days":
            await self._offer_days(lead, pressed.person, pressed.chat, edits=pressed.message)
        elif action == "day" and (day := _day(argument)):
            await self._offer_times(lead, pressed, day)
        elif action == "slot" and argument.isascii() and argument.isdecimal() and len(argument) < 10:
            await self._book(lead, pressed, int(argument) * 60_000)
        await self._chat.answer(pressed.query)

    async def _book(self, lead: Lead, pressed: ButtonPress, moment: Millis) -> None:
        if not await self._services.slots.take(lead.id, moment):
            day = as_datetime(moment).astimezone(self._zone(lead)).date()
            await self._offer_times(lead, pressed, day, is_taken=True)
            return
        if lead.lesson_datetime != moment:
            kind = entities.BOOKED if lead.lesson_datetime is None else entities.RESCHEDULED
            await self._services.service.tell(
                kind, lead.id, f"tg:{pressed.update_id}", lesson_datetime=isoformat(moment)
            )
        booked = await self._services.store.get(lead.id)
        await self._say(pressed.chat, "bot_booked", booked, pressed.person, edits=pressed.message)

    async def _take_call(self, pressed: ButtonPress, lead_id: str) -> None:
        """The first of the team who presses it makes the call."""
        group, clock, store = self._services.admin_group, self._services.clock, self._services.store
        if group is None or pressed.chat != group:
            await self._refuse(pressed, "bot_not_yours", None)
            return

        def take(connection: Connection) -> Lead | None:
            lead = store.find_in(connection, lead_id[:64], lock=True)
            if lead is None or lead.taken_by is not None:
                return lead
            who = {"taken_by": pressed.person.name, "taken_at": clock.now()}
            line = LogLine(f"tg:{pressed.update_id}:taken", "CALL_TAKEN", {"by": pressed.person.name})
            store.log_in(connection, lead.id, line)
            return store.change_in(connection, lead.id, who)

        lead = await self._services.database.write(take)
        if lead is None:
            await self._refuse(pressed, "bot_over", None)
            return
        rendered = await self._chat.render(
            "bot_call_taken", self._services.locale, self._services.zone, {"by": lead.taken_by}
        )
        await self._chat.answer(pressed.query, rendered)
        if pressed.message is not None and lead.taken_at is not None:
            local = as_datetime(lead.taken_at).astimezone(ZoneInfo(self._services.zone))
            label = f"{rendered.text.strip()} · {local:%H:%M}"
            keyboard = [[{"text": label[:100], "callback_data": pressed.data}]]
            await self._chat.put_buttons(pressed.chat, pressed.message, keyboard)

    # ── Picking a time ────────────────────────────────────────────────────────────────────────────────────────────

    async def _offer_days(self, lead: Lead, person: Person, chat: str, *, edits: int | None = None) -> None:
        zone, locale = self._zone(lead), self._language(person, lead)
        free = await self._services.slots.free(lead.id)
        days = sorted({as_datetime(moment).astimezone(zone).date() for moment in free})[:MOST_DAYS]
        if not days:
            await self._say(chat, "bot_full", lead, person, edits=edits)
            return
        keys = [
            {"text": format_date(day, "EEE, d MMM", locale=locale), "callback_data": f"day:{day}"}
            for day in days
        ]
        now = self._services.clock.now()
        moved = {"is_reschedule": lead.lesson_datetime is not None and lead.lesson_datetime > now}
        await self._say(chat, "bot_days", lead, person, moved, _rows(keys, DAYS_IN_A_ROW), edits=edits)

    async def _offer_times(
        self, lead: Lead, pressed: ButtonPress, day: date, *, is_taken: bool = False
    ) -> None:
        zone, locale = self._zone(lead), self._language(pressed.person, lead)
        local = [as_datetime(one).astimezone(zone) for one in await self._services.slots.free(lead.id)]
        keys = [
            {
                "text": format_time(one, "HH:mm", tzinfo=zone, locale=locale),
                "callback_data": f"slot:{int(one.timestamp()) // 60}",
            }
            for one in local
            if one.date() == day
        ]
        told = {"day": day.isoformat(), "is_taken": is_taken}
        rows = _rows(keys, TIMES_IN_A_ROW)
        await self._say(pressed.chat, "bot_times", lead, pressed.person, told, rows, edits=pressed.message)

    # ── Speaking ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _say(
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
        await self._chat.say(chat, await self._render(code, lead, person, data), above, edits=edits)

    async def _refuse(self, pressed: ButtonPress, code: str, lead: Lead | None) -> None:
        await self._chat.answer(pressed.query, await self._render(code, lead, pressed.person))

    async def _render(
        self, code: str, lead: Lead | None, person: Person, data: Mapping[str, Any] | None = None
    ) -> Rendered:
        known = {} if lead is None else {name: one for name, one in lead.to_dict().items() if one is not None}
        if lead is not None:
            known["lead_id"] = lead.id
        zone = self._zone(lead).key
        return await self._chat.render(code, self._language(person, lead), zone, {**known, **(data or {})})

    def _language(self, person: Person, lead: Lead | None = None) -> str:
        if lead is not None and lead.locale:
            return lead.locale
        return person.language if person.language in LANGUAGES else self._services.locale

    def _zone(self, lead: Lead | None) -> ZoneInfo:
        return ZoneInfo(lead.timezone) if lead and lead.timezone else self._services.slots.zone

    async def _lead_of(self, person: Person) -> Lead | None:
        """The lead that this person's chat is about; it must still be theirs."""
        named = await self._services.keys.get(f"tg_lead:{person.id}")
        lead = await self._services.store.find(named) if named else None
        if lead is not None and lead.tg_id == person.id:
            return lead
        return await self._services.store.newest("tg_id", person.id)


def _day(text: str) -> date | None:
    try:
        return datetime.strptime(text[:10], "%Y-%m-%d").date()
    except ValueError:
        return None


def _rows(keys: Sequence[Mapping[str, Any]], length: int) -> Keyboard:
    return [keys[start : start + length] for start in range(0, len(keys), length)]
