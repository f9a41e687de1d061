"""The bot: a lead opens it, picks a time, confirms or moves the lesson; the team takes calls.

What a dialogue needs is in its buttons and in the lead; which lead a chat is about is in the key store. So a restart in the
middle loses nothing. A button is believed only as far as the lead belongs to whoever pressed it.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from zoneinfo import ZoneInfo

import structlog
from sqlalchemy import Connection

from yamchi.clock import as_datetime
from yamchi.leads.chat import Chat
from yamchi.leads.datepicker import DatePickerScene
from yamchi.leads.model import Lead, LessonMoved
from yamchi.leads.speaking import BotServices, Speaker
from yamchi.leads.talk import Conversation
from yamchi.leads.updates import ButtonPress, IncomingMessage, Person, read_update
from yamchi.leads.welcome import WelcomeScene
from yamchi.scenarios.entities import LogLine

log = structlog.get_logger("yamchi.leads")

DONE = "48h"
"""How long an update is remembered: Telegram repeats one for a day."""

MODEL = "ai"
"""What a job that waits for the model's answer holds."""

Holding = Callable[[str], AbstractContextManager[object]]


class Bot:
    """Handles updates, each once; what fails is tried again by its job."""

    def __init__(self, services: BotServices, chat: Chat, talk: Conversation | None) -> None:
        self._services = services
        self._chat = chat
        self._talk = talk
        self._speaker = Speaker(services, chat)
        self._date_picker = DatePickerScene(services, chat, self._speaker)
        self._welcome = WelcomeScene(services, chat, self._speaker, self._date_picker)

    async def handle(self, update: Mapping[str, Any], holding: Holding = nullcontext) -> str:
        """What became of an update. The job's `holding` keeps those who wait for the model from stopping all others."""
        found = read_update(update)
        if found is None:
            return "ignored"
        done = f"tg_update:{found.update_id}"
        if await self._services.keys.get(done):
            return "seen before"
        if isinstance(found, IncomingMessage):
            await self._handle_message(found, holding)
        else:
            await self._handle_button(found)
        await self._services.keys.set(done, "1", DONE)
        return "handled"

    async def tell_link(self, lead: Lead) -> None:
        """The link of a lesson has come; it is told to whom the lesson is."""
        if lead.tg_id is not None:
            person = Person(lead.tg_id, lead.name or "", None)
            await self._speaker.say(lead.tg_id, "bot_zoom", lead, person)

    # ── Messages ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _handle_message(self, said: IncomingMessage, holding: Holding) -> None:
        command, _, argument = said.text.strip().partition(" ")
        if said.phone is not None:
            await self._welcome.welcome_by_phone(said)
        elif command.partition("@")[0] == "/start":
            await self._welcome.start(said, argument.strip())
        else:
            await self._reply(said, holding)

    async def _reply(self, said: IncomingMessage, holding: Holding) -> None:
        lead = await self._speaker.lead_of(said.person)
        words = None
        if self._talk and said.text:
            with holding(MODEL):
                words = await self._talk.answer(said.person, said.text)
        if words:
            await self._chat.say_plainly(said.chat, words)
        else:
            await self._speaker.say(said.chat, "bot_help" if words is None else "bot_wait", lead, said.person)

    # ── Buttons ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _handle_button(self, pressed: ButtonPress) -> None:
        action, _, argument = pressed.data.partition(":")
        match action:
            case "taken":
                await self._take_call(pressed, argument)
            case "confirm" | "reschedule":
                await self._about_lesson(pressed, action, argument)
            case "days" | "day" | "slot":
                await self._date_picker.pick(pressed, action, argument)
            case _:
                await self._chat.answer(pressed.query)

    async def _about_lesson(self, pressed: ButtonPress, action: str, lead_id: str) -> None:
        lead = await self._services.store.find(lead_id[:64])
        if lead is None or lead.tg_id != pressed.person.id:
            log.warning(
                f"{pressed.person.id} pressed {action} of the lead {lead_id[:64]!r}, which is not theirs"
            )
            await self._speaker.refuse(pressed, "bot_not_yours", None)
        elif not lead.has_lesson(self._services.clock.now()):
            await self._speaker.refuse(pressed, "bot_over", lead)
        elif action == "confirm":
            await self._confirm(pressed, lead)
        else:
            await self._speaker.remember(pressed.person, lead)
            await self._chat.answer(pressed.query)
            await self._date_picker.offer_days(lead, pressed.person, pressed.chat)

    async def _confirm(self, pressed: ButtonPress, lead: Lead) -> None:
        if await self._has_confirmed(pressed, lead):
            await self._chat.answer(pressed.query)
            await self._speaker.say(pressed.chat, "bot_confirmed", lead, pressed.person)
            return
        moved = await self._services.store.get(lead.id)
        has_lesson = moved.has_lesson(self._services.clock.now())
        await self._speaker.refuse(pressed, "bot_moved" if has_lesson else "bot_over", moved)

    async def _has_confirmed(self, pressed: ButtonPress, lead: Lead) -> bool:
        """Whether the date under the button is the lesson's, and confirmed. Should it move after the look, it is not."""
        if await self._is_outdated(pressed, lead):
            return False
        if lead.confirmed:
            return True
        service = self._services.service
        event_id = await service.event_id_of(pressed.update_id, lead.id)
        try:
            await service.confirm(lead, event_id, by=f"telegram:{pressed.person.id}")
        except LessonMoved:
            return False
        return True

    async def _is_outdated(self, pressed: ButtonPress, lead: Lead) -> bool:
        """Whether the button is under a reminder of a date that the lesson no longer has."""
        shown = pressed.message
        return shown is not None and await self._services.service.has_moved_since(lead.id, shown)

    async def _take_call(self, pressed: ButtonPress, lead_id: str) -> None:
        """The first of the team who presses it makes the call."""
        group, clock, store = self._services.admin_group, self._services.clock, self._services.store
        if group is None or pressed.chat != group:
            await self._speaker.refuse(pressed, "bot_not_yours", None)
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
            await self._speaker.refuse(pressed, "bot_over", None)
            return
        locale = self._services.admin_locale or lead.locale or self._services.locale  # as the alert has it
        rendered = await self._chat.render(
            "bot_call_taken", locale, self._services.zone, {"by": lead.taken_by}
        )
        await self._chat.answer(pressed.query, rendered)
        if pressed.message is not None and lead.taken_at is not None:
            local = as_datetime(lead.taken_at).astimezone(ZoneInfo(self._services.zone))
            label = f"{rendered.text.strip()} · {local:%H:%M}"
            keyboard = [[{"text": label[:100], "callback_data": pressed.data}]]
            await self._chat.put_buttons(pressed.chat, pressed.message, keyboard)
