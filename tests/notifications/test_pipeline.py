"""The pipeline from an event to a letter, with time under control and a real mail server."""

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
from sqlalchemy import select

from tests.notifications.conftest import USER
from tests.services.mail import MailServer
from yamchi.clock import isoformat
from yamchi.errors import EngineUnavailable, InvalidJob, WrongState
from yamchi.notifications.people.recipients import User
from yamchi.notifications.schemas.event import Event
from yamchi.notifications.schemas.notification_job import NotificationJob
from yamchi.notifications.tables import events
from yamchi.plugins import Check
from yamchi.queues.records import NewJob
from yamchi.storage.database import Database
from yamchi.testing import TestApp, eventually

ADDRESS = "nurzhan@example.com"


@pytest.fixture
async def app(mail_server: MailServer, tmp_path: Path) -> AsyncIterator[TestApp]:
    app = TestApp(home=tmp_path, smtp_host=mail_server.host, smtp_port=mail_server.port, smtp_security="none")
    app.notifications.serve()
    await app.notifications.recipients.put(USER, User(email=ADDRESS, locale="ru"))
    yield app
    await app.close()


async def put(app: TestApp, message: dict[str, Any]) -> None:
    """As a producer that is not ours does it: the payload, and no more."""
    job = NewJob(message["job_id"], "send", orjson.dumps(message))
    await app.notifications.queue.engine.add("notifications", [job])


async def status(app: TestApp, message: dict[str, Any]) -> str | None:
    return await app.notifications.deliveries.status(message["job_id"])


async def letters(app: TestApp) -> list[dict[str, Any]]:
    return (await app.notifications.dead_letters.list())["letters"]


