"""A lead, and what may be written into its fields."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import orjson
from sqlalchemy import Row

from yamchi.clock import Millis, check_zone, in_short, isoformat, to_moment
from yamchi.errors import InvalidJob, UnknownJob, WrongState
from yamchi.fields import check_json
from yamchi.storage.database import as_object

NEW = "NEW"
BOT_STARTED = "BOT_STARTED"
LESSON_BOOKED = "LESSON_BOOKED"
CONFIRMED = "CONFIRMED"
CANCELLED = "CANCELLED"

FLAGS = frozenset({"bot_activated", "confirmed", "email_1_sent", "email_2_sent"})
MOMENTS = frozenset({"email_1_sent_at", "lesson_datetime", "taken_at"})
LENGTHS = {
    "name": 255,
    "email": 320,
    "phone": 32,
    "tg_id": 32,
    "locale": 35,
    "timezone": 64,
    "status": 64,
    "zoom_link": 2_000,
    "zoom_meeting_id": 64,
    "taken_by": 255,
}
LARGEST_EXTRA = 64 * 1024
"""Bytes of all other fields of a lead together, as JSON: a list shows hundreds of leads."""

FIXED = frozenset({"id", "source", "created_at", "updated_at", "extra"})
"""What no scenario may write."""

_LONGEST_MOMENT = 40


class LessonMoved(WrongState):
    """The lesson has another date than the one that is confirmed."""


class UnknownLead(UnknownJob):
    """There is no such lead."""


@dataclass(frozen=True, slots=True)
class Lead:
    """Somebody who left a contact; moments are milliseconds."""

    id: str
    source: str
    name: str | None
    email: str | None
    phone: str | None
    tg_id: str | None
    locale: str | None
    timezone: str | None
    status: str
    bot_activated: bool
    confirmed: bool
    email_1_sent: bool
    email_1_sent_at: Millis | None
    email_2_sent: bool
    lesson_datetime: Millis | None
    zoom_link: str | None
    zoom_meeting_id: str | None
    taken_by: str | None
    taken_at: Millis | None
    extra: Mapping[str, Any]
    created_at: Millis
    updated_at: Millis

    @classmethod
    def of(cls, row: Row[Any]) -> "Lead":
        known = {name: getattr(row, name) for name in NAMES}
        return cls(**{**known, "extra": as_object(known["extra"])})

    def has_lesson(self, now: Millis) -> bool:
        """Whether there is a lesson to come."""
        return self.lesson_datetime is not None and self.lesson_datetime > now

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: moments as text."""
        return {name: _shown(name, getattr(self, name)) for name in NAMES}


NAMES = tuple(field.name for field in fields(Lead))
_TIMES = MOMENTS | {"created_at", "updated_at"}


def _shown(name: str, value: Any) -> Any:
    return isoformat(value) if name in _TIMES and value is not None else value


def read_moment(value: Any, zone: str) -> Millis:
    """A date with a time in ISO 8601; one without a zone is on the clock of `zone`."""
    if not isinstance(value, str) or len(value) > _LONGEST_MOMENT or len(value) < len("2026-02-25T15:00"):
        raise InvalidJob(f"{in_short(value)} is no date with a time: write it as 2026-02-25T15:00:00+05:00.")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidJob(
            f"{in_short(value)} is no date with a time: write it as 2026-02-25T15:00:00+05:00."
        ) from None
    try:
        return to_moment(moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(zone)))
    except (OverflowError, OSError):
        raise InvalidJob("A moment must be between the years 1900 and 9999.") from None


def is_link(text: str) -> bool:
    """Whether it may be shown to people as a link."""
    return text.startswith(("https://", "http://")) and not any(letter.isspace() for letter in text)


def check_extra(extra: Mapping[str, Any]) -> dict[str, Any]:
    """The other fields of a lead; refused in a sentence if they are too many or too long to be kept."""
    whole = check_json(dict(extra))
    if (size := len(orjson.dumps(whole))) > LARGEST_EXTRA:
        raise InvalidJob(
            f"extra: the other fields of a lead may have {LARGEST_EXTRA:,} bytes, and have {size:,}."
        )
    return whole


def checked(name: str, value: Any, zone: str) -> Any:
    """A value as the column keeps it; refused in a sentence if it can't be."""
    if name in FLAGS:
        if not isinstance(value, bool):
            raise InvalidJob(f"{name}: it should be true or false, not {in_short(value)}.")
        return value
    if value is None or value == "":
        if name == "status":
            raise InvalidJob("status: it can't be empty.")
        return None
    if name in MOMENTS:
        return value if isinstance(value, int) else read_moment(value, zone)
    text = check_zone(str(value)) if name == "timezone" else str(value)
    if name == "zoom_link" and not is_link(text):
        raise InvalidJob(f"zoom_link: {in_short(text)} is no link: write it as https://zoom.us/j/123.")
    if len(text) > LENGTHS[name]:
        raise InvalidJob(f"{name}: it may have {LENGTHS[name]} characters, and has {len(text):,}.")
    return text
