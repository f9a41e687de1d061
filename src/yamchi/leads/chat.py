"""How the bot speaks: a template in the person's language, and the buttons under it, as one call to the Bot API."""

from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from yamchi.errors import Unrecoverable
from yamchi.notifications.channels.base import Unreachable
from yamchi.notifications.channels.telegram import telegram_html
from yamchi.notifications.channels.telegram.bot_api import AnswerTooLarge, BotApi
from yamchi.notifications.channels.telegram.channel import keyboard_of
from yamchi.notifications.templates import Rendered, TemplateStore
from yamchi.notifications.templates.model import find_template
from yamchi.notifications.templates.offloop import render_message

log = structlog.get_logger("yamchi.leads")

CHANNEL = "telegram"
Keyboard = Sequence[Sequence[Mapping[str, Any]]]

LONGEST_ANSWER = 200
"""Characters that Telegram shows as the answer to a button."""

UPDATES_AT_ONCE = 50
MAX_UPDATES_BYTES = 16 * 1_048_576
"""Fifty of the longest messages, each a reply to another, are a few megabytes."""


class Chat:
    """One bot, in every language."""

    def __init__(self, api: BotApi, templates: TemplateStore) -> None:
        self._api = api
        self._templates = templates

    async def render(self, code: str, locale: str, zone: str, data: Mapping[str, Any]) -> Rendered:
        template = await find_template(self._templates, code, CHANNEL, locale)
        return await render_message(template, data, timezone=zone)

    async def say(
        self, chat: str, rendered: Rendered, above: Keyboard = (), *, edits: int | None = None
    ) -> None:
        """A message, with these buttons above the template's own; in place of the bot's message `edits`, if given."""
        keyboard = [*above, *keyboard_of(rendered.buttons)]
        markup = {"reply_markup": {"inline_keyboard": keyboard}} if keyboard else {}
        fields = {"chat_id": chat, "text": _html(rendered), "parse_mode": "HTML", **markup}
        if edits is None:
            await self._call("sendMessage", fields)
        else:
            await self._call("editMessageText", {**fields, "message_id": edits})

    async def ask_contact(self, chat: str, rendered: Rendered) -> None:
        """A message whose button sends the person's own number."""
        keys = [
            [{"text": button["text"], "request_contact": True} for button in row]
            for row in keyboard_of(rendered.buttons)
        ]
        markup = {"keyboard": keys, "resize_keyboard": True, "one_time_keyboard": True}
        fields = {"chat_id": chat, "text": _html(rendered), "parse_mode": "HTML", "reply_markup": markup}
        await self._call("sendMessage", fields)

    async def say_plainly(self, chat: str, text: str) -> None:
        """Somebody else's words: no markup in them means anything."""
        for piece in telegram_html.split([telegram_html.Run(text)]):
            await self._call("sendMessage", {"chat_id": chat, "text": piece, "parse_mode": "HTML"})

    async def put_buttons(self, chat: str, message: int, keyboard: Keyboard) -> None:
        fields = {"chat_id": chat, "message_id": message, "reply_markup": {"inline_keyboard": keyboard}}
        await self._call("editMessageReplyMarkup", fields)

    async def answer(self, query: str, rendered: Rendered | None = None) -> None:
        """Answer the press of a button, with a short text or without: Telegram shows that it is loading until then."""
        word = {"text": rendered.text.strip()[:LONGEST_ANSWER]} if rendered else {}
        await self._call("answerCallbackQuery", {"callback_query_id": query, **word})

    async def updates(self, offset: int | None, seconds: int, kinds: Sequence[str]) -> list[dict[str, Any]]:
        """What is new, the oldest first. Those that are too large together come one at a time: no message keeps the rest out."""
        asked = {"offset": offset, "timeout": seconds, "allowed_updates": list(kinds)}
        try:
            return await self._updates({**asked, "limit": UPDATES_AT_ONCE})
        except AnswerTooLarge as error:
            log.warning(f"the bot asks for updates one at a time, since many are too large together: {error}")
            return await self._updates({**asked, "limit": 1})

    async def _updates(self, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        found = await self._api.call("getUpdates", asked, most=MAX_UPDATES_BYTES)
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    async def delete_webhook(self) -> None:
        """From now on updates are asked for; those that wait stay."""
        await self._api.call("deleteWebhook", {"drop_pending_updates": False})

    async def set_webhook(self, url: str, secret: str, kinds: Sequence[str]) -> None:
        await self._api.call(
            "setWebhook", {"url": url, "secret_token": secret, "allowed_updates": list(kinds)}
        )

    async def close(self) -> None:
        await self._api.close()

    async def _call(self, method: str, fields: Mapping[str, Any]) -> None:
        """What Telegram will never take is noted; what it can't take now is raised, and the update comes again."""
        try:
            await self._api.call(method, fields)
        except Unreachable as error:
            log.info(f"the bot can't write to {fields.get('chat_id', 'a person')}: {error}")
        except Unrecoverable as error:
            if method == "sendMessage":
                raise
            log.info(f"Telegram refused {method}: {error}")  # too late, or the same as before


def _html(rendered: Rendered) -> str:
    runs = (
        telegram_html.read(rendered.html) if rendered.html is not None else [telegram_html.Run(rendered.text)]
    )
    return telegram_html.split(runs)[0]