async def test_no_delivery_tells_of_a_job_that_the_queue_did_not_take(
    app: TestApp, welcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be QUEUED for ever: nobody who asked for it was told that it is."""

    async def refuse(_jobs: Any) -> None:
        raise EngineUnavailable("The queue can't be reached.")

    job = NotificationJob.model_validate(welcome)
    with monkeypatch.context() as away:
        away.setattr(app.notifications.queue, "add_prepared", refuse)
        with pytest.raises(EngineUnavailable):
            await app.notifications.service.send([job])
    assert await status(app, welcome) is None

    await app.notifications.service.send([job])
    assert await status(app, welcome) == "QUEUED"


async def test_the_welcome_letter_arrives_once(app: TestApp, mail_server: MailServer, welcome: Any) -> None:
    await put(app, welcome)
    await app.drain()
    assert await status(app, welcome) == "SENT"
    ((recipient, letter),) = mail_server.letters
    assert recipient == ADDRESS
    assert letter["Message-ID"] == f"<{welcome['job_id']}@localhost>"
    assert letter["Subject"]
    assert letter.get_body(("html",)) is not None
    assert letter.get_body(("plain",)) is not None

    await app.notifications.queue.engine.remove("notifications", [welcome["job_id"]])
    await put(app, welcome)  # the broker delivers it once more
    await app.drain()
    assert len(mail_server.letters) == 1


async def test_a_user_without_an_address(app: TestApp, mail_server: MailServer, welcome: Any) -> None:
    welcome["user_id"] = str(uuid4())
    await put(app, welcome)
    await app.drain()
    assert await status(app, welcome) == "FAILED"
    (letter,) = await letters(app)
    assert letter["error_message"] == "User has no email"
    assert letter["job"]["job_id"] == welcome["job_id"]
    assert mail_server.letters == []


async def test_an_expired_message_is_never_sent(app: TestApp, mail_server: MailServer, welcome: Any) -> None:
    welcome["expires_at"] = isoformat(app.clock.now() - 1_000)
    await put(app, welcome)
    await app.drain()
    assert await status(app, welcome) == "EXPIRED"
    assert mail_server.letters == []
    assert await letters(app) == []


async def test_send_after_is_waited_for(app: TestApp, mail_server: MailServer, welcome: Any) -> None:
    welcome["send_after"] = isoformat(app.clock.now() + 3_600_000)
    await put(app, welcome)
    await app.clock.advance("59m")
    assert mail_server.letters == []
    await app.clock.advance("2m")
    assert len(mail_server.letters) == 1


async def test_refused_for_now_then_accepted(app: TestApp, mail_server: MailServer, welcome: Any) -> None:
    mail_server.answers.extend(["451 try later", "451 try later"])
    await put(app, welcome)
    await app.drain()
    assert await status(app, welcome) == "RETRYING"
    await app.clock.advance("1m")
    assert await status(app, welcome) == "SENT"
    delivery = await app.notifications.deliveries.get(welcome["job_id"])
    assert delivery["attempts"] == 3
    assert [step["what"] for step in delivery["timeline"]] == ["queued", "retryable", "retryable", "sent"]


async def test_refused_for_good(app: TestApp, mail_server: MailServer, welcome: Any) -> None:
    mail_server.refusals[ADDRESS] = "550 no such user"
    await put(app, welcome)
    await app.drain()
    assert await status(app, welcome) == "FAILED"
    assert (await letters(app))[0]["error_message"] == "550 no such user"


async def test_an_outage_costs_no_attempt(app: TestApp, mail_server: MailServer, welcome: Any) -> None:
    mail_server.stop()
    await put(app, welcome)
    await app.clock.advance("1h")
    (circuit,) = await app.notifications.circuits.all()
    assert circuit.is_open
    assert "can't be reached" in (circuit.reason or "")
    mail_server.start()
    await app.clock.advance("2m")
    assert await status(app, welcome) == "SENT"
    delivery = await app.notifications.deliveries.get(welcome["job_id"])
    assert delivery["attempts"] == 1
    (circuit,) = await app.notifications.circuits.all()
    assert not circuit.is_open


async def test_a_server_that_is_back_and_knows_no_such_mailbox_closes_the_circuit(
    app: TestApp, mail_server: MailServer, welcome: Any
) -> None:
    mail_server.stop()
    await put(app, welcome)
    await app.clock.advance("1m")
    mail_server.refusals[ADDRESS] = "550 no such user"
    mail_server.start()
    await app.clock.advance("1m")
    assert await status(app, welcome) == "FAILED"
    (circuit,) = await app.notifications.circuits.all()
    assert not circuit.is_open


async def test_a_database_that_is_away_costs_no_attempt(
    app: TestApp, mail_server: MailServer, welcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue goes on meanwhile, and would make dead letters of all its messages within seconds."""
    await put(app, welcome)
    with monkeypatch.context() as away:
        away.setattr(app.database, "read", _away)
        away.setattr(app.database, "write", _away)
        await app.clock.advance("1m")
    assert await letters(app) == []
    await app.clock.advance("1m")
    assert await status(app, welcome) == "SENT"
    assert (await app.notifications.deliveries.get(welcome["job_id"]))["attempts"] == 1
    assert mail_server.by_recipient() == {ADDRESS: 1}


async def _away(_op: Any) -> Any:
    raise EngineUnavailable("The database can't be reached.")


async def test_a_lost_answer_is_sent_again_with_the_same_id(
    app: TestApp, mail_server: MailServer, welcome: Any
) -> None:
    mail_server.hang_up_after_data = 1
    await put(app, welcome)
    await app.drain()
    assert await status(app, welcome) == "UNKNOWN"
    await app.clock.advance("1m")
    assert await status(app, welcome) == "SENT"
    assert mail_server.by_recipient()[ADDRESS] == 2
    assert len(mail_server.message_ids(ADDRESS)) == 1


async def test_broken_json_and_wrong_shapes_are_dead_letters(app: TestApp, welcome: Any) -> None:
    engine = app.notifications.queue.engine
    del welcome["template_code"]
    await engine.add("notifications", [NewJob("broken", "send", b"{...invalid json...}")])
    await engine.add("notifications", [NewJob("shapeless", "send", orjson.dumps(welcome))])
    await app.drain()
    by_id = {letter["id"]: letter for letter in await letters(app)}
    assert by_id["broken"]["raw_value"] == "{...invalid json...}"
    assert by_id["broken"]["error_message"] == "Invalid JSON in Kafka message"
    assert by_id["broken"]["failed_at"].endswith("Z")
    assert "template_code" in by_id["shapeless"]["error_message"]


@pytest.mark.parametrize("variant", [{"name": "B"}, ["B"], 7, True, "long" * 100])
async def test_a_variant_that_is_none_is_no_reason_to_send_again(
    app: TestApp, mail_server: MailServer, welcome: Any, variant: Any
) -> None:
    welcome["meta"]["variant"] = variant
    await put(app, welcome)
    await app.drain()
    assert (await status(app, welcome), mail_server.by_recipient()) == ("SENT", {ADDRESS: 1})
    assert (await app.notifications.deliveries.get(welcome["job_id"]))["variant"] is None


async def test_an_event_becomes_letters_by_the_rules(app: TestApp, mail_server: MailServer) -> None:
    event = Event(event_type="user_registered", event_id="e-1", user_id=USER, data={"first_name": "Нуржан"})
    answer = await app.notifications.service.handle_event(event)
    assert [(job.channel, job.template_code, job.status) for job in answer.jobs] == [
        ("email", "welcome_email", "QUEUED")
    ]
    again = await app.notifications.service.handle_event(event)
    assert again.duplicate
    assert [job.job_id for job in again.jobs] == [job.job_id for job in answer.jobs]
    await app.drain()
    assert mail_server.by_recipient() == {ADDRESS: 1}


async def test_rules_choose_by_expression(app: TestApp, mail_server: MailServer, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(
        "- on: signed\n  when: event.data.plan == 'pro'\n"
        "  notify: {channel: email, template: welcome_email, delay: 30m}\n"
    )
    for number, plan in enumerate(("free", "pro")):
        event = Event(event_type="signed", event_id=f"s-{number}", user_id=USER, data={"plan": plan})
        await app.notifications.service.handle_event(event)
    await app.clock.advance("29m")
    assert mail_server.letters == []
    await app.clock.advance("2m")
    assert mail_server.by_recipient() == {ADDRESS: 1}


async def test_a_slip_in_the_rules_stops_no_event(
    app: TestApp, mail_server: MailServer, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("- on: signed\n  notify: {channel: email, template: welcome_email}\n")
    for number in range(2):
        event = Event(event_type="signed", event_id=f"s-{number}", user_id=USER)
        await app.notifications.service.handle_event(event)
        rules.write_text("- on: signed\n  notify: {chanel: email, template: welcome_email}\n")
        os.utime(rules, (1, 1))
        await app.clock.advance("2s")
    assert mail_server.by_recipient() == {ADDRESS: 2}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            "note/email.en.html",
            "---\nsubject: s\n---\nHello {{ name \n",
            ":4: Template note (email, en), line 4: unexpected",
        ),
        (
            "note/email.en.html",
            "---\nsubjct: s\n---\nx",
            ":2: Template note (email, en): the setting 'subjct' is wrong",
        ),
        (
            "note/sms.en.txt",
            "---\nsubject: '{% if %}'\n---\nx",
            ": Template note (sms, en) has a mistake in its subject",
        ),
        ("layout.html", "<main>\n{{ content | nope }}", ":2: there is no filter named 'nope'"),
        ("brand.yaml", "name: x\nurl: [a\n", ":3: it is not YAML"),
    ],
)
async def test_a_template_file_that_can_not_be_used_is_told_before_a_letter_needs_it(
    app: TestApp, tmp_path: Path, name: str, text: str, says: str
) -> None:
    assert await app.notifications.checks() == []
    path = tmp_path / "templates" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)

    async def told() -> list[Check]:
        return list(await app.notifications.checks())

    await eventually(told)
    (check,) = await told()
    assert (check.what, check.ok) == ("template file", False)
    assert check.found.startswith(f"{path}{says}")
    path.write_text("---\nsubject: s\n---\nname: x" if path.parent.name == "note" else "name: x")

    async def mended() -> bool:
        return not await told()

    await eventually(mended)


