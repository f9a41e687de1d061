"""Makes the databases with waiting runs that `test_waiting.py` opens. Run it with the version that they are to come from:

    git worktree add /tmp/old 52779e3            # the first that has scenarios, leads and the bot
    PYTHONPATH=/tmp/old/src python tests/upgrade/make_waiting.py sqlite /tmp/fixture
    PYTHONPATH=/tmp/old/src python tests/upgrade/make_waiting.py postgresql postgresql://…/an_empty_database

and keep what it made: `tar cJf tests/upgrade/waiting-sqlite.tar.xz -C /tmp/fixture var`, and for PostgreSQL
`pg_dump --inserts --rows-per-insert=1000 --no-owner … | xz -9e > tests/upgrade/waiting-postgresql.sql.xz`. A disk in memory and a server
with `fsync=off` make it a matter of minutes. The jobs lie in SQLite both times: a queue on PostgreSQL goes by its server's clock, which
can't be moved. Their ids are derived, so the file of the first serves the second.

In them, at the moment `END`: 600 leads whose letters wait for each of their three steps, half of them with a lesson, of which one or
both reminders wait; and 100 runs of scenarios of one's own that wait for an event, with a limit and without. `GROUPS` says who waits
for what. A few of each are due ten minutes later, the others twenty minutes after those, or days.
"""

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from yamchi.app import Yamchi
from yamchi.notifications.channels.base import Channel, Message, Recipient
from yamchi.notifications.schemas.event import Event
from yamchi.settings import Settings
from yamchi.testing.clock import MovableClock

PLUGINS = ("notifications", "scenarios", "leads")
END = datetime(2026, 1, 4, tzinfo=UTC)
EARLY, LATE = timedelta(minutes=10), timedelta(minutes=30)
"""How long after `END` the first steps are due, and the next."""

AT_ONCE = 500

FILES = {
    "scenarios/invoice.yaml": """
scenario: invoice
on: invoice.sent
entity: lead
key: "{{ lead.id }}"
stop_on: invoice.cancelled
steps:
  - {job: paid, wait_for: invoice.paid, timeout: 7d, on_timeout: overdue}
  - {job: thanks, send: {channel: email, template: thanks}, log: THANKED, next: end}
  - {job: overdue, send: {channel: email, template: overdue}, log: OVERDUE}
""",
    "scenarios/question.yaml": """
scenario: question
on: question.asked
entity: lead
key: "{{ lead.id }}"
stop_on: question.withdrawn
steps:
  - {job: answered, wait_for: question.answered}
  - {job: thanks, send: {channel: email, template: thanks}, log: THANKED}
""",
    "templates/thanks/email.ru.html": "---\nsubject: thanks\ntransactional: true\n---\nthanks",
    "templates/overdue/email.ru.html": "---\nsubject: overdue\ntransactional: true\n---\noverdue",
}
"""What stands in the folder of the installation, besides `var`."""

DAY, REMINDED = timedelta(hours=24), timedelta(hours=5)
LETTERS = {"email1": timedelta(0), "email2": DAY, "callAlert": 2 * DAY}
"""By the step of the letters that waits: how much earlier the lead came in than one whose first letter waits."""


@dataclass(frozen=True)
class Group:
    """Leads that wait for the same."""

    name: str
    leads: int
    letter: str
    """The step of `email_chain` that waits."""

    due: timedelta
    """After `END`, that step."""

    lesson: timedelta | None = None
    """After `END`. Those within a day have been reminded once."""

    event: str | None = None
    """What began a scenario of their own."""

    @property
    def came_in(self) -> datetime:
        return END + self.due - LETTERS[self.letter] - timedelta(minutes=30)

    @property
    def booked(self) -> datetime:
        """Before the day's reminder of the soonest."""
        return END - DAY


