"""SIGKILL at every named point of a step's life, and at random: afterwards no second letter, and no lost step."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from tests.notifications.conftest import mail_server  # noqa: F401 - a fixture
from tests.processes import DEADLINE, Process
from tests.scale import FULL
from tests.scenarios.harness import LEAD, PLUGINS
from tests.scenarios.invariants import check_invariants, check_leads
from tests.scenarios.leads import TableLeads
from tests.services.mail import MailServer
from yamchi import Yamchi
from yamchi.clock import isoformat
from yamchi.notifications.schemas.event import Event
from yamchi.notifications.tables import events
from yamchi.scenarios.plugin import Scenarios
from yamchi.scenarios.tables import scenario_outbox
from yamchi.settings import Settings
from yamchi.testing import eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]

CORE = ("scenario.stored", "scenario.job_added", "step.held", "step.sent", "step.logged", "step.completed")
MORE = (
    "event.received",
    "event.stored",
    "scenario.recorded",
    "scenario.saved",
    "scenario.queued",
    "step.claimed",
    "step.applied",
    "step.fields_set",
    "step.followed",
)
POINTS = (*CORE, *(MORE if FULL else ()))

CHAIN = """
scenario: email_chain
on: lead.created
entity: lead
key: "{{ lead.id }}"
stop_on: bot.activated
queue: emailChain
steps:
  - job: email1
    wait: 200ms
    send: {channel: email, template: email_1}
    set: {email_1_sent: true}
    log: EMAIL_1_SENT
    remember: {key: "email_job:{{ lead.id }}", ttl: 48h}
  - job: email2
    wait: 200ms
    send: {channel: email, template: email_2}
    set: {email_2_sent: true}
    log: EMAIL_2_SENT
"""

LESSON = """
scenario: lesson_reminders
on: [lesson.booked, lesson.rescheduled]
entity: lead
key: "{{ lead.id }}"
queue: reminders
steps:
  - {job: first, at: lead.lesson_datetime - 30s, send: {channel: email, template: remind_24h}, log: FIRST}
  - {job: second, at: lead.lesson_datetime - 10s, send: {channel: email, template: remind_5h}, log: SECOND}
