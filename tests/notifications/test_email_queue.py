"""`email_queue`: letters that other programs ask for, with a real mail server, and on a real pgmq by plain SQL and over REST."""

import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
from sqlalchemy import select

from tests.services import postgrest
from tests.services.databases import Database
from tests.services.mail import MailServer
from yamchi import Yamchi
from yamchi.errors import InvalidJob
from yamchi.notifications.channels.base import Attachment
from yamchi.notifications.tables import notification_delivery
from yamchi.observe import logging as house_logging
from yamchi.queues.probes import probe_engines
from yamchi.queues.records import NewJob
from yamchi.settings import Settings
from yamchi.testing import TestApp, eventually
from yamchi.testing.conformance.worker import working

ADDRESS = "user@example.com"
DONE = {"to": ADDRESS, "subject": "Ваш чекап завершен", "html": "<p>Результаты <b>готовы</b></p>"}
SAID = [
    f"[INFO] Processing email task: {ADDRESS} - Ваш чекап завершен",
    f"[INFO] Email sent via SMTP to {ADDRESS}",
    f"[INFO] Email sent successfully to {ADDRESS}",
]


@pytest.fixture
async def app(mail_server: MailServer, tmp_path: Path) -> AsyncIterator[TestApp]:
    app = TestApp(home=tmp_path, smtp_host=mail_server.host, smtp_port=mail_server.port, smtp_security="none")
    yield app
    await app.close()


@pytest.fixture
def said() -> Iterator[Callable[[], list[str]]]:
    """What is logged about letters, as a person reads it."""
    root, stream = logging.getLogger(), StringIO()
    handlers, level = list(root.handlers), root.level
    house_logging.configure("console", "info", stream)
    yield lambda: [
        line
        for line in stream.getvalue().splitlines()
        if re.match(r"\[INFO\] (Processing email|Email) ", line)
    ]
    root.handlers = [one for one in root.handlers if one in handlers]
    root.setLevel(level)


async def put(app: Yamchi, task: Any, number: str = "1") -> None:
    """As another program does it: the payload under a number, without a name."""
    await app.queue("email_queue").engine.add("email_queue", [NewJob(number, "", orjson.dumps(task))])


MANY = [f"a{number}@example.com" for number in range(1_000)]


def to_many(queue: str, text: str) -> dict[str, Any]:
    options = {"to": MANY, "subject": "News", "text": text}
    return options if queue == "email_queue" else {"channel": "email", "options": options}


@pytest.mark.parametrize("queue", ["email_queue", "notifications"])
async def test_no_request_of_a_megabyte_becomes_a_gigabyte_of_jobs(app: TestApp, queue: str) -> None:
    """A job for each address would have the whole text."""
    app.notifications.serve()
    await app.queue(queue).add(to_many(queue, "x" * 50_000), delay="1d")
    large = to_many(queue, "x" * 900_000)
    with pytest.raises(InvalidJob, match="1,000 addresses of a message of 900,"):
        await app.queue(queue).add(large)
    await app.queue(queue).engine.add(queue, [NewJob("foreign", "", orjson.dumps(large))])
    await app.drain()
    (job,) = await app.queue(queue).jobs("failed")
    assert "1,000 addresses" in (job.failed_reason or "")
    assert await app.queue(queue).jobs("completed") == []


async def test_a_blank_letter_is_poison_and_a_subject_alone_is_a_letter(app: TestApp) -> None:
    app.notifications.serve()
    await put(app, {"to": "a@example.com", "subject": " "}, "1")
    await put(app, {"to": "a@example.com", "subject": "Call me"}, "2")
    await app.drain()
    (error,) = await errors(app)
    assert "there is nothing to say: give a template, or a subject, text or html" in error
    assert await statuses(app) == ["SENT"]


async def statuses(app: Yamchi) -> list[str]:
    table = notification_delivery
    query = select(table.c.status).order_by(table.c.status)
    return list(await app.database.read(lambda connection: connection.execute(query).scalars().all()))


async def errors(app: Yamchi) -> list[str]:
    page = await app.queue("email_queue").dead_letters.list()
    return [letter.error for letter in page.letters]


