"""How updates come in: by webhook or by asking. Either way each becomes a job of its own id, so that it is handled once.

A job survives a crash, and what Telegram can't take now is tried again.
"""

import hmac
from collections.abc import Mapping
from typing import Any

import structlog

from yamchi.clock import Clock, Millis
from yamchi.errors import InvalidJob
from yamchi.leads.bot import Bot
from yamchi.leads.chat import Chat
from yamchi.leads.tables import lead_holds
from yamchi.leads.updates import KINDS
from yamchi.queues.job import Job
from yamchi.queues.queue import Queue
from yamchi.storage.database import Database
from yamchi.storage.holds import Holds

log = structlog.get_logger("yamchi.leads")

QUEUE = "telegram-updates"
JOB = "update"
WAIT = 25
"""Seconds that Telegram waits for something to tell."""

POLLER = "bot"
HOLD: Millis = 120_000
"""How long a process that gives no sign of life is still believed to be asking: longer than a question takes."""

LOOK_AGAIN: Millis = 15_000
"""How often a process looks whether the one that asks is gone."""

TOLD_EVERY: Millis = 86_400_000


class Listener:
    """From Telegram to jobs, and from jobs to the bot."""

    def __init__(self, queue: Queue, bot: Bot, chat: Chat, clock: Clock, database: Database) -> None:
        self._queue = queue
        self._bot = bot
        self._chat = chat
        self._clock = clock
        self._holds = Holds(database, lead_holds.c.name, clock, length=HOLD)

    async def take(self, update: Mapping[str, Any]) -> bool:
        """Keep an update to be handled; False if it is none."""
        number = update.get("update_id")
        if not isinstance(number, int) or isinstance(number, bool):
            return False
        await self._queue.add(dict(update), name=JOB, id=f"tg-{number}")
        return True

    async def handle(self, job: Job[dict[str, Any]]) -> dict[str, str]:
        return {"update": await self._bot.handle(job.data, job.holding)}

    async def poll(self) -> None:
        """Ask for ever, one process at a time: Telegram refuses two, and whoever asks while a webhook is set."""
        try:
            while True:
                if await self._holds.take_named(POLLER):
                    await self._chat.delete_webhook()
                    await self._poll_alone()
                await self._clock.sleep(LOOK_AGAIN)
        finally:
            await self._holds.release()

    async def _poll_alone(self) -> None:
        """Until another process does. What was kept is confirmed by the next question; a crash in between asks for it again."""
        offset = None
        while await self._holds.take_named(POLLER):
            for update in await self._chat.updates(offset, WAIT, KINDS):
                if await self._take_or_skip(update):
                    offset = int(update["update_id"]) + 1
            await self._clock.sleep(0)

    async def _take_or_skip(self, update: Mapping[str, Any]) -> bool:
        """One that no job can hold is left out: it would be told again and again."""
        try:
            return await self.take(update)
        except InvalidJob as error:
            log.warning(f"the update {update['update_id']} of Telegram is left out: {error}")
            return True

    async def announce(self, url: str, secret: str) -> None:
        """Tell Telegram where to send updates, at the start and then every day."""
        while True:
            await self._chat.set_webhook(url, secret, KINDS)
            log.info(f"Telegram sends updates to {url}")
            await self._clock.sleep(TOLD_EVERY)


def is_secret(given: str | None, expected: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
