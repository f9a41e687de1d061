"""What a scenario of one's own can do: functions, events, other people's stores, versions; and what is looked after."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import delete, func, inspect, select, update

from tests.scenarios.house import LEAD, House, a_house
from tests.scenarios.leads import RemoteLeads
from yamchi.errors import Unrecoverable
from yamchi.notifications.channels.base import Message
from yamchi.notifications.people.recipients import User
from yamchi.notifications.schemas.event import Event
from yamchi.scenarios.performing import Context
from yamchi.scenarios.sweeping import LATE
from yamchi.scenarios.tables import (
    metadata,
    scenario_definitions,
    scenario_events,
    scenario_outbox,
    scenario_runs,
    scenario_steps,
)

NOTE = "---\nsubject: note {{ name|default('') }}\ntransactional: true\n---\nnote"
PERSON = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001"


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with a_house(tmp_path) as house:
        for channel in ("email", "telegram"):
            house.template("note", NOTE, channel)
        yield house
        await house.check()


async def test_a_scenario_about_a_person_needs_no_entity(house: House) -> None:
    house.scenario("""
scenario: cart
on: cart.left
key: "{{ event.data.cart }}"
when: event.data.total > 100
stop_on: order.paid
steps:
  - {job: remind, wait: 2h, send: {channel: email, template: note}}
""")
    await house.app.notifications.recipients.put(PERSON, User(email="a@b.c", attributes={"name": "Aida"}))

    async def happen(type: str, id: str, **data: Any) -> None:
        event = Event(event_type=type, event_id=id, user_id=UUID(PERSON), data=data)
        await house.app.notifications.service.handle_event(event)

    await happen("cart.left", "1", cart="c-1", total=500)
    await happen("cart.left", "2", cart="c-2", total=500)
    await happen("cart.left", "3", cart="c-3", total=5)  # `when` does not hold
    await happen("cart.left", "4", total=500)  # no key, so not for this scenario
    await happen("order.paid", "5", cart="c-2")
    await house.pass_time("3h")
    assert [message.to for _, message in house.email.sent] == ["a@b.c"]
    assert {run["key"]: run["status"] for run in await house.scenarios.timelines.find()} == {
        "c-1": "finished",
        "c-2": "stopped",
    }


async def test_functions_and_events_of_ones_own(house: House) -> None:
    house.scenario("""
scenario: room
on: lesson.booked
entity: lead
key: "{{ lead.id }}"
steps:
  - {job: book, call: book_room, set: {booked: true}}
  - {job: tell, wait: 1m, emit: {event: room.booked, data: {room: "{{ lead.room }}"}}}
""")
    house.scenario(
        """
scenario: follow_up
on: room.booked
entity: lead
key: "{{ lead.id }}"
steps: [{job: note, send: {channel: email, template: note, data: {name: "{{ event.data.room }}"}}}]
""",
        "follow_up",
    )
    calls: list[Context] = []

    @house.scenarios.function("book_room")
    async def book_room(context: Context) -> dict[str, Any]:
        calls.append(context)
        if len(calls) == 1:
            raise ConnectionError("the rooms are away")
        return {"room": "12"}

    await house.lead()
    await house.event("lesson.booked")
    await house.pass_time("10m")
    assert len({call.id for call in calls}) == 1, "the same id at every attempt"
    fields = await house.leads.fields(LEAD)
    assert (fields["room"], fields["booked"]) == ("12", True)
    assert [message.rendered.subject for _, message in house.email.sent] == ["note 12"]


async def test_again_never_and_restart(house: House) -> None:
    text = """
scenario: {name}
on: {name}.go
entity: lead
key: "{{{{ lead.id }}}}"
again: {again}
steps: [{{job: note, wait: 1h, send: {{channel: email, template: note}}}}]
"""
    for again in ("never", "restart", "when_finished"):
        house.scenario(text.format(name=again, again=again), again)
    await house.lead()
    for again, times in (("never", 1), ("restart", 2), ("when_finished", 2)):
        house.email.sent.clear()
        await house.event(f"{again}.go")
        await house.pass_time("30m")
        await house.event(f"{again}.go")  # while it runs
        await house.pass_time("31m")
        assert len(house.email.sent) == (0 if again == "restart" else 1), again
        await house.pass_time("2h")
        await house.event(f"{again}.go")  # when it is over
        await house.pass_time("2h")
        assert len(house.email.sent) == times, again


async def test_a_branch_for_what_fails_and_one_for_what_does_not_come(house: House) -> None:
    house.scenario("""
