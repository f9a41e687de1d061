"""The payload for a browser, as JSON within the size limit, and the topic under which a newer message replaces it."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson

from yamchi.http.base64url import as_base64url
from yamchi.notifications.channels.base import Message
from yamchi.notifications.channels.push.encryption import MAX_MESSAGE_BYTES

LONGEST_TITLE = 200
MOST_BUTTONS = 2
"""As many as browsers show."""


@dataclass(frozen=True, slots=True)
class Payload:
    content: bytes
    is_shortened: bool = False


def payload_of(message: Message) -> Payload:
    """The whole message if it fits, else with a shorter text."""
    rendered = message.rendered
    fields: dict[str, Any] = {
        "id": message.job_id,
        "title": (rendered.title or rendered.subject or "")[:LONGEST_TITLE],
        "body": rendered.text,
        "url": rendered.url,
        "image": rendered.image,
        "tag": topic_of(message),
        "urgent": message.is_urgent,
        "lang": rendered.locale or None,
        "buttons": [
            {"text": button.text, "url": button.url}
            for row in rendered.buttons
            for button in row
            if button.url
        ][:MOST_BUTTONS],
    }
    whole = _write(fields)
    return Payload(whole) if len(whole) <= MAX_MESSAGE_BYTES else _shortened(fields)


def topic_of(message: Message) -> str:
    """At most 32 letters: of the template's own topic, or of the job, so that a repeat replaces what it repeats."""
    topic = message.rendered.topic or message.job_id
    return as_base64url(sha256(topic.encode()).digest())[:32]


def _shortened(fields: dict[str, Any]) -> Payload:
    """The longest beginning of the text that fits."""
    text, shortest, longest = fields["body"], 0, len(fields["body"])
    while shortest < longest:
        middle = (shortest + longest + 1) // 2
        if len(_write(fields | {"body": _cut(text, middle)})) <= MAX_MESSAGE_BYTES:
            shortest = middle
        else:
            longest = middle - 1
    content = _write(fields | {"body": _cut(text, shortest)})
    if len(content) > MAX_MESSAGE_BYTES:  # the picture and the buttons leave no room for text
        return _shortened({**fields, "image": None, "buttons": []})
    return Payload(content, is_shortened=True)


def _cut(text: str, length: int) -> str:
    return text[:length].rstrip() + "…"


def _write(fields: dict[str, Any]) -> bytes:
    return orjson.dumps({name: value for name, value in fields.items() if value not in (None, [])})
