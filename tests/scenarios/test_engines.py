"""The shipped scenarios on every engine, in real time: short waits, a real mail server, and Node's BullMQ looking on."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tests.interop.node import peer
from tests.notifications.conftest import mail_server  # noqa: F401 - a fixture
from tests.scenarios.harness import LEAD, PLUGINS, ScriptedChannel
from tests.scenarios.invariants import check_invariants, check_leads
from tests.scenarios.leads import TableLeads
from tests.services.mail import MailServer
from yamchi import Yamchi
from yamchi.clock import isoformat, to_moment
from yamchi.notifications.schemas.event import Event
from yamchi.queues.job import Job
from yamchi.scenarios import store as scenario_store
from yamchi.scenarios.defaults import FOLDER
from yamchi.scenarios.entities import Change
from yamchi.scenarios.outbox import Entry
from yamchi.scenarios.plugin import QUEUE_LIMITS, Scenarios
from yamchi.settings import Settings
from yamchi.storage.database import Database
from yamchi.testing import eventually

ENGINES = ["sqlite", *(pytest.param(name, marks=pytest.mark.services) for name in ("bull", "pgmq", "kafka"))]
TIMEOUT_SECONDS = 60.0


def shortened(home: Path, **spans: str) -> None:
    """The scenarios that ship, with other spans, and with letters where there is no bot."""
    folder = home / "scenarios"
    folder.mkdir(exist_ok=True)
    for name in ("email_chain", "lesson_reminders"):
        text = (FOLDER / f"{name}.yaml").read_text()
        for old, new in spans.items():
            text = text.replace(f"wait: {old.strip('_')}", f"wait: {new}")
        text = text.replace(
            "channel: telegram, to: admin_group, template: call_needed", "channel: email, template: email_2"
        )
        (folder / f"{name}.yaml").write_text(text)


@pytest.fixture(params=ENGINES)
async def urls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """The queue and the database."""
    own = f"sqlite:///{tmp_path}/yamchi.db"
    match request.param:
        case "bull":
            return request.getfixturevalue("redis_url"), own
        case "pgmq":
            url = request.getfixturevalue("postgres_database")().url
            return url, url
        case "kafka":
            server = await asyncio.to_thread(request.getfixturevalue("private_kafka"))
            return f"kafka://{server.url}", own
    return f"sqlite:///{tmp_path}/jobs.db", own


@asynccontextmanager
async def an_app(home: Path, queue: str, database: str, mail: MailServer) -> AsyncIterator[Yamchi]:
    settings = Settings(
        home=home,
        plugins=PLUGINS,
        default_queue_url=queue,
        database_url=database,
        smtp_host=mail.host,
        smtp_port=mail.port,
        smtp_security="none",
        lease=timedelta(seconds=5),
    )
    async with Yamchi(settings) as app:
        app.scenarios.entities.register("lead", TableLeads(app.database))
        yield app


@asynccontextmanager
async def working(app: Yamchi) -> AsyncIterator[None]:
    worker = app.worker()
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await task


async def happen(app: Yamchi, type: str, id: str, **data: Any) -> None:
    await tell(app, LEAD, type, id, **data)


async def tell(app: Yamchi, lead_id: str, type: str, id: str, **data: Any) -> None:
    await app.notifications.service.handle_event(
        Event(event_type=type, event_id=id, data={"lead_id": lead_id, **data})
    )


async def status(app: Yamchi, scenario: str) -> str:
    return str((await app.plugin(Scenarios).timelines.latest(scenario, LEAD))["status"])


async def test_the_chain_in_real_time(
    urls: tuple[str, str],
    tmp_path: Path,
    mail_server: MailServer,  # noqa: F811
) -> None:
    shortened(tmp_path, **{"30m": "300ms", "24h": "300ms"})
    async with an_app(tmp_path, *urls, mail_server) as app:
        leads = TableLeads(app.database)
        await leads.create(LEAD, email="marat@example.com", name="Марат", phone="+77010000000")
        async with working(app):
            await happen(app, "lead.created", "e-1")
            await eventually(lambda: _is(app, "email_chain", "finished"), TIMEOUT_SECONDS)
        fields = await leads.fields(LEAD)
        assert (fields["email_1_sent"], fields["email_2_sent"], fields["status"]) == (
            True,
            True,
            "CALL_NEEDED",
        )
        assert await leads.log(LEAD) == ["CALL_NEEDED", "EMAIL_1_SENT", "EMAIL_2_SENT"]
        assert mail_server.by_recipient() == {"marat@example.com": 3}
        assert await app.keys.get(f"email_job:{LEAD}") is None
        await check_invariants(app)
        await check_leads(app)


async def test_opening_the_bot_removes_the_pending_job_and_key(
    urls: tuple[str, str],
    tmp_path: Path,
    mail_server: MailServer,  # noqa: F811
) -> None:
    shortened(tmp_path, **{"30m": "100ms"})
    async with an_app(tmp_path, *urls, mail_server) as app:
        leads = TableLeads(app.database)
        await leads.create(LEAD, email="marat@example.com", name="Марат")
        async with working(app):
            await happen(app, "lead.created", "e-1")
            job = await eventually(lambda: _second(app), TIMEOUT_SECONDS)
            assert job.state == "delayed"
            assert (await leads.fields(LEAD))["email_1_sent"] is True
            assert job.data == {"leadId": LEAD, "email": "marat@example.com", "name": "Марат"}
            await happen(app, "bot.activated", "e-2")
        assert await app.keys.get(f"email_job:{LEAD}") is None
        assert await app.queue("emailChain").jobs("delayed") == []
        assert await status(app, "email_chain") == "stopped"
        assert mail_server.by_recipient() == {"marat@example.com": 1}
        await check_invariants(app)


async def test_reminders_in_real_time(
    urls: tuple[str, str],
    tmp_path: Path,
    mail_server: MailServer,  # noqa: F811
) -> None:
    """Confirmed in between, moved, too late for the first, too late for both: each lead gets the reminders it should."""
    folder = tmp_path / "scenarios"
    folder.mkdir()
    text = (FOLDER / "lesson_reminders.yaml").read_text()
    text = text.replace("lesson_datetime - 24h", "lesson_datetime - 9s").replace("- 5h", "- 3s")
    (folder / "lesson_reminders.yaml").write_text(text)
    async with an_app(tmp_path, *urls, mail_server) as app:
        leads = TableLeads(app.database)
        for name in ("confirmed", "moved", "near", "nearest"):
            await leads.create(name, email=f"{name}@example.com", name=name)

        async def book(lead: str, event_type: str, seconds: float) -> None:
            moment = isoformat(app.clock.now() + round(seconds * 1000))
            await tell(app, lead, event_type, f"{lead}-{event_type}", lesson_datetime=moment)

        async with working(app):
            await book("confirmed", "lesson.booked", 12)
            await book("moved", "lesson.booked", 3_600)
            await book("moved", "lesson.rescheduled", 12)
            await book("near", "lesson.booked", 6)
            await book("nearest", "lesson.booked", 2)
            await eventually(lambda: _logged(leads, "confirmed"), TIMEOUT_SECONDS)
            await tell(app, "confirmed", "lesson.confirmed", "yes")
            for lead in ("moved", "near", "nearest"):
                await eventually(lambda lead=lead: _ended(app, lead), TIMEOUT_SECONDS)
        assert {name: await leads.log(name) for name in ("confirmed", "moved", "near", "nearest")} == {
            "confirmed": ["REMINDER_24H_SENT"],
            "moved": ["REMINDER_24H_SENT", "REMINDER_5H_SENT"],
            "near": ["REMINDER_5H_SENT"],
            "nearest": [],
        }
        assert mail_server.by_recipient() == {
            "confirmed@example.com": 1,
            "moved@example.com": 2,
            "near@example.com": 1,
        }
        assert await app.queue("reminders").jobs("delayed") == []
        await check_invariants(app)


async def test_a_step_that_fails_twice_sends_on_the_third_in_real_time(
    urls: tuple[str, str],
    tmp_path: Path,
    mail_server: MailServer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The queue's own retries are the step's, after the queue's own waits."""
    monkeypatch.setitem(QUEUE_LIMITS, "backoff", ["300ms", "900ms", "15m"])
    shortened(tmp_path, **{"30m": "100ms"})
    async with an_app(tmp_path, *urls, mail_server) as app:
        tried: list[int] = []

        async def note(_: Any) -> None:
            tried.append(app.clock.now())

        answers: list[Exception] = [RuntimeError("no"), RuntimeError("still no")]
        channel = ScriptedChannel("email", lambda to: to.email, answers=answers, before=note)
        app.notifications.register(channel)
        leads = TableLeads(app.database)
        await leads.create(LEAD, email="marat@example.com", name="Марат")
        async with working(app):
            await happen(app, "lead.created", "e-1")
            await eventually(lambda: _second(app), TIMEOUT_SECONDS)
        first, second, third = tried
        assert second - first >= 300
        assert third - second >= 900
        assert len(channel.sent) == 1
        assert await leads.log(LEAD) == ["EMAIL_1_SENT"]
        await check_invariants(app)