GROUPS = (
    Group("a", 20, "email1", EARLY),
    Group("b", 20, "email2", EARLY),
    Group("c", 20, "callAlert", EARLY),
    Group("d", 20, "email2", LATE, lesson=DAY + EARLY),
    Group("e", 20, "callAlert", LATE, lesson=REMINDED + EARLY),
    Group("f", 20, "email1", LATE, event="invoice.sent"),
    Group("g", 20, "email1", LATE, event="question.asked"),
    Group("h", 140, "email1", LATE),
    Group("i", 80, "email1", LATE, lesson=timedelta(days=5)),
    Group("j", 90, "email2", LATE, lesson=timedelta(days=3)),
    Group("k", 90, "callAlert", LATE, lesson=REMINDED + LATE),
    Group("l", 30, "email2", LATE, event="invoice.sent"),
    Group("m", 30, "email2", LATE, event="question.asked"),
)


@dataclass(frozen=True)
class Lead:
    group: Group
    id: str

    @property
    def email(self) -> str:
        return f"{self.id}@example.com"

    @property
    def chat(self) -> str:
        return f"7{ord(self.group.name)}{self.id[1:]}"


def all_leads(times: int = 1) -> Iterator[Lead]:
    for group in GROUPS:
        for number in range(group.leads * times):
            yield Lead(group, f"{group.name}{number}")


class Accepting(Channel):
    """Takes every message."""

    def __init__(self, name: str) -> None:
        self.name = self.provider = name

    def address(self, recipient: Recipient) -> str | None:
        return recipient.email if self.name == "email" else recipient.telegram_id

    async def send(self, message: Message) -> str | None:
        return None


def write_files(home: Path) -> None:
    for path, text in FILES.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)


async def make(settings: Settings) -> None:
    write_files(settings.home)
    happening = sorted(_happening(), key=lambda one: one[0])
    clock = MovableClock(happening[0][0])
    app = Yamchi(settings, clock=clock)
    for name in ("email", "telegram"):
        app.notifications.register(Accepting(name))
    app.serve()
    async with app:
        await app.database.migrate()
        worker = app.worker()
        moments = {moment for moment, _ in happening} | set(_steps_done()) | {END}
        for moment in sorted(moments):
            await clock.advance_to(moment)
            await worker.drain()
            now = [event for at, event in happening if at == moment]
            for start in range(0, len(now), AT_ONCE):
                await app.notifications.service.handle_events(now[start : start + AT_ONCE])
            await worker.drain()
            print(moment, len(now), flush=True)
        await worker.close()


def _happening() -> Iterator[tuple[datetime, Event]]:
    """Everything that is told of the leads, and when."""
    for lead in all_leads():
        group = lead.group
        person = {"name": f"Lead {lead.id}", "email": lead.email, "tg_id": lead.chat}
        yield group.came_in, _event("lead.created", lead, **person)
        if group.lesson is not None:
            moment = (END + group.lesson).isoformat()
            yield max(group.booked, group.came_in), _event("lesson.booked", lead, lesson_datetime=moment)
        if group.event is not None:
            yield END, _event(group.event, lead)


def _steps_done() -> Iterator[datetime]:
    """The moments before `END` at which steps are due."""
    for group in GROUPS:
        first = group.came_in + timedelta(minutes=30)
        yield from (moment for moment in (first, first + DAY) if moment < END)
        if group.lesson is not None and group.lesson < DAY:
            yield END + group.lesson - DAY


def _event(event_type: str, lead: Lead, **data: object) -> Event:
    about = {"lead_id": lead.id, **data}
    return Event(event_type=event_type, event_id=f"{event_type}-{lead.id}", data=about)


if __name__ == "__main__":
    kind, place = sys.argv[1:]
    if kind == "sqlite":
        asyncio.run(make(Settings(home=Path(place), plugins=PLUGINS)))
    else:
        with tempfile.TemporaryDirectory() as home:
            queue = f"sqlite:///{home}/jobs.db"
            asyncio.run(
                make(Settings(home=Path(home), database_url=place, default_queue_url=queue, plugins=PLUGINS))
            )
