"""What Telegram tells the bot, as far as the bot listens: who wrote what, who pressed which button."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KINDS = ("message", "callback_query")


@dataclass(frozen=True, slots=True)
class Person:
    """Who it was."""

    id: str
    name: str
    language: str | None


@dataclass(frozen=True, slots=True)
class IncomingMessage:
    """A message in the person's own chat with the bot."""

    update_id: int
    person: Person
    chat: str
    text: str
    phone: str | None = None
    is_own_phone: bool = False


@dataclass(frozen=True, slots=True)
class ButtonPress:
    """A button under a message of the bot."""

    update_id: int
    person: Person
    query: str
    chat: str
    message: int | None
    data: str


def read_update(update: Mapping[str, Any]) -> IncomingMessage | ButtonPress | None:
    """None for an update that the bot does not handle."""
    number = update.get("update_id")
    if not isinstance(number, int):
        return None
    if isinstance(query := update.get("callback_query"), dict):
        return _pressed(number, query)
    if isinstance(message := update.get("message"), dict):
        return _said(number, message)
    return None


def _said(number: int, message: Mapping[str, Any]) -> IncomingMessage | None:
    person, chat = _person(message.get("from")), message.get("chat")
    if person is None or not isinstance(chat, dict) or chat.get("type") != "private":
        return None
    contact = message.get("contact")
    found = contact if isinstance(contact, dict) else {}
    phone = found.get("phone_number")
    return IncomingMessage(
        number,
        person,
        str(chat.get("id")),
        str(message.get("text") or ""),
        phone if isinstance(phone, str) else None,
        str(found.get("user_id")) == person.id,
    )


def _pressed(number: int, query: Mapping[str, Any]) -> ButtonPress | None:
    person, message = _person(query.get("from")), query.get("message")
    if person is None or not isinstance(query.get("data"), str):
        return None
    place = message if isinstance(message, dict) else {}
    chat = place.get("chat")
    chat_id = chat.get("id") if isinstance(chat, dict) else None
    where = str(person.id if chat_id is None else chat_id)
    shown = place.get("message_id")
    return ButtonPress(
        number,
        person,
        str(query.get("id")),
        where,
        shown if isinstance(shown, int) else None,
        str(query["data"]),
    )


def _person(found: Any) -> Person | None:
    if not isinstance(found, dict) or not isinstance(found.get("id"), int) or found.get("is_bot"):
        return None
    names = (found.get("first_name"), found.get("last_name"))
    name = " ".join(str(part) for part in names if part) or str(found.get("username") or found["id"])
    language = found.get("language_code")
    return Person(str(found["id"]), name[:100], language[:2].lower() if isinstance(language, str) else None)
