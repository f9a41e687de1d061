"""What a browser is told, as JSON small enough to be pushed, and the topic under which a newer message replaces it."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson

from yamchi.notifications.channels.base import Message
from yamchi.notifications.channels.push.base64url import as_base64url
from yamchi.notifications.channels.push.encryption import LARGEST_MESSAGE

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
    words: dict[str, Any] = {
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
    whole = _write(words)
    return Payload(whole) if len(whole) <= LARGEST_MESSAGE else _shortened(words)


def topic_of(message: Message) -> str:
    """At most 32 letters: of the template's own topic, or of the job, so that a repeat replaces what it repeats."""
    topic = message.rendered.topic or message.job_id
    return as_base64url(sha256(topic.encode()).digest())[:32]


def _shortened(words: dict[str, Any]) -> Payload:
    """The longest beginning of the text that fits."""
    text, shortest, longest = words["body"], 0, len(words["body"])
    while shortest < longest:
        middle = (shortest + longest + 1) // 2
        if len(_write(words | {"body": _cut(text, middle)})) <= LARGEST_MESSAGE:
            shortest = middle
        else:
            longest = middle - 1
    content = _write(words | {"body": _cut(text, shortest)})
    if len(content) > LARGEST_MESSAGE:  # the picture and the buttons leave no room for words
        return _shortened({**words, "image": None, "buttons": []})
    return Payload(content, is_shortened=True)


def _cut(text: str, length: int) -> str:
    return text[:length].rstrip() + "…"


def _write(words: dict[str, Any]) -> bytes:
    return orjson.dumps({name: value for name, value in words.items() if value not in (None, [])})