scenario: branches
on: go
entity: lead
key: "{{ lead.id }}"
steps:
  - {job: mail, send: {channel: email, template: note}, on_failure: chat}
  - {job: answer, wait_for: replied, timeout: 1h, on_timeout: end}
  - {job: chat, send: {channel: telegram, template: note}}
""")
    house.email.answers = [Unrecoverable("no such mailbox")]
    await house.lead()
    await house.event("go")
    await house.pass_time("1m")
    assert house.chats() == ["note"]
    await house.event("go")
    await house.pass_time("2h")
    assert house.chats() == ["note"]
    run = await house.run("branches")
    assert (run["status"], run["generation"]) == ("finished", 2)


async def test_a_message_that_may_not_go_is_a_skipped_step_and_sets_nothing(house: House) -> None:
    await house.app.notifications.suppressions.add("email", "marat@example.com", "bounced")
    await house.lead()
    await house.event("lead.created")
    await house.pass_time("31m")
    (first, *_) = await house.steps("email_chain")
    assert first == ("email1", "skipped", "suppressed: The address is suppressed: bounced")
    assert "email_1_sent" not in await house.leads.fields(LEAD)
    assert await house.leads.log(LEAD) == []


async def test_what_is_too_late_is_not_sent(house: House) -> None:
    """Workers were away from before the reminder was due until after the lesson."""
    await house.lead()
    await house.event("lesson.booked", lesson_datetime=house.ahead(days=2))
    house.app.clock._now += 3 * 86_400_000
    await house.app.drain()
    assert house.chats() == []
    assert [(step, state) for step, state, _ in await house.steps("lesson_reminders")] == [
        ("remind24h", "skipped"),
        ("remind5h", "skipped"),
    ]


# ── Stores elsewhere ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_store_without_transactions(house: House) -> None:
    leads = RemoteLeads()
    house.scenarios.entities.register("lead", leads)
    leads.rows[LEAD] = {"id": LEAD, "name": "Марат", "email": "marat@example.com"}
    await house.event("lead.created", event_id="first")
    await house.pass_time("30m")
    assert leads.rows[LEAD]["email_1_sent"] is True
    assert [text for _, text in leads.lines.values()] == ["EMAIL_1_SENT"]
    await house.event("bot.activated")
    assert leads.rows[LEAD]["bot_activated"] is True
    leads.rows[LEAD]["bot_activated"] = False
    await house.event("lead.created", event_id="first")  # an old event again tells the store nothing
    await house.event("bot.activated", event_id="e-1")
    await house.pass_time("7d")
    assert house.letters() == ["email_1"]


async def test_a_date_in_a_store_elsewhere_moves_the_reminders(house: House) -> None:
    leads = RemoteLeads()
    house.scenarios.entities.register("lead", leads)
    leads.rows[LEAD] = {"name": "Марат", "email": "marat@example.com"}
    await house.event("lesson.booked", lesson_datetime=house.ahead(days=2))
    await house.event("lesson.rescheduled", lesson_datetime=house.ahead(days=5))
    await house.pass_time("9d")
    assert [when for when, _ in house.email.sent] == ["2026-01-05T00:00:00Z", "2026-01-05T19:00:00Z"]


# ── Versions ──────────────────────────────────────────────────────────────────────────────────────────────────────

VERSIONED = """
scenario: versioned
on: go
entity: lead
key: "{{{{ lead.id }}}}"
steps:
  - {{job: first, wait: 1h, send: {{channel: email, template: note}}}}
  - {{job: {second}, wait: {wait}, send: {{channel: telegram, template: note}}}}