"""


class Installation:
    """Processes that may be killed, and our own look at their tables."""

    def __init__(self, home: Path, mail: MailServer) -> None:
        self.home, self.mail = home, mail
        (home / "scenarios").mkdir()
        (home / "scenarios" / "chain.yaml").write_text(CHAIN)
        (home / "scenarios" / "lesson.yaml").write_text(LESSON)
        self.processes: list[Process] = []
        settings = Settings(
            home=home, plugins=PLUGINS, default_queue_url=self.queue, lease=timedelta(seconds=2)
        )
        self.app = Yamchi(settings)
        self.leads = TableLeads(self.app.database)
        self.app.scenarios.entities.register("lead", self.leads)

    @property
    def queue(self) -> str:
        return f"sqlite:///{self.home}/jobs.db"

    def start(self, command: str, **environment: str) -> Process:
        root = str(Path(__file__).parents[2])
        settings = {
            "QUEUE_URL": self.queue,
            "PLUGINS": ",".join(PLUGINS),
            "SMTP_HOST": self.mail.host,
            "SMTP_PORT": str(self.mail.port),
            "SMTP_SECURITY": "none",
            "LEASE": "2s",
            "PYTHONPATH": root,
            "PORT": "0",
        }
        process = Process(
            self.home, command, "--app", "tests.scenarios.app:app", **{**settings, **environment}
        )
        self.processes.append(process)
        return process

    async def post(self, process: Process, event_type: str, event_id: str, **data: Any) -> None:
        url = await asyncio.to_thread(lambda: process.url)
        event = {"event_type": event_type, "event_id": event_id, "data": {"lead_id": LEAD, **data}}
        async with httpx2.AsyncClient(base_url=url, timeout=DEADLINE) as client:
            answer = await client.post("/api/v1/events", json=event)
        assert answer.status_code == 202, answer.text

    async def status(self, scenario: str) -> str | None:
        with suppress(LookupError):
            run = await self.app.plugin(Scenarios).timelines.latest(scenario, LEAD)
            return str(run["status"])
        return None

    async def age(self) -> None:
        """What a crash left undone was left undone long ago."""
        long_ago = self.app.clock.now() - 3_600_000

        def older(connection: Any) -> None:
            connection.execute(update(scenario_outbox).values(created_at=long_ago))
            connection.execute(update(events).values(received_at=long_ago))

        await self.app.database.write(older)

    async def is_over(self, scenario: str) -> bool:
        return await self.status(scenario) == "finished"

    async def close(self) -> None:
        for process in self.processes:
            process.process.kill()
            process.process.wait()
        await self.app.close()


@pytest.fixture
async def installation(tmp_path: Path, mail_server: MailServer) -> AsyncIterator[Installation]:  # noqa: F811
    made = Installation(tmp_path, mail_server)
    yield made
    await made.close()


@pytest.mark.parametrize("point", POINTS)
async def test_killed_at(installation: Installation, point: str) -> None:
    await installation.leads.create(LEAD, email="marat@example.com", name="Марат")
    killed = installation.start("up", YAMCHI_FAULT=point)
    with suppress(httpx2.TransportError):
        await installation.post(killed, "lead.created", "e-1")
    await eventually(lambda: killed.process.poll() == -9, DEADLINE)
    await installation.age()
    successor = installation.start("up")
    await installation.post(successor, "lead.created", "e-1")  # whoever got no answer asks again
    await eventually(lambda: installation.is_over("email_chain"), DEADLINE)
    subjects = [letter["Subject"] for _, letter in installation.mail.letters]
    assert len(subjects) == len(set(subjects)) == 2, subjects
    await eventually(lambda: _holds(installation), DEADLINE)


@pytest.mark.parametrize("point", ["scenario.saved", "scenario.entered", "scenario.job_added", "step.held"])
async def test_killed_when_another_programs_job_has_entered(installation: Installation, point: str) -> None:
    """The job is delivered once more, to whoever comes next, and finds that it has entered."""
    await installation.leads.create(LEAD, email="marat@example.com", name="Марат")
    data = {"leadId": LEAD, "email": "marat@example.com", "name": "Марат"}
    await installation.app.queue("emailChain").add(data, name="email1", id="1")
    killed = installation.start("worker", YAMCHI_FAULT=point)
    await eventually(lambda: killed.process.poll() == -9, DEADLINE)
    await installation.age()
    installation.start("worker")
    await eventually(lambda: installation.is_over("email_chain"), DEADLINE)

    async def is_over() -> bool:
        return (await installation.app.queue("emailChain").job("1")).state == "completed"

    await eventually(is_over, DEADLINE)
    subjects = [letter["Subject"] for _, letter in installation.mail.letters]
    assert len(subjects) == len(set(subjects)) == 2, subjects
    assert len(await installation.app.plugin(Scenarios).timelines.find()) == 1
    await eventually(lambda: _holds(installation), DEADLINE)


async def test_killed_when_a_stop_was_written_down(installation: Installation) -> None:
    """The stop holds, and what it leads to in the queue and the key store is done by whoever comes next."""
    await installation.leads.create(LEAD, email="marat@example.com", name="Марат")
    chain = installation.home / "scenarios" / "chain.yaml"
    chain.write_text(CHAIN.replace("wait: 200ms", "wait: 1h"))
    killed = installation.start("up", YAMCHI_FAULT="scenario.stopped")
    await installation.post(killed, "lead.created", "e-1")
    run = await installation.app.plugin(Scenarios).timelines.latest("email_chain", LEAD)
    url = await asyncio.to_thread(lambda: killed.url)
    async with httpx2.AsyncClient(base_url=url, timeout=DEADLINE) as client:
        with suppress(httpx2.TransportError):
            await client.post(f"/api/v1/runs/{run['run_id']}/stop")
    await eventually(lambda: killed.process.poll() == -9, DEADLINE)
    assert await installation.status("email_chain") == "stopped"
    assert await installation.app.keys.get(f"email_job:{LEAD}") is not None
    await installation.age()
    installation.start("worker")
    await eventually(lambda: _is_tidy(installation), DEADLINE)
    assert installation.mail.letters == []
    await eventually(lambda: _holds(installation), DEADLINE)


async def _is_tidy(installation: Installation) -> bool:
    jobs = await installation.app.queue("emailChain").jobs("delayed")
    return not jobs and await installation.app.keys.get(f"email_job:{LEAD}") is None


async def test_killed_when_a_step_has_failed(installation: Installation) -> None:
    """The failure is written down and its dead letter is not, yet: it is, by whoever comes next, and nothing is sent."""
    await installation.leads.create(LEAD, name="Марат")  # no address
    killed = installation.start("up", YAMCHI_FAULT="step.failed")
    await installation.post(killed, "lead.created", "e-1")
    await eventually(lambda: killed.process.poll() == -9, DEADLINE)
    assert await installation.status("email_chain") == "failed"
    await installation.age()
    installation.start("worker")

    async def has_letter() -> bool:
        return bool((await installation.app.queue("emailChain").dead_letters.list()).letters)

    await eventually(has_letter, DEADLINE)
    await eventually(lambda: _holds(installation), DEADLINE)
    assert installation.mail.letters == []


async def _holds(installation: Installation) -> bool:
    await check_invariants(installation.app)
    await check_leads(installation.app)
    return True


async def test_a_hundred_reschedules_under_kills(installation: Installation) -> None:
    """One lesson is moved a hundred times while workers are killed: one reminder of each kind, for the last date."""
    dice = random.Random(7)
    app = installation.app
    await installation.leads.create(LEAD, email="marat@example.com", name="Марат")

    async def move(turn: int, seconds: float) -> None:
        date = isoformat(app.clock.now() + round(seconds * 1000))
        type = "lesson.booked" if turn == 0 else "lesson.rescheduled"
        event = Event(event_type=type, event_id=f"m-{turn}", data={"lead_id": LEAD, "lesson_datetime": date})
        await app.notifications.service.handle_event(event)

    worker = installation.start("worker")
    kills = 0
    for turn in range(100):
        await move(turn, dice.uniform(60, 600))
        if dice.random() < 0.05 and kills < 5:
            worker.process.kill()
            worker.process.wait()
            kills += 1
            worker = installation.start("worker")
    await move(100, 45)
    await eventually(lambda: installation.is_over("lesson_reminders"), DEADLINE)
    assert sorted(await installation.leads.log(LEAD)) == ["FIRST", "SECOND"]
    assert installation.mail.by_recipient() == {"marat@example.com": 2}
    await check_invariants(app)


async def test_killed_at_random_through_many_chains(installation: Installation) -> None:
    dice, app = random.Random(3), installation.app
    people = 100 if FULL else 20
    for number in range(people):
        await installation.leads.create(f"lead-{number}", email=f"p{number}@example.com", name="Марат")
        data = {"lead_id": f"lead-{number}"}
        event = Event(event_type="lead.created", event_id=f"c-{number}", data=data)
        await app.notifications.service.handle_event(event)
    for _ in range(10 if FULL else 3):
        worker = installation.start("worker")
        before = len(installation.mail.letters)
        wanted = min(before + dice.randrange(1, 6), people * 2)
        await eventually(lambda wanted=wanted: len(installation.mail.letters) >= wanted, DEADLINE)
        worker.process.kill()
        worker.process.wait()
    installation.start("worker")

    async def all_over() -> bool:
        runs = await app.plugin(Scenarios).timelines.find(
            scenario="email_chain", status="finished", limit=500
        )
        return len(runs) == people

    await eventually(all_over, DEADLINE * 2)
    # A letter that was leaving at a kill may have gone: it goes again under the same Message-ID, by which it is told.
    ids = {letter["Message-ID"] for _, letter in installation.mail.letters}
    assert len(ids) == people * 2
    await check_invariants(app)
    await check_leads(app)
