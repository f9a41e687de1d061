"""Telegram as people use it, for the tests of the bot: what they say and press, and what the bot answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from tests.leads.harness import Harness, open_harness
from tests.services.telegram import TOKEN, BotServer, Sent
from yamchi.leads.listening import Listener

WORD = "a-word_of-Telegram"
GROUP = "-100200300"
MARAT, AISHA = 777, 888

WELCOME = {
    "ru": "👋 Марат, здравствуйте! Выберите день пробного урока:",
    "en": "👋 Hello, Марат! Choose the day of your trial lesson:",
    "kk": "👋 Сәлеметсіз бе, Марат! Сынақ сабағының күнін таңдаңыз:",
}


@dataclass(eq=False)
class Messenger:
    """Telegram, as people use it."""

    harness: Harness
    server: BotServer
    _turn: Any = field(default_factory=lambda: count(1))

    async def update(self, **what: Any) -> int:
        """Telegram tells of something; its answer's status."""
        body = {"update_id": next(self._turn), **what}
        return await self.send(body)

    async def send(self, body: dict[str, Any], word: str | None = WORD) -> int:
        headers = {} if word is None else {"X-Telegram-Bot-Api-Secret-Token": word}
        answer = await self.harness.client.post("/webhooks/telegram", json=body, headers=headers)
        await self.harness.app.drain()
        return answer.status_code

    async def say(self, who: int, text: str, language: str = "ru", **more: Any) -> list[Sent]:
        before = len(self.server.log)
        message = {
            "message_id": 1,
            "from": person(who, language),
            "chat": private(who),
            "text": text,
            **more,
        }
        assert await self.update(message=message) == 200
        return self.server.log[before:]

    async def press(
        self, who: int, data: str, *, chat: str | None = None, language: str = "ru", under: int = 55
    ) -> list[Sent]:
        before = len(self.server.log)
        place = {"id": int(chat), "type": "supergroup"} if chat else private(who)
        message = {"message_id": under, "chat": place}
        query = {"id": f"q{who}", "from": person(who, language), "message": message, "data": data}
        assert await self.update(callback_query=query) == 200
        return self.server.log[before:]

    async def start(self, **fields: Any) -> str:
        """Marat leaves his contact, and opens the bot by the link of his letter."""
        lead_id = await self.harness.lead(**fields)
        await self.say(MARAT, f"/start {lead_id}")
        return lead_id

    async def book(self, day: str) -> list[Sent]:
        """Marat chooses a day, and its first time; what the bot answers to the second."""
        times, _ = await self.press(MARAT, f"day:{day}")
        return await self.press(MARAT, keys(times)[0][1])


def person(who: int, language: str) -> dict[str, Any]:
    return {
        "id": who,
        "is_bot": False,
        "first_name": {MARAT: "Марат", AISHA: "Айша"}[who],
        "language_code": language,
    }


def private(who: int) -> dict[str, Any]:
    return {"id": who, "type": "private"}


def keys(sent: Sent) -> list[tuple[str, str]]:
    rows = sent.fields.get("reply_markup", {}).get("inline_keyboard", [])
    return [(key["text"], key["callback_data"]) for row in rows for key in row]


@asynccontextmanager
async def a_bot(home: Path, server: BotServer, **settings: Any) -> AsyncIterator[Messenger]:
    known = {
        "telegram_bot": "webhook",
        "telegram_bot_token": TOKEN,
        "telegram_api_url": server.origin,
        "telegram_webhook_secret": WORD,
        "telegram_admin_group_id": GROUP,
        "lesson_days": "mon,tue,wed,thu,fri",
        "lesson_hours": "15:00-18:00",
    }
    async with open_harness(home, own_telegram=False, **{**known, **settings}) as harness:
        yield Messenger(harness, server)


def listener_of(telegram: Messenger) -> Listener:
    assert telegram.harness.leads.listener is not None
    return telegram.harness.leads.listener


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
