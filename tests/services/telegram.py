"""A Bot API server in this process: keeps every message with the moment it came, and can be told how to answer.

It is as strict as Telegram about what it takes: the token, the length of a text, the tags in it, the buttons under it.
"""

import json
import math
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from html.parser import HTMLParser
from typing import Any

from tests.services.webserver import Response, WebService

TOKEN = "123456:AAE-test"
TAGS = {
    "a",
    "b",
    "blockquote",
    "code",
    "del",
    "em",
    "i",
    "ins",
    "pre",
    "s",
    "span",
    "strike",
    "strong",
    "tg-emoji",
    "tg-spoiler",
    "u",
}
BOT_METHOD = re.compile(r"/bot([^/]+)/(\w+)")
LONGEST = {"text": 4096, "caption": 1024}


@dataclass(frozen=True)
class Sent:
    """One message that a bot sent, or tried to."""

    at: float
    method: str
    fields: dict[str, Any]
    file: bytes | None
    status: int

    @property
    def chat(self) -> str:
        return str(self.fields.get("chat_id"))


Answer = tuple[int, dict[str, Any]]


def refusal(status: int, description: str, **parameters: Any) -> Answer:
    body: dict[str, Any] = {"ok": False, "error_code": status, "description": description}
    return status, body | ({"parameters": parameters} if parameters else {})


@dataclass
class BotServer(WebService):
    """`answers` are given to the next messages, in order; `refusals` to all messages to a chat; `updates` to who asks.

    After `pause_after` messages it refuses everything for `pause_seconds`, as Telegram does when a bot sends too much.
    """

    answers: deque[Answer] = field(default_factory=deque)
    refusals: dict[str, Answer] = field(default_factory=dict)
    pause_after: int | None = None
    pause_seconds: int = 3
    paused_at: float | None = None
    hang_ups: int = 0
    updates: list[dict[str, Any]] = field(default_factory=list)
    webhook: str = ""
    log: list[Sent] = field(default_factory=list)
    clock: Callable[[], float] = time.time
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def messages(self) -> list[Sent]:
        """What was delivered."""
        with self._lock:
            return [sent for sent in self.log if sent.status == 200]

    def texts(self, chat: str) -> list[str]:
        return [
            sent.fields.get("text") or sent.fields.get("caption", "")
            for sent in self.messages
            if sent.chat == chat
        ]

    def by_chat(self) -> Counter[str]:
        return Counter(sent.chat for sent in self.messages)

    def most_within(self, seconds: float, chat: str | None = None) -> int:
        """The most messages that came within any span of this length."""
        moments = sorted(sent.at for sent in self.log if chat in (None, sent.chat))
        most, first = 0, 0
        for last, moment in enumerate(moments):
            while moment - moments[first] >= seconds:
                first += 1
            most = max(most, last - first + 1)
        return most

    def respond(self, path: str, headers: dict[str, str], body: bytes) -> Response | None:
        found = BOT_METHOD.fullmatch(path)
        assert found, path
        said = self._answer(found[1], found[2], *_read(headers.get("content-type", ""), body))
        if said is None:
            return None
        return Response(said[0], json.dumps(said[1]).encode(), {"Content-Type": "application/json"})

    def _answer(self, token: str, method: str, fields: dict[str, Any], file: bytes | None) -> Answer | None:
        """What to say; None to hang up, having done what was asked."""
        if token != TOKEN:
            return refusal(401, "Unauthorized")
        if method == "getMe":
            return 200, {"ok": True, "result": {"id": 123456, "is_bot": True, "username": "yamchi_bot"}}
        if method == "deleteWebhook":
            self.webhook = ""
            return 200, {"ok": True, "result": True}
        if method == "getUpdates":
            if self.webhook:
                return refusal(409, "Conflict: can't use getUpdates method while webhook is active")
            first = fields.get("offset") or 0
            with self._lock:
                self.updates = [one for one in self.updates if one["update_id"] >= first]
                return 200, {"ok": True, "result": self.updates[: fields.get("limit", 100)]}
        with self._lock:
            status, body = self._judge(fields)
            self.log.append(Sent(self.clock(), method, fields, file, status))
            if status == 200:
                body["result"] = {"message_id": len(self.log)}
            if self.hang_ups:
                self.hang_ups -= 1
                return None
        return status, body

    def _judge(self, fields: dict[str, Any]) -> Answer:
        if self.answers:
            return self.answers.popleft()
        if paused := self._pause():
            return paused
        if refused := self.refusals.get(str(fields.get("chat_id"))):
            return refused
        for name, longest in LONGEST.items():
            if wrong := _wrong(fields.get(name, ""), longest):
                return refusal(400, f"Bad Request: {wrong}")
        markup = fields.get("reply_markup") or {}
        rows = (json.loads(markup) if isinstance(markup, str) else markup).get("inline_keyboard", ())
        if any(not 1 <= len(key.get("callback_data", "x").encode()) <= 64 for row in rows for key in row):
            return refusal(400, "Bad Request: BUTTON_DATA_INVALID")
        return 200, {"ok": True}

    def _pause(self) -> Answer | None:
        if self.pause_after is None or len(self.log) < self.pause_after:
            return None
        if self.paused_at is None:
            self.paused_at = self.clock()
        left = math.ceil(self.paused_at + self.pause_seconds - self.clock())
        return None if left <= 0 else refusal(429, f"Too Many Requests: retry after {left}", retry_after=left)


def _wrong(html: str, longest: int) -> str | None:
    checker = _Checker()
    checker.feed(html)
    checker.close()
    if checker.trouble or checker.opened:
        return f"can't parse entities: {checker.trouble or checker.opened}"
    if len("".join(checker.text).encode("utf-16-le")) // 2 > longest:
        return "message is too long"
    return None


class _Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.text: list[str] = []
        self.trouble = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in TAGS:
            self.trouble = f"unsupported start tag {tag}"
        self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.opened or self.opened.pop() != tag:
            self.trouble = f"unexpected end tag {tag}"

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def _read(kind: str, body: bytes) -> tuple[dict[str, Any], bytes | None]:
    if not kind.startswith("multipart/"):
        return json.loads(body or b"{}"), None
    whole = message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + body, policy=policy.HTTP)
    fields: dict[str, Any] = {}
    file = None
    for part in whole.iter_parts():
        content = part.get_payload(decode=True)
        if part.get_filename():
            file = content
        else:
            fields[str(part.get_param("name", header="content-disposition"))] = content.decode()
    return fields, file
