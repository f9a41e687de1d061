"""Leads as scenarios see them: found by `data.lead_id`, told of by events, written by steps."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol
from uuid import UUID

import structlog
from sqlalchemy import Connection, select

from yamchi.clock import Clock, Millis, check_zone, in_short, isoformat
from yamchi.errors import InvalidJob
from yamchi.leads import model
from yamchi.leads.contacts import read_email, read_phone
from yamchi.leads.model import Lead, LessonMoved, read_moment
from yamchi.leads.store import EVENT_LINE, LeadStore
from yamchi.notifications.channels.base import Recipient
from yamchi.notifications.people.recipients import Recipients
from yamchi.notifications.schemas.event import Event
from yamchi.notifications.tables import suppressions
from yamchi.scenarios.entities import Adopted, Change, Entity, LogLine
from yamchi.storage.database import Database

log = structlog.get_logger("yamchi.leads")

KIND = "lead"
CREATED = "lead.created"
ACTIVATED = "bot.activated"
BOOKED = "lesson.booked"
RESCHEDULED = "lesson.rescheduled"
CONFIRMED = "lesson.confirmed"
CANCELLED = "lesson.cancelled"

DATED = (BOOKED, RESCHEDULED)
LINES = {
    CREATED: "LEAD_CREATED",
    ACTIVATED: "BOT_ACTIVATED",
    BOOKED: "LESSON_BOOKED",
    RESCHEDULED: "LESSON_RESCHEDULED",
    CONFIRMED: "LESSON_CONFIRMED",
    CANCELLED: "LESSON_CANCELLED",
}
"""Events that concern a lead, and what its log says of them."""

SHOWN = ("lesson_datetime", "by")
TEXTS = {
    **{name: model.LENGTHS[name] for name in ("zoom_link", "tg_id", "name", "locale", "timezone", "email")},
    "phone": 64,
    "by": 255,
}
"""What an event may say of a lead in words, and how many characters of them."""

OTHER_NAMES = {
    "leadId": "lead_id",
    "tgId": "tg_id",
    "lessonDatetime": "lesson_datetime",
    "zoomLink": "zoom_link",
}
"""As the jobs of leads call it, and who writes an event may too."""

WEEK: Millis = 7 * 86_400_000

LINKS = frozenset({"boturl", "zoomlink", "links"})
"""Values of ours that messages lead to: a form, which anybody may send with anybody's address, has none of these names."""

LONGEST_ID = 64
LONGEST_NEW_ID = 53
"""Bytes of a new lead's id: a button has 64, of which `reschedule:` takes 11."""


class Elsewhere(Protocol):
    """Where else leads are kept."""

    async def bring(self, lead_id: str) -> None:
        """Make a lead of it here, if it is there."""


