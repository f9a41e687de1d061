"""Runs that waited under the first version with scenarios and leads are opened by this one, and finish what they began.

`make_waiting.py` says what is in its databases, a thousand runs, and how they were made. With FAULTS=full they are ten thousand
(`multiplying.py`), and all of them are led to their end.
"""

import asyncio
import re
import tarfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from tests.scale import FULL, scaled
from tests.scenarios.harness import ScriptedChannel
from tests.scenarios.invariants import check_invariants
from tests.upgrade.make_waiting import EARLY, END, PLUGINS, Lead, all_leads, write_files
from tests.upgrade.multiplying import multiply
from tests.upgrade.test_upgrade import HERE, restore
from yamchi import Yamchi
from yamchi.clock import Millis, to_moment
from yamchi.notifications.channels.base import Message
from yamchi.notifications.schemas.event import Event
from yamchi.scenarios.tables import scenario_runs as runs
from yamchi.settings import Settings
from yamchi.testing.clock import MovableClock

pytestmark = pytest.mark.timeout(3_600 if FULL else 300)

TIMES = scaled(1, 10)
LEADS = {lead.id: lead for lead in all_leads(TIMES)}
CHATS = {lead.chat: lead.id for lead in LEADS.values()}
MOVED_TO = END + timedelta(days=10)
STARTED = {"invoice.sent": ("invoice", "paid"), "question.asked": ("question", "answered")}
LEFT = {
    "email1": ["email_1", "email_2", "call_needed"],
    "email2": ["email_2", "call_needed"],
    "callAlert": ["call_needed"],
}
"""By the step that waits, the messages that are still to come."""


@dataclass
class Reopened:
    """The application that ships, on what the first version left behind, at the moment at which it was left."""

    app: Yamchi
    clock: MovableClock
    sent: list[tuple[str, str]] = field(default_factory=list)
    """(lead, template) of every message, in order."""

    async def note(self, message: Message) -> None:
        self.sent.append((_whose(message), message.template_code))

    async def happen(self, event_type: str, leads: list[Lead], **data: Any) -> None:
        for lead in leads:
            event = Event(
                event_type=event_type,
                event_id=f"{event_type}-{lead.id}-now",
                data={"lead_id": lead.id, **data},
            )
            await self.app.notifications.service.handle_event(event)

    async def next_due(self) -> Millis | None:
        pending = runs.c.status == "running", runs.c.due_at > self.clock.now()
        query = select(func.min(runs.c.due_at)).where(*pending)
        return await self.app.database.read(lambda connection: connection.execute(query).scalar())

    async def waiting(self) -> Counter[tuple[str, str]]:
        """How many runs wait, by scenario and step."""
        query = select(runs.c.scenario, runs.c.armed_step).where(runs.c.status == "running")
        rows = await self.app.database.read(lambda connection: connection.execute(query).all())
        return Counter((row.scenario, row.armed_step) for row in rows)

    async def timeline(self, scenario: str, lead: Lead) -> list[tuple[str, str]]:
        run = await self.app.scenarios.timelines.latest(scenario, lead.id)
        return [(line["step"], line["state"]) for line in run["timeline"] if not line["is_future"]]


def _whose(message: Message) -> str:
    """A lead's id, by the address, or by what the team is told."""
    if message.to == "admin_group":
        (found,) = re.findall(r"<code>(\w+)</code>", message.rendered.html or "")
        return found
    return message.to.partition("@")[0] if "@" in message.to else CHATS[message.to]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
async def reopened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Reopened]:
    write_files(tmp_path)
    with tarfile.open(HERE / "waiting-sqlite.tar.xz") as kept:
        kept.extractall(tmp_path, filter="data")
    url = f"sqlite:///{tmp_path}/var/data.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_database")().url
        await asyncio.to_thread(restore, "waiting-postgresql.sql.xz", url)
    await asyncio.to_thread(multiply, url.replace("postgresql:", "postgresql+psycopg:"), TIMES)
    clock = MovableClock(END)
    queue = f"sqlite:///{tmp_path}/var/yamchi.db"
    settings = Settings(home=tmp_path, database_url=url, default_queue_url=queue, plugins=PLUGINS)
    app = Yamchi(settings, clock=clock)
    found = Reopened(app, clock)
    for name, address in (("email", "email"), ("telegram", "telegram_id")):
        channel = ScriptedChannel(name, lambda one, address=address: getattr(one, address))
        channel.before = found.note
        app.notifications.register(channel)
    app.serve()
    async with app:
        worker = app.worker()
        clock.attach(worker.drain, found.next_due)
        while await app.scenarios.outbox.sweep():
            continue
        yield found
        await worker.close()


def of(group: str, start: int = 0, end: int | None = None) -> list[Lead]:
    return [lead for lead in LEADS.values() if lead.group.name == group][start:end]