@pytest.mark.services
@pytest.mark.interop
async def test_nodes_bullmq_sees_the_pending_jobs(
    redis_url: str,
    tmp_path: Path,
    mail_server: MailServer,  # noqa: F811
) -> None:
    """The names and data that another program knows, and the keys under which it finds the jobs."""
    import redis.asyncio as redis

    async with an_app(tmp_path, redis_url, f"sqlite:///{tmp_path}/yamchi.db", mail_server) as app:
        leads = TableLeads(app.database)
        contact = {"email": "marat@example.com", "name": "Марат", "phone": "+77010000000", "tg_id": 777}
        await leads.create(LEAD, **contact, zone="Asia/Almaty", zoom_link="https://zoom.us/j/1")
        lesson = isoformat(app.clock.now() + 3 * 86_400_000)
        await happen(app, "lead.created", "e-1")
        await happen(app, "lesson.booked", "e-2", lesson_datetime=lesson)
        async with peer(redis_url) as node:
            for queue, name in (("emailChain", "email1"), ("reminders", "remind24h")):
                assert (await node.ask("counts", queue=queue))["delayed"] == 1
                (job,) = await app.queue(queue).jobs("delayed")
                shown = await node.ask("job", queue=queue, id=job.id)
                assert shown["name"] == name
                assert shown["opts"]["attempts"] == 3
                assert shown["opts"]["removeOnComplete"] == {"count": 100}
                assert shown["opts"]["removeOnFail"] == {"count": 200}
                if queue == "emailChain":
                    assert shown["data"] == {"leadId": LEAD, "email": "marat@example.com", "name": "Марат"}
                    assert abs(shown["delay"] - 30 * 60_000) < 60_000
                else:
                    assert set(shown["data"]) == {
                        "leadId", "tgId", "lessonDate", "lessonTime", "lessonDatetime", "zoomLink", "name",
                    }  # fmt: skip
                    assert shown["data"]["lessonDatetime"] == lesson
        client = redis.from_url(redis_url, decode_responses=True)
        (pending,) = await app.queue("emailChain").jobs("delayed")
        assert await client.get(f"email_job:{LEAD}") == pending.id
        assert 47 * 3600 < await client.ttl(f"email_job:{LEAD}") <= 48 * 3600
        await client.aclose()


