"""The setup of the tests of scenarios: a movable clock, leads in a table, channels with scripted answers."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

from tests.scenarios.invariants import check_invariants
from tests.scenarios.leads import TableLeads
from yamchi.clock import isoformat
from yamchi.notifications.channels.base import Channel, Message, Recipient
from yamchi.notifications.schemas.event import Event, EventAnswer
from yamchi.scenarios.plugin import Scenarios
from yamchi.testing import TestApp

PLUGINS = ("notifications", "scenarios")
"""Leads are kept by the tests themselves."""

LEAD = "6f1d2c9e-4b1a-4f7e-9a53-0d7c1b2a3e4f"


@dataclass
class ScriptedChannel(Channel):
    """A channel for tests: raises the scripted answers in order, then accepts every message."""

    name: str
    of: Callable[[Recipient], str | None]
    provider: str = "scripted"
    resends_unknown: bool = True
    answers: list[Exception] = field(default_factory=list)
    sent: list[tuple[str, Message]] = field(default_factory=list)
    before: Callable[[Message], Any] | None = None
    now: Callable[[], str] = lambda: ""

    def address(self, recipient: Recipient) -> str | None:
        return self.of(recipient)

    async def send(self, message: Message) -> str | None:
        if self.before:
            await self.before(message)
        if self.answers:
            raise self.answers.pop(0)
        self.sent.append((self.now(), message))
        return f"message-{len(self.sent)}"

    async def close(self) -> None:
        """Nothing is held open."""


@dataclass
class Harness:
    app: TestApp
    leads: TableLeads
    email: ScriptedChannel
    telegram: ScriptedChannel
    _numbers: Any = field(default_factory=lambda: count(1))

    @property
    def scenarios(self) -> Scenarios:
        return self.app.plugin(Scenarios)

    async def lead(self, lead_id: str = LEAD, **fields: Any) -> None:
        known = {"name": "Марат", "email": "marat@example.com", "phone": "+77010000000", "tg_id": "777"}
        await self.leads.create(lead_id, **{**known, **fields})

    async def event(
        self, event_type: str, lead_id: str | None = LEAD, event_id: str | None = None, **data: Any
    ) -> EventAnswer:
        about = {} if lead_id is None else {"lead_id": lead_id}
        event = Event(
            event_type=event_type, event_id=event_id or f"e-{next(self._numbers)}", data={**about, **data}
        )
        return await self.app.notifications.service.handle_event(event)

    def scenario(self, text: str, name: str = "own") -> None:
        folder = self.app.settings.home / "scenarios"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.yaml").write_text(text)
        self.scenarios.library.refresh()
        for definition in self.scenarios.library.current.values():
            queue = self.scenarios.queue(definition.queue)
            self.scenarios._serve(queue)

    def template(self, code: str, text: str, channel: str = "email", locale: str = "ru") -> None:
        suffix = "html" if channel in ("email", "telegram") else "txt"
        path = self.app.settings.home / "templates" / code / f"{channel}.{locale}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    async def pass_time(self, span: str) -> None:
        await self.app.clock.advance(span)

    async def at(self, moment: str) -> None:
        await self.app.clock.advance_to(datetime.fromisoformat(moment + "+00:00"))

    def ahead(self, **span: float) -> str:
        """A moment so far from now, as a lesson's date."""
        return isoformat(self.app.clock.now() + round(timedelta(**span).total_seconds() * 1000))

    async def run(self, scenario: str, key: str = LEAD) -> dict[str, Any]:
        return await self.scenarios.timelines.latest(scenario, key)

    async def steps(self, scenario: str, key: str = LEAD) -> list[tuple[str, str, str | None]]:
        """(step, state, reason) of everything past or pending."""
        run = await self.run(scenario, key)
        return [
            (line["step"], line["state"], line["reason"]) for line in run["timeline"] if not line["is_future"]
        ]

    async def jobs(self, queue: str, state: str = "delayed") -> list[Any]:
        return await self.app.queue(queue).jobs(state)

    def letters(self) -> list[str]:
        return [message.template_code for _, message in self.email.sent]

    def chats(self) -> list[str]:
        return [message.template_code for _, message in self.telegram.sent]

    async def check(self) -> None:
        await check_invariants(self.app)


@asynccontextmanager
async def open_harness(home: Path, **settings: Any) -> AsyncIterator[Harness]:
    app = TestApp(home=home, **{"plugins": PLUGINS, **settings})
    leads = TableLeads(app.database)
    app.scenarios.entities.register("lead", leads)

    def now() -> str:
        return isoformat(app.clock.now())

    email = ScriptedChannel("email", lambda recipient: recipient.email, now=now)
    telegram = ScriptedChannel("telegram", lambda recipient: recipient.telegram_id, now=now)
    app.notifications.register(email)
    app.notifications.register(telegram)
    harness = Harness(app, leads, email, telegram)
    try:
        yield harness
    finally:
        await app.close()