class LeadEntities:
    """The kind `lead`, in Yamchi's own database."""

    def __init__(
        self,
        database: Database,
        store: LeadStore,
        recipients: Recipients,
        clock: Clock,
        *,
        zone: str,
        region: str,
        locale: str,
        bot_url: str | None,
    ) -> None:
        self._database = database
        self._store = store
        self._recipients = recipients
        self._clock = clock
        self._zone = zone
        self._region = region
        self._locale = locale
        self._bot_url = bot_url
        self.spreadsheet: Elsewhere | None = None
        """Where leads may stand that are not here."""

    # ── The protocol ──────────────────────────────────────────────────────────────────────────────────────────────

    def id_of(self, event: Event) -> str | None:
        found = said_by(event).get("lead_id")
        return found if isinstance(found, str) and 0 < len(found) <= LONGEST_ID else None

    async def get(self, entity_id: str) -> Entity | None:
        return await self._database.read(lambda connection: self.get_in(connection, entity_id))

    async def note(self, event: Event) -> None:
        await self._database.write(lambda connection: self.note_in(connection, event))

    async def apply(self, entity_id: str, change: Change) -> None:
        await self._database.write(lambda connection: self.apply_in(connection, entity_id, change))

    def get_in(self, connection: Connection, entity_id: str) -> Entity | None:
        lead = self._store.find_in(connection, entity_id)
        if lead is None:
            return None
        reached = replace(
            self._person(connection, lead),
            email=lead.email,
            phone=lead.phone,
            telegram_id=lead.tg_id,
            locale=lead.locale or self._locale,
        )
        zone = lead.timezone or reached.timezone or self._zone
        return Entity(lead.id, self._fields(lead), zone, replace(reached, timezone=zone))

    def _person(self, connection: Connection, lead: Lead) -> Recipient:
        """The person behind a lead. To an address that is not theirs nothing is told of them, but it may be suppressed."""
        person = self._recipients.get_in(connection, lead.id) or Recipient()
        addresses = (lead.email, lead.phone, lead.tg_id)
        if addresses == (person.email, person.phone, person.telegram_id):
            return person
        query = select(suppressions).where(suppressions.c.address.in_(filter(None, addresses)))
        found = {(row.channel, row.address): row.reason for row in connection.execute(query)}
        known = {**person.preferences.suppressed, **found}
        return replace(person, attributes={}, preferences=replace(person.preferences, suppressed=known))

    def note_in(self, connection: Connection, event: Event) -> None:
        """What an event says of its lead. What is wrong with it was said where it came in.

        Whether the lesson is still at the date that is confirmed can only be said here, where nobody can move it.
        """
        lead_id, line, data = self.id_of(event), LINES.get(event.event_type), said_by(event)
        if lead_id is None or line is None:
            return
        if event.event_type == CREATED:
            self._store.add_in(connection, self._new(lead_id, data))
        lead = self._store.find_in(connection, lead_id, lock=True)
        if lead is None:
            log.warning(f"{event.event_type} came for the lead {lead_id!r}, which is not here")
            return
        if event.event_type == CONFIRMED:
            self._check_date(lead, data.get("lesson_datetime"))
        if event.event_type == CONFIRMED and not lead.has_lesson(self._clock.now()):
            log.warning(f"{event.event_type} came for the lead {lead_id!r}, which has no lesson to come")
            return
        if said := _said(lead, event):
            self._store.change_in(connection, lead_id, said)
        shown: dict[str, Any] = {name: data[name] for name in SHOWN if name in data}
        self._store.log_in(connection, lead_id, LogLine(f"{EVENT_LINE}{event.event_id}", line, shown))

    def _check_date(self, lead: Lead, confirmed: str | None) -> None:
        """Who confirms a date that the lesson no longer has, has not confirmed the one that it has now."""
        if confirmed and read_moment(confirmed, lead.timezone or self._zone) != lead.lesson_datetime:
            raise LessonMoved(f"data.lesson_datetime: the lesson of {lead.id!r} is not at {confirmed}.")

    def apply_in(self, connection: Connection, entity_id: str, change: Change) -> None:
        if self._store.find_in(connection, entity_id, lock=True) is None:
            return
        if change.fields:
            self._store.change_in(connection, entity_id, change.fields)
        if change.log:
            self._store.log_in(connection, entity_id, change.log)

    # ── Jobs of other programs ────────────────────────────────────────────────────────────────────────────────────

    async def bring(self, entity_id: str) -> None:
        """One that stands only in the team's spreadsheet is a lead from now on."""
        if self.spreadsheet is not None and await self._store.find(entity_id) is None:
            await self.spreadsheet.bring(entity_id)

    def adopt_in(self, connection: Connection, event: Event, starts: Sequence[str]) -> Adopted | None:
        """What a job tells of a lead is kept where the lead has nothing of it.

        Who is in no table yet becomes a lead by a job of a chain that begins with a lead; of a lesson nobody is reminded who is not here.
        """
        lead_id, data = self.id_of(event), said_by(event)
        assert lead_id is not None
        self._check_said(data)
        if data.get("lesson_datetime"):
            self._check_moment(data["lesson_datetime"])
        lead = self._store.find_in(connection, lead_id, lock=True)
        if lead is None:
            return self._make_in(connection, lead_id, event) if CREATED in starts else None
        try:
            found = self._unknown(lead, data)
        except LessonMoved as error:
            return Adopted(str(error))
        if not found:
            return None
        self._store.change_in(connection, lead_id, found)
        return Adopted()

    def _make_in(self, connection: Connection, lead_id: str, event: Event) -> Adopted:
        if self._store.is_told_in(connection, f"{CREATED}:{lead_id}"):
            return Adopted(f"the lead {lead_id} has been erased")
        self._check_id(lead_id)
        self._store.add_in(connection, {**self._new(lead_id, said_by(event)), "source": "job"})
        self._store.log_in(connection, lead_id, LogLine(f"{EVENT_LINE}{event.event_id}", LINES[CREATED]))
        return Adopted()

    def _unknown(self, lead: Lead, data: Mapping[str, Any]) -> dict[str, Any]:
        """What a job tells that the lead has not. The date of a lesson that is over is none."""
        told = {**self._new(lead.id, data), "zoom_link": _text(data.get("zoom_link"))}
        names = ("name", "email", "phone", "tg_id", "zoom_link")
        found = {name: told[name] for name in names if told[name] and not getattr(lead, name)}
        date = data.get("lesson_datetime")
        moment = read_moment(date, lead.timezone or self._zone) if date else None
        if moment is None or moment == lead.lesson_datetime:
            return found
        if lead.has_lesson(now := self._clock.now()):
            raise LessonMoved(f"the lesson of {lead.id} is not at {date} any more")
        if lead.lesson_datetime is None or moment > now:
            early = lead.status in (model.NEW, model.BOT_STARTED, "CALL_NEEDED")
            found |= {"lesson_datetime": moment, **({"status": model.LESSON_BOOKED} if early else {})}
        if lead.lesson_datetime is not None and moment > now:
            found["confirmed"] = False  # that was another lesson
        return found

    # ── Events ────────────────────────────────────────────────────────────────────────────────────────────────────

    def check(self, event: Event) -> None:
        """Refuse, in a sentence, an event that says something impossible of a lead."""
        data = said_by(event)
        if event.event_type not in LINES or "lead_id" not in data:
            return
        if self.id_of(event) is None:
            raise InvalidJob(
                f"data.lead_id: it should be a text of 1 to {LONGEST_ID} characters, not {in_short(data['lead_id'])}."
            )
        if event.event_type == CREATED:
            self._check_id(data["lead_id"])
        if event.event_type in DATED:
            self._check_moment(data.get("lesson_datetime"))
        elif event.event_type == CONFIRMED and data.get("lesson_datetime"):
            self._check_moment(data["lesson_datetime"])
        self._check_said(data)

    def _check_id(self, lead_id: str) -> None:
        """The id of a new lead."""
        if lead_id in (".", ".."):
            raise InvalidJob(
                f"data.lead_id: {lead_id!r} is a step in an address, where no lead would be found."
            )
        if len(lead_id.encode()) > LONGEST_NEW_ID:
            raise InvalidJob(
                f"data.lead_id: a new lead's id may have {LONGEST_NEW_ID} bytes, so that it fits into the buttons of a chat."
            )

    def _check_moment(self, value: Any) -> None:
        try:
            read_moment(value, self._zone)
        except InvalidJob as error:
            raise InvalidJob(f"data.lesson_datetime: {error}") from None

    def _check_said(self, data: Mapping[str, Any]) -> None:
        for name, longest in TEXTS.items():
            value = data.get(name)
            if not (value is None or isinstance(value, str | int)) or len(str(value)) > longest:
                raise InvalidJob(f"data.{name}: it should be a text of up to {longest} characters.")
        if isinstance(extra := data.get("extra"), Mapping):
            model.check_extra(extra)
        if (link := data.get("zoom_link")) and not model.is_link(str(link)):
            raise InvalidJob("data.zoom_link: it should be a link, such as https://zoom.us/j/123.")
        if zone := data.get("timezone"):
            check_zone(str(zone))

    def imagine(self, data: Mapping[str, Any], now: Millis) -> Entity:
        """Somebody who left every contact, and has a lesson in a week, unless the event says otherwise."""
        contact = {"name": "Marat", "email": "marat@example.com", "phone": "+77010000000", "tg_id": "1"}
        said = {**contact, "lesson_datetime": isoformat(now + WEEK), **by_our_names(data)}
        return Entity("key", {"id": "key", "status": model.NEW, **said}, self._zone)

    def _new(self, lead_id: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """A lead as `lead.created` tells of it."""
        email, phone = str(data.get("email") or ""), str(data.get("phone") or "")
        extra = data.get("extra")
        return {
            "id": lead_id,
            "source": str(data.get("source") or "event")[:32],
            "name": _text(data.get("name")),
            "email": read_email(email),
            "phone": read_phone(phone, self._region),
            "tg_id": _text(data.get("tg_id")),
            "locale": _text(data.get("locale")),
            "timezone": _text(data.get("timezone")),
            "extra": dict(extra) if isinstance(extra, Mapping) else {},
        }

    def _fields(self, lead: Lead) -> dict[str, Any]:
        """What expressions and templates see; the form's other fields too, where nothing of ours has their name."""
        shown = lead.to_dict()
        del shown["extra"]
        if self._bot_url:
            shown["bot_url"] = f"{self._bot_url}?start={lead.id}"
        others = {name: value for name, value in lead.extra.items() if not _is_link(name)}
        return {**others, **shown}


def said_by(event: Event) -> Mapping[str, Any]:
    return by_our_names(event.data)


def by_our_names(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an event says, by our names."""
    if data.keys().isdisjoint(OTHER_NAMES):
        return data
    others = {ours: data[name] for name, ours in OTHER_NAMES.items() if name in data}
    return {**others, **data}


def event_of(event_type: str, lead_id: str, event_id: str, **data: Any) -> Event:
    """An event about a lead; it names the lead as its person too, where the id can be one."""
    try:
        user_id = UUID(lead_id)
    except ValueError:
        user_id = None
    return Event(event_type=event_type, event_id=event_id, user_id=user_id, data={"lead_id": lead_id, **data})


def _said(lead: Lead, event: Event) -> dict[str, Any]:
    """What an event changes of a lead."""
    data = said_by(event)
    match event.event_type:
        case "bot.activated":
            early = {"status": model.BOT_STARTED} if lead.status in (model.NEW, "CALL_NEEDED") else {}
            return {**_account(lead, data), **early, "bot_activated": True}
        case "lesson.booked" | "lesson.rescheduled":
            link = {"zoom_link": data["zoom_link"]} if data.get("zoom_link") else {}
            dated = {"lesson_datetime": data.get("lesson_datetime"), "status": model.LESSON_BOOKED}
            return {**link, **dated, "confirmed": False}
        case "lesson.confirmed":
            return {"confirmed": True, "status": model.CONFIRMED}
        case "lesson.cancelled":
            gone = {"lesson_datetime": None, "zoom_link": None}
            return {**gone, "confirmed": False, "status": model.CANCELLED}
    return {}


def _account(lead: Lead, data: Mapping[str, Any]) -> dict[str, Any]:
    """Who opened the bot. A lead stays with the account that was first."""
    told = {name: data[name] for name in ("tg_id", "locale") if data.get(name)}
    if lead.tg_id in (None, _text(data.get("tg_id"))):
        return told
    if "tg_id" in told:
        log.warning(f"the lead {lead.id!r} belongs to another account than {told['tg_id']!r}")
        return {}
    return told


def _is_link(name: str) -> bool:
    """Templates see `botUrl` as `bot_url` too."""
    return name.replace("_", "").lower() in LINKS


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)