async def test_a_letter_and_its_three_lines(
    app: TestApp, mail_server: MailServer, said: Callable[[], list[str]]
) -> None:
    await put(app, DONE)
    await app.drain()
    ((recipient, letter),) = mail_server.letters
    assert (recipient, letter["Subject"]) == (ADDRESS, DONE["subject"])
    html = letter.get_body(("html",))
    assert html is not None
    assert "<b>готовы</b>" in html.get_content()
    assert said() == SAID
    assert await statuses(app) == ["SENT"]


async def test_without_a_mail_server_nothing_is_said_of_smtp(said: Callable[[], list[str]]) -> None:
    app = TestApp()
    await put(app, DONE)
    await app.drain()
    assert said() == [SAID[0], SAID[2]]
    assert [letter["subject"] for letter in await app.notifications.mailbox.list()] == [DONE["subject"]]
    await app.close()


async def test_the_same_message_twice_is_one_letter(app: TestApp, mail_server: MailServer) -> None:
    for _ in range(2):
        await put(app, DONE)
        await app.drain()
        await app.queue("email_queue").engine.remove("email_queue", ["1"])
    assert len(mail_server.letters) == 1


async def test_a_number_that_begins_again_loses_no_letter(app: TestApp, mail_server: MailServer) -> None:
    await put(app, DONE)
    await app.drain()
    await app.queue("email_queue").engine.remove("email_queue", ["1"])
    await put(app, {**DONE, "to": "another@example.com"})
    await app.drain()
    assert sorted(mail_server.by_recipient()) == ["another@example.com", ADDRESS]


async def test_several_people_get_a_letter_each(app: TestApp, mail_server: MailServer) -> None:
    mail_server.refusals["b@example.com"] = "550 No such user"
    people = [f"{name}@example.com" for name in "abc"]
    await put(app, {**DONE, "to": [*people, people[0]]})
    await app.drain()
    assert mail_server.by_recipient() == {"a@example.com": 1, "c@example.com": 1}
    assert await statuses(app) == ["FAILED", "SENT", "SENT"]
    assert "No such user" in (await errors(app))[0]

    await put(app, {**DONE, "to": "b@example.com"}, "2")
    await app.drain()
    assert await statuses(app) == ["FAILED", "SENT", "SENT", "SUPPRESSED"], "nobody is there"


async def test_a_template_with_a_subject_of_its_own_or_a_given_one(
    app: TestApp, mail_server: MailServer
) -> None:
    task = {"to": ADDRESS, "template": "welcome_email", "data": {"first_name": "Нуржан"}}
    await put(app, task)
    await put(app, {**task, "subject": "Здравствуйте"}, "2")
    await app.drain()
    subjects = [str(letter["Subject"]) for _, letter in mail_server.letters]
    assert len(subjects) == 2
    assert "Здравствуйте" in subjects
    assert subjects[0] != subjects[1]
    for _, letter in mail_server.letters:
        html = letter.get_body(("html",))
        assert html is not None
        assert "Нуржан" in html.get_content()


async def test_a_stored_file_goes_with_the_letter(app: TestApp, mail_server: MailServer) -> None:
    async def open_file(name: str, most: int) -> Attachment:
        return Attachment(f"{name}.pdf", b"%PDF", "application/pdf")

    app.notifications.attachments.register("shelf", open_file)
    await put(app, {**DONE, "attachments": ["shelf:results"]})
    await put(app, {**DONE, "attachments": [{"filename": "a.txt", "content": "QUJD"}]}, "2")
    await app.drain()
    ((_, letter),) = mail_server.letters
    assert [part.get_filename() for part in letter.iter_attachments()] == ["results.pdf"]
    assert "'a.txt' can't be attached: name a stored file" in (await errors(app))[0]