"""


async def test_a_run_keeps_its_version_until_it_is_told_otherwise(house: House) -> None:
    house.scenario(VERSIONED.format(second="second", wait="1h"))
    for lead in ("a", "b", "c"):
        await house.lead(lead)
        await house.event("go", lead)
    await house.pass_time("61m")
    house.scenario(VERSIONED.format(second="other", wait="5h"))
    house.scenarios.migrator._library.refresh()
    await house.pass_time("1h")  # all three had begun with the old one: the second step comes after one hour
    assert len(house.telegram.sent) == 3

    for lead in ("d", "e"):
        await house.lead(lead)
        await house.event("go", lead)
    await house.pass_time("30m")
    house.scenario(VERSIONED.format(second="other", wait="2h").replace("wait: 1h", "wait: 3h"))
    assert await house.scenarios.migrator.count("versioned") == 2
    preview = await house.scenarios.migrator.preview("versioned")
    assert [(one.step, one.new_step) for one in preview] == [("first", "first")] * 2
    assert {(one.new_due or 0) - (one.due or 0) for one in preview} == {2 * 3_600_000}
    assert await house.scenarios.migrator.count("versioned") == 2, "a preview changes nothing"
    assert await house.scenarios.migrator.migrate("versioned", key="d") == 1
    house.email.sent.clear()
    await house.pass_time("40m")
    assert len(house.email.sent) == 1, "e has kept its version"
    await house.pass_time("2h")
    assert len(house.email.sent) == 2, "d has followed the new one"
    await house.pass_time("1d")
    assert len(house.telegram.sent) == 5


async def test_a_step_that_is_gone_from_the_new_version_gives_way_to_the_next(house: House) -> None:
    house.scenario(VERSIONED.format(second="second", wait="1h"))
    await house.lead()
    await house.event("go")
    house.scenario(VERSIONED.format(second="second", wait="1h").replace("job: first", "job: renamed"))
    (one,) = await house.scenarios.migrator.preview("versioned")
    assert (one.step, one.new_step) == ("first", "second")
    assert await house.scenarios.migrator.migrate("versioned") == 1
    await house.pass_time("1d")
    assert (len(house.email.sent), len(house.telegram.sent)) == (0, 1)


# ── What is looked after ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_job_that_was_lost_is_queued_anew(house: House) -> None:
    await house.lead()
    await house.event("lead.created")
    (job,) = await house.jobs("emailChain")
    await job.remove()
    house.app.clock._now += 30 * 60_000 + LATE
    assert await house.scenarios.sweeper.ask_after_the_late() == 1
    await house.app.drain()
    assert house.letters() == ["email_1"]


async def test_a_job_that_was_cancelled_by_hand_stops_its_run(house: House) -> None:
    await house.lead()
    await house.event("lead.created")
    (job,) = await house.jobs("emailChain")
    await job.cancel()
    house.app.clock._now += 30 * 60_000 + LATE
    await house.scenarios.sweeper.sweep()
    run = await house.run("email_chain")
    assert (run["status"], run["reason"]) == ("stopped", "the job of email1 was cancelled in the queue")


async def test_what_is_long_over_is_forgotten(house: House) -> None:
    await house.lead()
    await house.event("lead.created")
    await house.pass_time("3d")
    await house.lead("other")
    await house.event("lead.created", "other")
    house.app.clock._now += 90 * 86_400_000
    await house.lead("third")
    await house.event("lesson.booked", "third", lesson_datetime=house.ahead(days=5))
    await house.app.drain()
    await house.scenarios.sweeper.prune()

    def count(connection: Any) -> dict[str, int]:
        tables = (scenario_runs, scenario_steps, scenario_events, scenario_outbox)
        return {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in tables
        }

    counts = await house.app.database.read(count)
    assert counts["scenario_runs"] == 2
    assert counts["scenario_outbox"] == 0
    assert counts["scenario_events"] <= 2


async def test_an_erased_person_leaves_nothing(house: House) -> None:
    house.scenario("scenario: own\non: go\nkey: k\nsteps: [{job: note, wait: 1h}]\n")
    event = Event(event_type="go", event_id="1", user_id=UUID(PERSON), data={"secret": "x"})
    await house.app.notifications.service.handle_event(event)
    assert (await house.app.erase(PERSON))["scenario_runs"] == 1
    assert await house.scenarios.timelines.find() == []
    assert await house.jobs("scenarios") == []


async def test_data_too_large_for_a_job_fails_the_step_and_not_the_event(house: House) -> None:
    await house.lead(name="x" * 1_200_000)
    await house.event("lead.created")
    run = await house.run("email_chain")
    assert run["status"] == "failed"
    assert "more than the 1,048,576 allowed" in run["reason"]


async def test_a_message_leaving_when_the_run_is_stopped_is_named(house: House) -> None:
    """Stop comes while the letter is leaving, and the fields say that it left."""
    answers = []

    async def stop(message: Message) -> None:
        house.email.before = None
        answers.append(await house.event("bot.activated"))

    house.email.before = stop
    await house.lead()
    await house.event("lead.created")
    await house.pass_time("1d")
    assert house.letters() == ["email_1"]
    assert (await house.leads.fields(LEAD))["email_1_sent"] is True
    run = await house.run("email_chain")
    assert run["status"] == "stopped"
    assert [(line["step"], line["state"]) for line in run["timeline"]] == [("email1", "done")]


async def test_a_strange_job_is_a_dead_letter_with_a_reason(house: House) -> None:
    await house.app.queue("emailChain").add({"leadId": LEAD}, name="email1", id="made-by-hand")
    await house.app.drain()
    (letter,) = (await house.app.queue("emailChain").dead_letters.list()).letters
    assert "is no step of a run" in letter.error


async def test_a_version_that_is_gone_is_said_and_others_go_on(house: House) -> None:
    await house.lead()
    await house.event("lead.created")
    broken = update(scenario_definitions).values(body={"scenario": "email_chain", "nonsense": 1})
    await house.app.database.write(lambda c: c.execute(broken).rowcount)
    await house.lead("other")
    await house.event("lead.created", "other")
    await house.pass_time("31m")
    assert len(house.letters()) == 2, "the current version is the same, and is at hand"
    await house.app.database.write(lambda c: c.execute(delete(scenario_runs)).rowcount)


async def test_a_lesson_in_the_past_and_one_without_a_date_are_skipped_with_a_reason(house: House) -> None:
    await house.lead()
    await house.event("lesson.booked", lesson_datetime="2020-01-01T10:00:00Z")
    run = await house.run("lesson_reminders")
    assert (run["status"], {line["state"] for line in run["timeline"]}) == ("finished", {"skipped"})
    assert "2019-12-31T10:00:00Z, had passed already" in run["timeline"][0]["reason"]
    await house.event("lesson.booked", lesson_datetime="some day")
    run = await house.run("lesson_reminders")
    assert "'some day' is not a date" in run["timeline"][0]["reason"]
    await house.pass_time("30d")
    assert house.chats() == []


async def test_lint_names_what_is_missing(house: House) -> None:
    house.scenario("""
