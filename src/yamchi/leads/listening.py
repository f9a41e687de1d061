"""How updates come in: by webhook or by asking. Either way each becomes a job of its own id, so that it is handled once.

A job survives a crash, and what Telegram can't take now is tried again.
"""

import hmac
from collections.abc import Mapping
from typing import Any

import structlog

from yamchi.clock import Clock, Millis
from yamchi.leads.bot import Bot
from yamchi.leads.chat import Chat
from yamchi.leads.updates import KINDS
from yamchi.queues.job import Job
from yamchi.queues.queue import Queue

log = structlog.get_logger("yamchi.leads")

QUEUE = "telegram-updates"
JOB = "update"
WAIT = 25
"""Seconds that Telegram waits for something to tell."""

TOLD_EVERY: Millis = 86_400_000


class Listener:
    """From Telegram to jobs, and from jobs to the bot."""

    def __init__(self, queue: Queue, bot: Bot, chat: Chat, clock: Clock) -> None:
        self._queue = queue
        self._bot = bot
        self._chat = chat
        self._clock = clock

    async def take(self, update: Mapping[str, Any]) -> bool:
        """Keep an update to be handled; False if it is none."""
        number = update.get("update_id")
        if not isinstance(number, int) or isinstance(number, bool):
            return False
        await self._queue.add(dict(update), name=JOB, id=f"tg-{number}")
        return True

    async def handle(self, job: Job[dict[str, Any]]) -> dict[str, str]:
        return {"update": await self._bot.handle(job.data)}

    async def poll(self) -> None:
        """Ask for ever. What was kept is confirmed by the next question; a crash in between asks for it again."""
        offset = None
        while True:
            for update in await self._chat.updates(offset, WAIT, KINDS):
                if await self.take(update):
                    offset = int(update["update_id"]) + 1
            await self._clock.sleep(0)

    async def announce(self, url: str, secret: str) -> None:
        """Tell Telegram where to send updates, at the start and then every day."""
        while True:
            await self._chat.set_webhook(url, secret, KINDS)
            log.info(f"Telegram sends updates to {url}")
            await self._clock.sleep(TOLD_EVERY)


def is_secret(given: str | None, expected: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