@pytest.mark.parametrize(
    "task",
    [
        {"subject": "To nobody"},
        {"to": ADDRESS},
        {"to": [], "subject": "x"},
        {"to": {"email": ADDRESS}, "subject": "x"},
        {"to": ADDRESS, "subject": 7},
        {"to": ADDRESS, "subject": "x", "attachments": "report.pdf"},
        ["not an object"],
        None,
    ],
)
async def test_what_is_no_letter_is_a_dead_letter(app: TestApp, mail_server: MailServer, task: Any) -> None:
    await put(app, task)
    await put(app, DONE, "2")
    await app.drain()
    assert len(await errors(app)) == 1
    assert len(mail_server.letters) == 1, "the next one is not held up"


async def test_the_mail_server_is_away_for_a_while(app: TestApp, mail_server: MailServer) -> None:
    mail_server.stop()
    await put(app, DONE)
    await app.drain()
    assert mail_server.letters == []
    mail_server.start()
    await app.clock.advance("10m")
    assert mail_server.by_recipient() == {ADDRESS: 1}
    assert await statuses(app) == ["SENT"]


async def test_an_application_may_handle_the_queue_itself(mail_server: MailServer) -> None:
    app, seen = TestApp(), []

    @app.job("email_queue", name="own")
    async def own(job: Any) -> None:
        seen.append(job.data["to"])

    await put(app, DONE)
    await app.drain()
    assert seen == [ADDRESS]
    await app.close()


# ── Real pgmq ─────────────────────────────────────────────────────────────────────────────────────────────────────


def send(url: str, task: dict[str, Any]) -> None:
    """Another program, with plain SQL."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pgmq.send('email_queue', %s::jsonb)", [json.dumps(task)])


@pytest.mark.services
async def test_a_letter_by_plain_sql(
    postgres_database: Callable[[], Database],
    mail_server: MailServer,
    tmp_path: Path,
    said: Callable[[], list[str]],
) -> None:
    url = postgres_database().url
    settings = Settings(
        home=tmp_path,
        database_url=url,
        smtp_host=mail_server.host,
        smtp_port=mail_server.port,
        smtp_security="none",
    )
    async with Yamchi(settings) as app:
        await app.queue("email_queue").stats()  # makes the queue
        async with working(app):
            send(url, DONE)
            await eventually(lambda: mail_server.by_recipient()[ADDRESS] == 1)

            async def sent() -> bool:
                return await statuses(app) == ["SENT"]

            await eventually(sent)
    assert said() == SAID


@pytest.mark.services
async def test_a_letter_over_rest(
    postgres_database: Callable[[], Database],
    mail_server: MailServer,
    tmp_path: Path,
    said: Callable[[], list[str]],
) -> None:
    url = postgres_database().url
    postgrest.prepare(url)
    with psycopg.connect(url, autocommit=True) as connection:
        for queue in ("email_queue", "email_queue_dlq"):
            connection.execute("SELECT pgmq.create(%s)", [queue])
    server = postgrest.Postgrest(url)
    settings = Settings(
        home=tmp_path,
        supabase_url=server.url,
        supabase_service_role_key=postgrest.KEY,
        worker_interval_ms=100,
        smtp_host=mail_server.host,
        smtp_port=mail_server.port,
        smtp_security="none",
    )
    try:
        async with Yamchi(settings) as app:
            send(url, DONE)
            async with working(app):
                await eventually(lambda: mail_server.by_recipient()[ADDRESS] == 1)

                async def sent() -> bool:
                    return await statuses(app) == ["SENT"]

                await eventually(sent)
    finally:
        server.stop()
    assert said() == SAID


@pytest.mark.services
async def test_the_doctor_says_which_queues_supabase_lacks(
    postgres_database: Callable[[], Database], tmp_path: Path
) -> None:
    url = postgres_database().url
    postgrest.prepare(url)
    server = postgrest.Postgrest(url)
    settings = Settings(
        home=tmp_path, supabase_url=server.url, supabase_service_role_key=postgrest.KEY, plugins=()
    )
    try:
        async with Yamchi(settings) as app:
            app.define("email_queue")
            (state,) = await probe_engines(app.queues)
            assert state.error
            statement = state.error.partition("run: ")[2]
            assert "pgmq.create('email_queue')" in statement
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(statement.encode())  # as a person pastes it
            (state,) = await probe_engines(app.queues)
            assert state.error is None
    finally:
        server.stop()
