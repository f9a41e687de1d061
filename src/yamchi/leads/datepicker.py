"""DatePickerScene: a person picks the day and the time of a lesson from what is free."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

from babel import Locale
from babel.dates import format_date, format_time

from yamchi.clock import Millis, as_datetime, isoformat
from yamchi.errors import Snooze
from yamchi.leads import entities
from yamchi.leads.chat import Chat, Keyboard
from yamchi.leads.model import Lead
from yamchi.leads.speaking import BotServices, Speaker
from yamchi.leads.updates import ButtonPress, Person
from yamchi.notifications.templates.formatting import locale_of
from yamchi.notifications.templates.locales import locale_chain

DAYS_IN_A_ROW, TIMES_IN_A_ROW = 2, 4
DAYS_ON_A_PAGE = 14
LONGEST_BOOKING = "1m"


class DatePickerScene:
    """Where the person is in it stands in the buttons, so that a restart in the middle loses nothing."""

    def __init__(self, services: BotServices, chat: Chat, speaker: Speaker) -> None:
        self._services = services
        self._chat = chat
        self._speaker = speaker

    async def pick(self, pressed: ButtonPress, action: str, argument: str) -> None:
        lead = await self._speaker.lead_of(pressed.person)
        if lead is None:
            await self._speaker.refuse(pressed, "bot_not_yours", None)
            return
        if action == "days":
            await self.offer_days(
                lead, pressed.person, pressed.chat, page=_page(argument), edits=pressed.message
            )
        elif action == "day" and (day := _day(argument)):
            await self._offer_times(lead, pressed, day)
        elif action == "slot" and argument.isascii() and argument.isdecimal() and len(argument) < 10:
            await self._book_alone(lead, pressed, int(argument) * 60_000)
        await self._chat.answer(pressed.query)

    async def _book_alone(self, lead: Lead, pressed: ButtonPress, moment: Millis) -> None:
        """One booking of a lead at a time: whoever taps two times in a row has one lesson, at the time that they hold."""
        busy = f"tg_booking:{lead.id}"
        if await self._services.keys.incr(busy, LONGEST_BOOKING) > 1:
            raise Snooze("1s", "another time is being booked for this lead")
        try:
            await self._book(await self._services.store.get(lead.id), pressed, moment)
        finally:
            await self._services.keys.delete(busy)

    async def _book(self, lead: Lead, pressed: ButtonPress, moment: Millis) -> None:
        """A tap that is tried again, since its answer did not get through, takes nothing back from what came after it."""
        event_id = await self._services.service.event_id_of(pressed.update_id, lead.id)
        if not await self._services.store.was_told(event_id):
            if not await self._services.slots.take(lead.id, moment):
                day = as_datetime(moment).astimezone(self._speaker.zone(lead)).date()
                await self._offer_times(lead, pressed, day, is_taken=True)
                return
            if lead.lesson_datetime != moment:
                kind = entities.BOOKED if lead.lesson_datetime is None else entities.RESCHEDULED
                await self._services.service.tell(kind, lead.id, event_id, lesson_datetime=isoformat(moment))
        booked = await self._services.store.get(lead.id)
        if booked.lesson_datetime is not None:
            await self._speaker.say(pressed.chat, "bot_booked", booked, pressed.person, edits=pressed.message)

    async def offer_days(
        self, lead: Lead, person: Person, chat: str, *, page: int = 0, edits: int | None = None
    ) -> None:
        zone, locale = self._speaker.zone(lead), self._speaker.language(person, lead)
        free = await self._services.slots.free(lead.id)
        days = sorted({as_datetime(moment).astimezone(zone).date() for moment in free})
        if not days:
            await self._speaker.say(chat, "bot_full", lead, person, edits=edits)
            return
        last = (len(days) - 1) // DAYS_ON_A_PAGE
        page = min(page, last)
        turning = _turning(page, last)
        keys = [
            {
                "text": format_date(day, "EEE, d MMM", locale=_conventions(locale)),
                "callback_data": f"day:{day}",
            }
            for day in days[page * DAYS_ON_A_PAGE : (page + 1) * DAYS_ON_A_PAGE]
        ]
        moved = {"is_reschedule": lead.has_lesson(self._services.clock.now())}
        await self._speaker.say(
            chat, "bot_days", lead, person, moved, [*_rows(keys, DAYS_IN_A_ROW), *turning], edits=edits
        )

    async def _offer_times(
        self, lead: Lead, pressed: ButtonPress, day: date, *, is_taken: bool = False
    ) -> None:
        zone, locale = self._speaker.zone(lead), self._speaker.language(pressed.person, lead)
        local = [as_datetime(one).astimezone(zone) for one in await self._services.slots.free(lead.id)]
        keys = [
            {
                "text": format_time(one, "HH:mm", tzinfo=zone, locale=_conventions(locale)),
                "callback_data": f"slot:{int(one.timestamp()) // 60}",
            }
            for one in local
            if one.date() == day
        ]
        told = {"day": day.isoformat(), "is_taken": is_taken}
        rows = _rows(keys, TIMES_IN_A_ROW)
        await self._speaker.say(
            pressed.chat, "bot_times", lead, pressed.person, told, rows, edits=pressed.message
        )


def _conventions(locale: str) -> Locale:
    """A lead's language is what a form or a person wrote: `kz`, `en-US`, or none at all."""
    return locale_of(locale_chain(locale)[0])


def _day(text: str) -> date | None:
    try:
        return datetime.strptime(text[:10], "%Y-%m-%d").date()
    except ValueError:
        return None


def _page(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 4 else 0


def _turning(page: int, last: int) -> Keyboard:
    """Buttons to the pages before and after this one, in a row of their own."""
    sides = (("«", page - 1), ("»", page + 1))
    keys = [{"text": sign, "callback_data": f"days:{to}"} for sign, to in sides if 0 <= to <= last]
    return [keys] if keys else []


def _rows(keys: Sequence[Mapping[str, Any]], length: int) -> Keyboard:
    return [keys[start : start + length] for start in range(0, len(keys), length)]