async def test_a_slip_in_the_rules_is_told_before_an_event_meets_it(app: TestApp, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("- on: signed\n  notify: {chanel: email, template: welcome_email}\n")
    (check,) = await app.notifications.checks()
    assert (check.what, check.ok) == ("rules", False)
    assert check.found.startswith(f"{rules}:2: ")
    rules.write_text("- on: signed\n  notify: {channel: email, template: welcome_email}\n")
    await app.clock.advance("2s")
    assert await app.notifications.checks() == []
    rules.write_text("rules: []\n")
    os.utime(rules, (1, 1))
    await app.clock.advance("2s")
    (check,) = await app.notifications.checks()
    assert "list of rules" in check.found
    assert check.found.endswith("The former rules stay in force.")


async def test_a_cancelled_notification_is_not_sent(
    app: TestApp, mail_server: MailServer, welcome: Any
) -> None:
    service = app.notifications.service
    event = Event(event_type="user_registered", event_id="e-9", user_id=USER)
    answer = await service.handle_event(event)
    await service.cancel(answer.jobs[0].job_id)
    await app.drain()
    assert mail_server.letters == []
    with pytest.raises(WrongState, match="CANCELLED"):
        await service.cancel(answer.jobs[0].job_id)


async def test_a_direct_message_with_a_template(app: TestApp, mail_server: MailServer) -> None:
    message = {
        "channel": "email",
        "options": {"to": ADDRESS, "template": "welcome", "data": {"name": "John"}},
    }
    await app.notifications.queue.add(message)
    await app.drain()
    ((_, letter),) = mail_server.letters
    assert "John" in str(letter["Subject"])


async def test_a_direct_message_to_several(app: TestApp, mail_server: MailServer) -> None:
    message = {
        "channel": "email",
        "options": {"to": ["a@example.com", "b@example.com"], "subject": "Hi", "text": "there"},
    }
    await app.notifications.queue.add(message)
    await app.drain()
    assert mail_server.by_recipient() == {"a@example.com": 1, "b@example.com": 1}


async def test_a_direct_message_that_fails_with_its_worker_has_failed(
    app: TestApp, mail_server: MailServer
) -> None:
    """One attempt is refused for now; then the job kills its workers, or takes too long, until it is given up."""
    mail_server.answers.append("451 try later")
    queue, deliveries = app.notifications.queue, app.notifications.deliveries
    message = {"channel": "email", "options": {"to": ADDRESS, "subject": "Hello", "text": "Hello"}}
    job = await queue.add(message, name="send")
    await app.drain()
    assert [one["status"] for one in await deliveries.find()] == ["RETRYING"]
    queue.listeners.emit("failed", await queue.job(job.id), "it killed its workers")
    await queue.listeners.settle()
    assert [one["status"] for one in await deliveries.find()] == ["FAILED"]


async def test_a_direct_message_to_nobody_is_refused(app: TestApp) -> None:
    message = {"channel": "email", "options": {"to": [], "subject": "Hi", "text": "there"}}
    with pytest.raises(InvalidJob, match=r"options\.to"):
        await app.notifications.queue.add(message)
    await app.notifications.queue.engine.add(
        "notifications", [NewJob("1", "send", orjson.dumps(message))]
    )  # by another program
    await app.drain()
    (letter,) = await letters(app)
    assert "options.to" in letter["error_message"]


@pytest.mark.parametrize("channel", ["email", "sms", "telegram", "push", "ws", "database"])
@pytest.mark.parametrize("words", [{}, {"subject": "", "text": " \n", "html": None}, {"data": {"a": 1}}])
async def test_a_direct_message_that_says_nothing_is_refused(
    app: TestApp, channel: str, words: dict[str, Any]
) -> None:
    message = {"channel": channel, "options": {"to": ADDRESS, **words}}
    blank = "options: there is nothing to say: give a template, or a subject, text or html"
    with pytest.raises(InvalidJob, match=blank):
        await app.notifications.queue.add(message)
    await app.notifications.queue.engine.add(
        "notifications", [NewJob("1", "send", orjson.dumps(message))]
    )  # by another program
    await app.drain()
    (letter,) = await letters(app)
    assert blank in letter["error_message"]


@pytest.mark.parametrize("several", [False, True])
async def test_a_number_that_begins_again_loses_no_direct_message(
    app: TestApp, mail_server: MailServer, several: bool
) -> None:
    """The ids of a broker start again when its queue is emptied or made anew; the same message again is still one."""
    queue = app.notifications.queue
    to = [ADDRESS, "other@example.com"] if several else ADDRESS
    for text in ("first", "second", "second"):
        options = {"to": to, "subject": "Hi", "text": text}
        message = orjson.dumps({"channel": "email", "options": options})
        await queue.engine.add(queue.name, [NewJob("1", "send", message)])
        await app.drain()
        done = await queue.jobs("completed")
        assert len(done) == (3 if several else 1)
        await queue.engine.remove(queue.name, [job.id for job in done])
    assert mail_server.by_recipient() == dict.fromkeys(to if several else [to], 2)


async def test_an_interrupted_event_is_finished_by_the_sweeper(app: TestApp, mail_server: MailServer) -> None:
    service = app.notifications.service
    event = Event(event_type="user_registered", event_id="e-5", user_id=USER)
    plans = await service._plan([event], app.clock.now())
    prepared = [await follower.prepare([event]) for follower in service.followers]
    # As a crash between the table and the queue leaves it.
    now = app.clock.now()
    await app.database.write(lambda connection: service._store(connection, [event], plans, prepared, now))
    await app.clock.advance("1m")
    assert await service.outbox.sweep() == 1
    assert await service.outbox.sweep() == 0
    await app.drain()
    assert mail_server.by_recipient() == {ADDRESS: 1}


async def test_header_injection_is_refused(app: TestApp, mail_server: MailServer) -> None:
    options = {"to": ADDRESS, "subject": "Hi\r\nBcc: victim@example.com", "text": "there"}
    await app.notifications.queue.add({"channel": "email", "options": options}, id="evil")
    await app.drain()
    assert mail_server.letters == []
    assert "line break" in (await letters(app))[0]["error_message"]


async def test_a_batch_sent_again_costs_a_few_queries(app: TestApp, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = [Event(event_id=f"e-{n}", event_type="user_registered", user_id=USER) for n in range(700)]
    first = await app.notifications.service.handle_events(batch)
    reads: list[object] = []
    real = Database.read

    async def counted(self: Database, op: Any) -> Any:
        reads.append(op)
        return await real(self, op)

    monkeypatch.setattr(Database, "read", counted)
    stranger = Event(event_id="e-1", event_type="lead_created", user_id=USER)
    again = await app.notifications.service.handle_events([*batch, stranger, batch[0]])
    assert len(reads) < 12, "some for each 500, none for each event"
    assert [answer.jobs for answer in again] == [*(answer.jobs for answer in first), [], first[0].jobs]
    assert all(answer.duplicate for answer in again)
    assert first[0].jobs


async def test_others_write_between_the_parts_of_a_large_batch(
    app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = app.notifications.service
    batch = [Event(event_id=f"e-{n}", event_type="user_registered", user_id=USER) for n in range(1_200)]
    sizes: list[int] = []
    store = service._store

    def counted(connection: Any, some: Sequence[Event], *rest: Any) -> Any:
        sizes.append(len(some))
        return store(connection, some, *rest)

    monkeypatch.setattr(service, "_store", counted)
    answers = await service.handle_events(batch)
    assert [answer.event_id for answer in answers] == [event.event_id for event in batch]
    assert sizes == [500, 500, 200]


async def test_one_event_that_can_not_be_used_keeps_all_of_a_large_batch_out(app: TestApp) -> None:
    batch = [Event(event_id=f"e-{n}", event_type="user_registered", user_id=USER) for n in range(500)]
    batch[-1].data["name"] = "x" * 2_000_000
    with pytest.raises(InvalidJob):
        await app.notifications.service.handle_events(batch)
    assert await app.database.column(select(events.c.event_id)) == []
