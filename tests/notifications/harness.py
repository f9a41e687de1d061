"""The setup of most tests of notifications: a movable clock, a real mail server, the API, and a channel with scripted answers.

async with open_harness(tmp_path, mail_server) as harness:
    await harness.person(timezone="Asia/Almaty")
    job_id = await harness.notify("new_film_recommendation", film_title="The Matrix")
    await harness.app.drain()
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
from sqlalchemy import select

from tests.notifications.conftest import USER
from tests.services.mail import MailServer
from yamchi.clock import isoformat
from yamchi.notifications.channels.base import Channel, Message, Recipient
from yamchi.notifications.schemas.notification_job import derived_id
from yamchi.notifications.tables import notification_delivery
from yamchi.testing import TestApp
from yamchi.web import create_app

ADDRESS = "nurzhan@example.com"
FILM = {"film_title": "The Matrix"}


@dataclass
class ScriptedChannel(Channel):
    """A channel for tests: raises the scripted answers in order, then accepts every message."""

    name: str = "telegram"
    provider: str = "scripted"
    resends_unknown: bool = True
    answers: list[Exception] = field(default_factory=list)
    sent: list[Message] = field(default_factory=list)

    def address(self, recipient: Recipient) -> str | None:
        return recipient.telegram_id

    async def send(self, message: Message) -> str | None:
        if self.answers:
            raise self.answers.pop(0)
        self.sent.append(message)
        return f"message-{len(self.sent)}"


@dataclass
class Harness:
    app: TestApp
    client: httpx2.AsyncClient
    mail: MailServer
    channel: ScriptedChannel
    _numbers: Any = field(default_factory=lambda: count(1))

    async def person(self, user_id: str = USER, **fields: Any) -> None:
        given = {"email": ADDRESS, "locale": "en", **fields}
        answer = await self.client.put(f"/users/{user_id}", json=given)
        assert answer.status_code == 200, answer.text

    async def choose(self, user_id: str = USER, **preferences: Any) -> None:
        answer = await self.client.put(f"/users/{user_id}/preferences", json=preferences)
        assert answer.status_code == 200, answer.text

    async def notify(self, template: str = "new_film_recommendation", **fields: Any) -> str:
        """Queue a message as the API does; its job's id."""
        meta = {"event_type": "test", "event_id": f"e-{next(self._numbers)}", **fields.pop("meta", {})}
        job = {
            "job_id": str(derived_id(meta["event_id"])),
            "user_id": USER,
            "channel": "email",
            "template_code": template,
            "locale": "en",
            "data": FILM,
            "meta": meta,
            "created_at": isoformat(self.app.clock.now()),
            **fields,
        }
        answer = await self.client.post("/notifications", json=job)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["job_id"])

    async def event(self, event_type: str, event_id: str | None = None, **data: Any) -> list[dict[str, Any]]:
        event = {
            "event_type": event_type,
            "event_id": event_id or f"e-{next(self._numbers)}",
            "user_id": USER,
        }
        answer = await self.client.post("/events", json=event | {"data": data or FILM})
        assert answer.status_code == 202, answer.text
        return list(answer.json()["jobs"])

    async def delivery(self, job_id: str) -> dict[str, Any]:
        return dict((await self.client.get(f"/notifications/{job_id}")).json())

    async def status(self, job_id: str) -> str:
        return str((await self.delivery(job_id))["status"])

    async def deliveries(self) -> list[tuple[str, str, str | None]]:
        """(channel, status, why) of every delivery, oldest first."""
        table = notification_delivery
        query = select(table.c.channel, table.c.status, table.c.last_error).order_by(table.c.created_at)
        rows = await self.app.database.read(lambda connection: connection.execute(query).all())
        return [tuple(row) for row in rows]

    async def again(self, job_id: str) -> None:
        """Let the broker deliver a finished job once more."""
        engine, queue = self.app.notifications.queue.engine, "notifications"
        await engine.retry(queue, [job_id])
        await self.app.drain()

    async def dead_letters(self) -> list[dict[str, Any]]:
        return list((await self.client.get("/dlq")).json()["letters"])

    async def at(self, moment: str) -> None:
        """Let time pass until this moment (UTC)."""
        await self.app.clock.advance_to(datetime.fromisoformat(moment + "+00:00"))

    def rules(self, text: str) -> None:
        (self.app.settings.home / "rules.yaml").write_text(text)

    def template(self, code: str, text: str, channel: str = "email", locale: str = "en") -> None:
        suffix = "html" if channel in ("email", "telegram") else "txt"
        path = self.app.settings.home / "templates" / code / f"{channel}.{locale}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@asynccontextmanager
async def open_harness(home: Path, mail: MailServer, **settings: Any) -> AsyncIterator[Harness]:
    app = TestApp(home=home, smtp_host=mail.host, smtp_port=mail.port, smtp_security="none", **settings)
    channel = ScriptedChannel()
    app.notifications.register(channel)
    app.notifications.serve()
    transport = httpx2.ASGITransport(app=create_app(app))
    base = "http://localhost:3030/api/v1"
    try:
        async with httpx2.AsyncClient(transport=transport, base_url=base) as client:
            yield Harness(app, client, mail, channel)
    finally:
        await app.close()