async def _logged(leads: TableLeads, lead_id: str) -> bool:
    return bool(await leads.log(lead_id))


async def _ended(app: Yamchi, key: str) -> bool:
    run = await app.plugin(Scenarios).timelines.latest("lesson_reminders", key)
    return bool(run["status"] == "finished")


async def _is(app: Yamchi, scenario: str, wanted: str) -> bool:
    return await status(app, scenario) == wanted


async def _second(app: Yamchi) -> Job[Any] | None:
    """The second letter's job, once the key names it."""
    job_id = await app.keys.get(f"email_job:{LEAD}")
    return await app.queue("emailChain").job(job_id) if job_id and ".email2." in job_id else None


@pytest.mark.services
@pytest.mark.interop
async def test_nodes_bullmq_sees_the_call_and_the_second_reminder(
    redis_url: str,
    tmp_path: Path,
    mail_server: MailServer,  # noqa: F811
) -> None:
    """The later steps, once those before them are done: their names, data and keys."""
    import redis.asyncio as redis

    shortened(tmp_path, **{"30m": "100ms"})
    chain, lesson = (tmp_path / "scenarios" / f"{name}.yaml" for name in ("email_chain", "lesson_reminders"))
    chain.write_text(chain.read_text().replace("wait: 24h", "wait: 100ms", 1))
    lesson.write_text(lesson.read_text().replace("lesson_datetime - 24h", "lesson_datetime - 10h"))
    async with an_app(tmp_path, redis_url, f"sqlite:///{tmp_path}/yamchi.db", mail_server) as app:
        leads = TableLeads(app.database)
        contact = {"email": "marat@example.com", "name": "Марат", "phone": "+77010000000"}
        await leads.create(LEAD, **contact, zone="Asia/Almaty", zoom_link="https://zoom.us/j/1")
        moment = isoformat(app.clock.now() + 10 * 3_600_000 + 500)
        async with working(app):
            await happen(app, "lead.created", "e-1")
            await happen(app, "lesson.booked", "e-2", lesson_datetime=moment)
            client = redis.from_url(redis_url, decode_responses=True)

            async def named(key: str, step: str) -> str | None:
                found = await client.get(key)
                return found if found and f".{step}." in found else None

            call = await eventually(lambda: named(f"email_job:{LEAD}", "callAlert"), TIMEOUT_SECONDS)
            second = await eventually(lambda: named(f"remind5h_job:{LEAD}", "remind5h"), TIMEOUT_SECONDS)
        async with peer(redis_url) as node:
            shown = await node.ask("job", queue="emailChain", id=call)
            assert (shown["name"], shown["data"]) == (
                "callAlert",
                {"leadId": LEAD, "name": "Марат", "phone": "+77010000000"},
            )
            shown = await node.ask("job", queue="reminders", id=second)
            assert (shown["name"], shown["data"]["lessonDatetime"]) == ("remind5h", moment)
            assert shown["data"]["zoomLink"] == "https://zoom.us/j/1"
        assert 24 * 3600 < await client.ttl(f"email_job:{LEAD}") <= 25 * 3600
        assert 0 < await client.ttl(f"remind5h_job:{LEAD}") <= 6 * 3600
        await client.aclose()


