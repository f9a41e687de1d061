"""Telegram: messages from a bot, within the limits that Telegram sets it.

However many workers there are, together they send at most 30 messages a second, one a second to a chat and 20 a minute
to a group. When Telegram asks for a pause (429), all of them pause for that chat, and the bot goes on with others; if several
chats are asked for a pause with no success in between, the bot pauses. A text that is too long, or that has a picture or a
document with it, is sent as several messages; each that has arrived is remembered.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from yamchi.clock import Clock, to_millis
from yamchi.errors import Outage, Unrecoverable
from yamchi.notifications.channels.base import ADMIN_GROUP, Attachment, Channel, Message, Recipient
from yamchi.notifications.channels.parts import Parts
from yamchi.notifications.channels.send_limits import Limit, SendLimits
from yamchi.notifications.channels.telegram import telegram_html
from yamchi.notifications.channels.telegram.bot_api import BotApi
from yamchi.notifications.channels.telegram.telegram_html import BOLD, LONGEST_CAPTION, Run
from yamchi.notifications.templates.meter import LARGE
from yamchi.notifications.templates.model import ButtonRows, Rendered
from yamchi.notifications.templates.offloop import in_thread
from yamchi.queues.records import storable

LONGEST_KEY = 100
PHOTO_TYPES = ("image/jpeg", "image/png", "image/webp")
LONGEST_ID = 255
"""Characters that are kept of a message's id."""

LONGEST_HTML = 100_000
"""Characters with tags: some twenty messages. What is longer is no message but a mistake, or an attack."""

MAX_PHOTO_BYTES = 10 * 1024 * 1024
MAX_DOCUMENT_BYTES = 50 * 1024 * 1024


BOT_LIMIT = 30, 1_000
CHAT_LIMIT = 1, 1_000
GROUP_LIMIT = 20, 60_000
"""How many in how many milliseconds."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the Bot API."""

    method: str
    fields: dict[str, Any]
    file: tuple[str, Attachment] | None = None


class TelegramChannel(Channel):
    """Sends as the bot. When in doubt a message is sent again: a reminder read twice is better than none."""

    name = "telegram"
    resends_unknown = True

    def __init__(
        self,
        api: BotApi,
        limits: SendLimits,
        parts: Parts,
        clock: Clock,
        *,
        admin_group: str | None = None,
    ) -> None:
        self.provider = f"bot{api.bot_id}"
        self._api = api
        self._limits = limits
        self._parts = parts
        self._clock = clock
        self._admin_group = admin_group
        self._overall = Limit(self.provider, *BOT_LIMIT)

    def address(self, recipient: Recipient) -> str | None:
        return recipient.telegram_id

    async def send(self, message: Message) -> str | None:
        is_large = len(message.rendered.html or "") > LARGE
        calls = await in_thread(_calls, message) if is_large else _calls(message)
        if not calls:
            raise Unrecoverable("The message is empty, and Telegram sends no empty ones.")
        chat = self._chat(message.to)
        arrived = await self._parts.arrived(message.job_id) if len(calls) > 1 else {}
        answers = []
        for number, call in enumerate(calls):
            part = str(number)
            if part not in arrived:
                answer = await self._call(chat, call, message.is_urgent)
                if len(calls) > 1:
                    await self._parts.note(message.job_id, part, answer)
                answers.append(answer)
            else:
                answers.append(arrived[part] or "")
        return ",".join(filter(None, answers)) or None

    async def ping(self) -> str:
        """Who the bot is, as Telegram knows it."""
        bot = await self._api.call("getMe", {})
        return f"Telegram knows the bot @{bot.get('username', self.provider)}"

    async def close(self) -> None:
        await self._api.close()

    def _chat(self, to: str) -> str:
        if to != ADMIN_GROUP:
            return to
        if self._admin_group is None:
            raise Unrecoverable("TELEGRAM_ADMIN_GROUP_ID must be set to write to the admin group.")
        return self._admin_group

    async def _call(self, chat: str, call: Call, is_urgent: bool) -> str:
        """One message to a chat, when the limits allow it; its id."""
        async with self._limits.hold(self._limits_of(chat), is_urgent=is_urgent):
            try:
                sent = await self._api.call(call.method, {"chat_id": chat, **call.fields}, call.file)
            except Outage as outage:
                if outage.retry_after is None:
                    raise
                raise await self._paused(chat, outage, outage.retry_after) from outage
        return _id_of(sent)

    async def _paused(self, chat: str, outage: Outage, pause: timedelta) -> Outage:
        """Pause the chat in all processes. As the outage's source it counts for the circuit, which may pause the bot."""
        await self._limits.pause(self._chat_limit(chat), self._clock.now() + to_millis(pause))
        return Outage(str(outage), retry_after=pause, source=chat)

    def _chat_limit(self, chat: str) -> Limit:
        return Limit(f"{self.provider}:{chat}"[:LONGEST_KEY], *CHAT_LIMIT)

    def _limits_of(self, chat: str) -> list[Limit]:
        """The ids of groups and channels are negative, or names."""
        limits = [self._chat_limit(chat), self._overall]
        if chat.startswith(("-", "@")):
            limits.insert(0, Limit(f"{self.provider}:group{chat}"[:LONGEST_KEY], *GROUP_LIMIT))
        return limits