STOPPED = {
    "bot.activated": of("a", 0, 3),
    "lesson.confirmed": of("d", 0, 3),
    "invoice.cancelled": of("f", 0, 3),
}
MOVED = of("d", 3, 6) + of("e", 0, 3) + of("k", 0, 3)
PAID, ANSWERED = of("f", 3, 10), of("g", 0, 7)


def expected_soon() -> Iterator[tuple[str, str]]:
    """What is sent in the first ten minutes, besides what was sent before."""
    due = {"a": "email_1", "b": "email_2", "c": "call_needed", "d": "remind_24h", "e": "remind_5h"}
    for lead in LEADS.values():
        is_off = lead in MOVED or any(lead in leads for leads in STOPPED.values())
        if lead.group.name in due and not is_off:
            yield lead.id, due[lead.group.name]
    yield from ((lead.id, "thanks") for lead in PAID + ANSWERED)


def expected_in_the_end() -> Iterator[tuple[str, str]]:
    for lead in LEADS.values():
        group = lead.group
        if lead not in STOPPED["bot.activated"]:
            yield from ((lead.id, template) for template in LEFT[group.letter])
        if lead in MOVED:
            yield from ((lead.id, template) for template in ("remind_24h", "remind_5h"))
        elif group.lesson is not None and lead not in STOPPED["lesson.confirmed"]:
            first = ["remind_24h"] if group.lesson > timedelta(days=1) else []
            yield from ((lead.id, template) for template in [*first, "remind_5h"])
        if group.event == "invoice.sent" and lead not in STOPPED["invoice.cancelled"]:
            yield lead.id, "thanks" if lead in PAID else "overdue"
        if lead in ANSWERED:
            yield lead.id, "thanks"


async def test_what_waited_goes_on_and_is_sent_once(reopened: Reopened) -> None:
    assert await reopened.waiting() == _left_waiting()
    for event_type, leads in STOPPED.items():
        await reopened.happen(event_type, leads)
    await reopened.happen("lesson.rescheduled", MOVED, lesson_datetime=MOVED_TO.isoformat())
    await reopened.happen("invoice.paid", PAID)
    await reopened.happen("question.answered", ANSWERED)
    await reopened.clock.advance_to(END + EARLY)
    assert Counter(reopened.sent) == Counter(expected_soon())
    await _check_timelines(reopened)
    if FULL:
        await reopened.clock.advance_to(MOVED_TO + timedelta(hours=1))
        assert Counter(reopened.sent) == Counter(expected_in_the_end())
        left = Counter({("question", "answered"): len(of("g") + of("m")) - len(ANSWERED)})
        assert await reopened.waiting() == left
    concerned = None if FULL else {lead.id for name in "abcdefg" for lead in of(name)}
    await check_invariants(reopened.app, keys=concerned)
    await _check_leads(reopened)


def _left_waiting() -> Counter[tuple[str, str]]:
    expected: Counter[tuple[str, str]] = Counter()
    for lead in LEADS.values():
        group = lead.group
        expected["email_chain", group.letter] += 1
        if group.lesson is not None:
            expected["lesson_reminders", "remind24h" if group.lesson > timedelta(days=1) else "remind5h"] += 1
        if group.event is not None:
            expected[STARTED[group.event]] += 1
    return expected


async def _check_timelines(reopened: Reopened) -> None:
    """What the first version did is shown with what this one does."""
    (called, *_), (activated, *_), (moved, *_) = of("c"), of("a"), of("e")
    done = [("email1", "done"), ("email2", "done"), ("callAlert", "done")]
    assert await reopened.timeline("email_chain", called) == done
    assert await reopened.timeline("email_chain", activated) == [("email1", "cancelled")]
    assert await reopened.timeline("lesson_reminders", moved) == [
        ("remind24h", "done"),
        ("remind5h", "cancelled"),
        ("remind24h", "armed"),
    ]
    assert await reopened.timeline("invoice", PAID[0]) == [("paid", "done"), ("thanks", "done")]
    assert await reopened.timeline("invoice", STOPPED["invoice.cancelled"][0]) == [("paid", "cancelled")]


async def _check_leads(reopened: Reopened) -> None:
    """Fields and log agree with what was sent, before and since."""
    for name in "abce":
        lead = of(name)[-1]
        kept, sent = (
            await reopened.app.leads.get(lead.id),
            [one for one in reopened.sent if one[0] == lead.id],
        )
        before = {"email1": 0, "email2": 1, "callAlert": 2}[lead.group.letter]
        letters = before + sum(template in ("email_1", "email_2") for _, template in sent)
        assert (kept.email_1_sent, kept.email_2_sent) == (letters > 0, letters > 1)
        lines = [line["text"] for line in await reopened.app.leads.store.log(lead.id)]
        assert [line for line in lines if line.startswith("EMAIL")] == ["EMAIL_1_SENT", "EMAIL_2_SENT"][
            :letters
        ]
        assert (kept.status == "CALL_NEEDED") == ((lead.id, "call_needed") in sent)
    lead = await reopened.app.leads.get(MOVED[0].id)
    assert lead.lesson_datetime == to_moment(MOVED_TO)