# ── PostgreSQL: what two processes do to the same keys at once ────────────────────────────────────────────────────


@pytest.mark.services
async def test_two_processes_on_postgresql(
    postgres_database: Any,
    tmp_path: Path,
    mail_server: MailServer,  # noqa: F811
) -> None:
    """Starts, stops and replies of many keys through two applications at the same time: one run each, nothing hangs."""
    url = postgres_database().url
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "both.yaml").write_text("""
scenario: both
on: go
key: "{{ event.data.key }}"
stop_on: halt
steps:
  - {job: answer, wait_for: replied, since: start, timeout: 1h}
  - {job: later, wait: 1h}
""")
    async with (
        an_app(tmp_path, url, url, mail_server) as one,
        an_app(tmp_path, url, url, mail_server) as other,
    ):
        assert isinstance(one.database, Database)
        number = 60

        def event(app: Yamchi, type: str, key: int, turn: int) -> Any:
            return app.notifications.service.handle_event(
                Event(event_type=type, event_id=f"{type}-{key}-{turn}", data={"key": f"k{key}"})
            )

        apps = (one, other)
        await asyncio.gather(
            *(event(app, "go", key, n) for key in range(number) for n, app in enumerate(apps))
        )
        await asyncio.gather(
            *(event(app, "replied", key, n) for key in range(number) for n, app in enumerate(apps)),
            *(event(apps[key % 2], "halt", key, 0) for key in range(0, number, 2)),
        )
        runs = await one.plugin(Scenarios).timelines.find(limit=500)
        assert len(runs) == number, "one run a key, however many started it at once"
        for run in runs:
            is_stopped = int(run["key"][1:]) % 2 == 0
            assert (run["status"], run["step"]) == (
                ("stopped", None) if is_stopped else ("running", "later")
            ), run
        await check_invariants(one)