scenario: careless
on: go
entity: unicorn
key: "{{ unicorn.id }}"
steps:
  - {job: write, send: {channel: email, template: no_such_letter}}
  - {job: do, call: no_such_function}
""")
    house.scenario("scenario: broken\non: x\nkey: k\nsteps:\n  - {job: a, wait: soon}\n", "broken")
    said = [str(finding) for finding in await house.scenarios.linter.lint()]
    assert any("broken.yaml:5: steps.0.wait: 'soon' is not a span of time" in one for one in said)
    assert "careless: step write: there is no template 'no_such_letter' for email in ru, en, kk." in said
    assert "careless: step do: nobody registered a function 'no_such_function'." in said
    assert any("nobody keeps entities of the kind 'unicorn'" in one for one in said)


@pytest.mark.parametrize(
    ("zone", "lesson", "moment"),
    [
        ("Europe/Berlin", "2026-03-29T12:00", "2026-03-28T08:00:00Z"),
        ("Europe/Berlin", "2026-03-30T12:00", "2026-03-29T07:00:00Z"),
        ("Europe/Berlin", "2026-10-26T12:00", "2026-10-25T08:00:00Z"),
        ("America/New_York", "2026-03-09T12:00", "2026-03-08T13:00:00Z"),
        ("Australia/Lord_Howe", "2026-04-06T12:00", "2026-04-04T22:30:00Z"),
        ("America/Santiago", "2026-09-07T12:00", "2026-09-06T12:00:00Z"),
        ("Africa/Casablanca", "2026-02-16T12:00", "2026-02-15T09:00:00Z"),
        ("Asia/Almaty", "2026-02-16T12:00", "2026-02-15T04:00:00Z"),
    ],
)
async def test_nine_in_the_morning_there_on_days_when_clocks_change(
    house: House, zone: str, lesson: str, moment: str
) -> None:
    house.scenario("""
scenario: morning
on: go
entity: lead
key: "{{ lead.id }}"
steps: [{job: note, at: "lead.lesson_datetime - 1 day, 09:00", send: {channel: email, template: note}}]
""")
    await house.lead(zone=zone, lesson_datetime=lesson)
    await house.event("go")
    await house.pass_time("365d")
    assert [when for when, _ in house.email.sent] == [moment]


async def test_the_tables_are_as_the_code_has_them(house: House) -> None:
    """What the migrations make is what the code expects: columns and indexes."""

    def look(connection: Any) -> dict[str, Any]:
        found = inspect(connection)
        return {
            table.name: (
                {column["name"] for column in found.get_columns(table.name)},
                {index["name"] for index in found.get_indexes(table.name)},
            )
            for table in metadata.tables.values()
        }

    made = await house.app.database.read(look)
    assert made == {
        table.name: ({column.name for column in table.columns}, {index.name for index in table.indexes})
        for table in metadata.tables.values()
    }