def _id_of(sent: Any) -> str:
    """Of a message that was taken: without an id too it must not be sent again."""
    given = sent.get("message_id") if isinstance(sent, dict) else None
    return "" if given is None else storable(str(given), LONGEST_ID)


# ── From a message to requests ────────────────────────────────────────────────────────────────────────────────────


def _calls(message: Message) -> list[Call]:
    """Files first, then the text; a single file carries a short text as its caption. Buttons are under the last one."""
    rendered = message.rendered
    runs = _runs(rendered)
    files = [*_linked(rendered), *(_attached(file) for file in message.attachments)]
    is_caption = len(files) == 1 and telegram_html.length(runs) <= LONGEST_CAPTION
    texts = telegram_html.split(runs)
    if is_caption and texts:
        files[0].fields.update(caption=texts.pop(), parse_mode="HTML")
    calls = [*files, *(Call("sendMessage", {"text": text, "parse_mode": "HTML"}) for text in texts)]
    if calls and rendered.buttons:
        calls[-1].fields["reply_markup"] = {"inline_keyboard": keyboard_of(rendered.buttons)}
    return calls


def _runs(rendered: Rendered) -> list[Run]:
    if len(rendered.html or rendered.text) > LONGEST_HTML:
        raise Unrecoverable(
            f"The message has {len(rendered.html or rendered.text):,} characters, "
            f"and at most {LONGEST_HTML:,} are sent to a chat: shorten it."
        )
    if rendered.html is not None:
        return telegram_html.read(rendered.html)
    heading = [Run(rendered.subject, (BOLD,))] if rendered.subject else []
    gap = [Run("\n\n")] if heading and rendered.text else []
    return [*heading, *gap, Run(rendered.text)]


def _linked(rendered: Rendered) -> Iterator[Call]:
    """Telegram fetches these itself."""
    if rendered.image:
        yield Call("sendPhoto", {"photo": rendered.image})
    if rendered.document:
        yield Call("sendDocument", {"document": rendered.document})


def _attached(file: Attachment) -> Call:
    if len(file.content) > MAX_DOCUMENT_BYTES:
        raise Unrecoverable(f"{file.filename} is larger than the 50 MB that a bot may send.")
    is_photo = file.type in PHOTO_TYPES and len(file.content) <= MAX_PHOTO_BYTES
    method, name = ("sendPhoto", "photo") if is_photo else ("sendDocument", "document")
    return Call(method, {}, (name, file))


def keyboard_of(rows: ButtonRows) -> list[list[dict[str, str]]]:
    return [
        [
            {"text": button.text, "url": button.url}
            if button.url
            else {"text": button.text, "callback_data": button.callback or button.text}
            for button in row
        ]
        for row in rows
    ]