@pytest.mark.services
async def test_a_date_that_changes_while_a_run_begins(
    postgres_database: Any,
    tmp_path: Path,
    mail_server: MailServer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run was begun with the old date, in a transaction that nobody sees yet: it follows the new one all the same."""
    url = postgres_database().url
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "visit.yaml").write_text("""
scenario: visit
on: visit.wanted
entity: lead
key: "{{ lead.id }}"
steps:
  - {job: remind, at: lead.lesson_datetime - 1h}
""")
    async with an_app(tmp_path, url, url, mail_server) as app:
        leads, scenarios = TableLeads(app.database), app.plugin(Scenarios)
        before, after = (isoformat(app.clock.now() + days * 86_400_000) for days in (2, 9))
        await leads.create(LEAD, email="marat@example.com", lesson_datetime=before)
        has_begun, may_go_on = threading.Event(), threading.Event()
        add = scenario_store.add

        def add_slowly(*given: Any) -> None:
            add(*given)
            has_begun.set()
            assert may_go_on.wait(TIMEOUT_SECONDS)

        monkeypatch.setattr(scenario_store, "add", add_slowly)
        beginning = asyncio.create_task(happen(app, "visit.wanted", "e-1"))
        await asyncio.to_thread(has_begun.wait, TIMEOUT_SECONDS)

        other = Database(url, [])

        def change(connection: Connection) -> list[Entry]:
            leads.apply_in(connection, LEAD, Change({"lesson_datetime": after}, None))
            return scenarios.changed_in(connection, "lead", LEAD)

        changing = asyncio.create_task(other.write(change))

        async def is_waiting_or_done() -> bool:
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            return changing.done() or await other.read(lambda c: c.execute(text(waiting)).scalar_one()) > 0

        await eventually(is_waiting_or_done, TIMEOUT_SECONDS)
        may_go_on.set()
        await beginning
        await scenarios.follow(await changing)
        await other.close()
        (run,) = await scenarios.timelines.find()
        due = isoformat(to_moment(datetime.fromisoformat(after)) - 3_600_000)
        assert run["due_at"] == due, run


@pytest.mark.services
async def test_transactions_that_wait_for_each_other_are_done_again(
    postgres_database: Any, tmp_path: Path
) -> None:
    """Two processes lock two rows in opposite order: PostgreSQL ends one of them, and both get done."""
    url = postgres_database().url
    one, other = Database(url, []), Database(url, [])
    await one.write(lambda c: c.execute(text("CREATE TABLE pair (id int PRIMARY KEY, n int)")).rowcount)
    await one.write(lambda c: c.execute(text("INSERT INTO pair VALUES (1, 0), (2, 0)")).rowcount)

    def both(first: int, second: int) -> Any:
        def work(connection: Any) -> None:
            for id in (first, second):
                connection.execute(text("UPDATE pair SET n = n + 1 WHERE id = :id"), {"id": id})
                connection.execute(text("SELECT pg_sleep(0.3)"))

        return work

    await asyncio.gather(one.write(both(1, 2)), other.write(both(2, 1)))
    found = await one.read(lambda c: c.execute(text("SELECT n FROM pair")).scalars().all())
    assert list(found) == [2, 2]
    await one.close()
    await other.close()
