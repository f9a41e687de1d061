"""The setup of the tests of leads: an application under a movable clock, its API, and channels with scripted answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tests.scenarios.harness import ScriptedChannel
from yamchi.clock import isoformat
from yamchi.leads.plugin import Leads
from yamchi.testing import TestApp
from yamchi.web import create_app

SECRET = "a-secret-of-tests"
FORM = {
    "Name": "Марат",
    "EMAIL": "marat@example.com",
    "phone": "8 (701) 000-00-00",
    "tranid": "1:2",
    "Курс": "English",
}


@dataclass
class Harness:
    app: TestApp
    client: httpx2.AsyncClient
    email: ScriptedChannel
    telegram: ScriptedChannel

    @property
    def leads(self) -> Leads:
        return self.app.plugin(Leads)

    async def form(self, **fields: str) -> httpx2.Response:
        """Fill in the form, as Tilda tells of it."""
        return await self.client.post("/webhooks/tilda", data={**FORM, **fields}, params={"secret": SECRET})

    async def lead(self, **fields: str) -> str:
        """The id of a lead that has come in."""
        answer = await self.form(**fields)
        assert (answer.status_code, answer.text) == (200, "ok"), answer.text
        return await self.leads.service.id_of(self.leads.read({**FORM, **fields}))

    async def event(self, event_type: str, lead_id: str, event_id: str, **data: Any) -> httpx2.Response:
        event = {"event_type": event_type, "event_id": event_id, "data": {"lead_id": lead_id, **data}}
        return await self.client.post("/v1/events", json=event)

    async def get(self, lead_id: str) -> dict[str, Any]:
        return dict((await self.client.get(f"/v1/leads/{lead_id}")).json())

    async def log(self, lead_id: str) -> list[str]:
        return [line["text"] for line in (await self.client.get(f"/v1/leads/{lead_id}/log")).json()]

    async def jobs(self, queue: str) -> list[Any]:
        return await self.app.queue(queue).jobs("delayed")


@asynccontextmanager
async def open_harness(home: Path, *, own_telegram: bool = True, **settings: Any) -> AsyncIterator[Harness]:
    known = {"tilda_secret": SECRET, "default_timezone": "Asia/Almaty", "telegram_admin_group_id": "-100"}
    app = TestApp(home=home, **{**known, **settings})

    def now() -> str:
        return isoformat(app.clock.now())

    email = ScriptedChannel("email", lambda recipient: recipient.email, now=now)
    telegram = ScriptedChannel("telegram", lambda recipient: recipient.telegram_id, now=now)
    app.notifications.register(email)
    if own_telegram:
        app.notifications.register(telegram)
    transport = httpx2.ASGITransport(create_app(app))
    async with app, httpx2.AsyncClient(transport=transport, base_url="http://localhost/api") as client:
        yield Harness(app, client, email, telegram)
