"""What a scenario of one's own can do: functions, events, other people's stores, versions; and what is looked after."""

from collections.abc import AsyncIterator
from pathlib import Path
from time import process_time
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, inspect, select, update

from tests.scenarios.harness import LEAD, Harness, open_harness
from tests.scenarios.leads import RemoteLeads
from yamchi.errors import Unrecoverable
from yamchi.notifications.channels.base import Message
from yamchi.notifications.people.recipients import User
from yamchi.notifications.schemas.event import Event
from yamchi.notifications.tables import events
from yamchi.scenarios.definition import Definition
from yamchi.scenarios.matching import Matcher
from yamchi.scenarios.outbox import Entry
from yamchi.scenarios.performing import Context
from yamchi.scenarios.store import StepId
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
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path) as harness:
        for channel in ("email", "telegram"):
            harness.template("note", NOTE, channel)
        yield harness
        await harness.check()


async def test_a_scenario_about_a_person_needs_no_entity(harness: Harness) -> None:
    harness.scenario("""
scenario: cart
on: cart.left
key: "{{ event.data.cart }}"
when: event.data.total > 100
stop_on: order.paid
steps:
  - {job: remind, wait: 2h, send: {channel: email, template: note}}
""")
    await harness.app.notifications.recipients.put(PERSON, User(email="a@b.c", attributes={"name": "Aida"}))

    async def happen(type: str, id: str, **data: Any) -> None:
        event = Event(event_type=type, event_id=id, user_id=UUID(PERSON), data=data)
        await harness.app.notifications.service.handle_event(event)

    await happen("cart.left", "1", cart="c-1", total=500)
    await happen("cart.left", "2", cart="c-2", total=500)
    await happen("cart.left", "3", cart="c-3", total=5)  # `when` does not hold
    await happen("cart.left", "4", total=500)  # no key, so not for this scenario
    await happen("order.paid", "5", cart="c-2")
    await harness.pass_time("3h")
    assert [message.to for _, message in harness.email.sent] == ["a@b.c"]
    assert {run["key"]: run["status"] for run in await harness.scenarios.timelines.find()} == {
        "c-1": "finished",
        "c-2": "stopped",
    }


async def test_functions_and_events_of_ones_own(harness: Harness) -> None:
    harness.scenario("""
scenario: room
on: lesson.booked
entity: lead
key: "{{ lead.id }}"
steps:
  - {job: book, call: book_room, set: {booked: true}}
  - {job: tell, wait: 1m, emit: {event: room.booked, data: {room: "{{ lead.room }}"}}}
""")
    harness.scenario(
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

    @harness.scenarios.function("book_room")
    async def book_room(context: Context) -> dict[str, Any]:
        calls.append(context)
        if len(calls) == 1:
            raise ConnectionError("the rooms are away")
        return {"room": "12"}

    await harness.lead()
    await harness.event("lesson.booked")
    await harness.pass_time("10m")
    assert len({call.id for call in calls}) == 1, "the same id at every attempt"
    fields = await harness.leads.fields(LEAD)
    assert (fields["room"], fields["booked"]) == ("12", True)
    assert [message.rendered.subject for _, message in harness.email.sent] == ["note 12"]


async def test_again_never_and_restart(harness: Harness) -> None:
    text = """
scenario: {name}
on: {name}.go
entity: lead
key: "{{{{ lead.id }}}}"
again: {again}
steps: [{{job: note, wait: 1h, send: {{channel: email, template: note}}}}]
"""
    for again in ("never", "restart", "when_finished"):
        harness.scenario(text.format(name=again, again=again), again)
    await harness.lead()
    for again, times in (("never", 1), ("restart", 2), ("when_finished", 2)):
        harness.email.sent.clear()
        await harness.event(f"{again}.go")
        await harness.pass_time("30m")
        await harness.event(f"{again}.go")  # while it runs
        await harness.pass_time("31m")
        assert len(harness.email.sent) == (0 if again == "restart" else 1), again
        await harness.pass_time("2h")
        await harness.event(f"{again}.go")  # when it is over
        await harness.pass_time("2h")
        assert len(harness.email.sent) == times, again


async def test_a_branch_for_what_fails_and_one_for_what_does_not_come(harness: Harness) -> None:
    harness.scenario("""
scenario: branches
on: go
entity: lead
key: "{{ lead.id }}"
steps:
  - {job: mail, send: {channel: email, template: note}, on_failure: chat}
  - {job: answer, wait_for: replied, timeout: 1h, on_timeout: end}
  - {job: chat, send: {channel: telegram, template: note}}
""")
    harness.email.answers = [Unrecoverable("no such mailbox")]
    await harness.lead()
    await harness.event("go")
    await harness.pass_time("1m")
    assert harness.chats() == ["note"]
    await harness.event("go")
    await harness.pass_time("2h")
    assert harness.chats() == ["note"]
    run = await harness.run("branches")
    assert (run["status"], run["generation"]) == ("finished", 2)


async def test_a_message_that_may_not_go_is_a_skipped_step_and_sets_nothing(harness: Harness) -> None:
    await harness.app.notifications.suppressions.add("email", "marat@example.com", "bounced")
    await harness.lead()
    await harness.event("lead.created")
    await harness.pass_time("31m")
    (first, *_) = await harness.steps("email_chain")
    assert first == ("email1", "skipped", "suppressed: The address is suppressed: bounced")
    assert "email_1_sent" not in await harness.leads.fields(LEAD)
    assert await harness.leads.log(LEAD) == []


async def test_what_is_too_late_is_not_sent(harness: Harness) -> None:
    """Workers were away from before the reminder was due until after the lesson."""
    await harness.lead()
    await harness.event("lesson.booked", lesson_datetime=harness.ahead(days=2))
    harness.app.clock._now += 3 * 86_400_000
    await harness.app.drain()
    assert harness.chats() == []
    assert [(step, state) for step, state, _ in await harness.steps("lesson_reminders")] == [
        ("remind24h", "skipped"),
        ("remind5h", "skipped"),
    ]


# ── Stores elsewhere ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_store_without_transactions(harness: Harness) -> None:
    leads = RemoteLeads()
    harness.scenarios.entities.register("lead", leads)
    leads.rows[LEAD] = {"id": LEAD, "name": "Марат", "email": "marat@example.com"}
    await harness.event("lead.created", event_id="first")
    await harness.pass_time("30m")
    assert leads.rows[LEAD]["email_1_sent"] is True
    assert [text for _, text in leads.lines.values()] == ["EMAIL_1_SENT"]
    await harness.event("bot.activated")
    assert leads.rows[LEAD]["bot_activated"] is True
    leads.rows[LEAD]["bot_activated"] = False
    await harness.event("lead.created", event_id="first")  # an old event again tells the store nothing
    await harness.event("bot.activated", event_id="e-1")
    await harness.pass_time("7d")
    assert harness.letters() == ["email_1"]


async def test_a_date_in_a_store_elsewhere_moves_the_reminders(harness: Harness) -> None:
    leads = RemoteLeads()
    harness.scenarios.entities.register("lead", leads)
    leads.rows[LEAD] = {"name": "Марат", "email": "marat@example.com"}
    await harness.event("lesson.booked", lesson_datetime=harness.ahead(days=2))
    await harness.event("lesson.rescheduled", lesson_datetime=harness.ahead(days=5))
    await harness.pass_time("9d")
    assert [when for when, _ in harness.email.sent] == ["2026-01-05T00:00:00Z", "2026-01-05T19:00:00Z"]


OF_A_CUSTOMER = """
scenario: visit
on: visit.booked
entity: lead
key: "{{ event.data.customer }}"
steps:
  - {job: remind, at: lead.lesson_datetime - 24h, send: {channel: email, template: note}}
"""


async def test_an_event_about_something_else_leaves_a_run_of_its_key_as_it_was(harness: Harness) -> None:
    """What the run is about lies elsewhere and is not what the event is about; the date of the run has not gone."""
    leads = RemoteLeads()
    harness.scenarios.entities.register("lead", leads)
    leads.rows = {name: {"email": f"{name}@example.com"} for name in ("first", "second")}
    harness.scenario(OF_A_CUSTOMER)
    for days, name in ((5, "first"), (9, "second")):
        moment = harness.ahead(days=days)
        await harness.event("visit.booked", name, customer="c", lesson_datetime=moment)
    await harness.pass_time("10d")
    assert [message.to for _, message in harness.email.sent] == ["first@example.com"]


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


async def test_a_run_keeps_its_version_until_it_is_told_otherwise(harness: Harness) -> None:
    harness.scenario(VERSIONED.format(second="second", wait="1h"))
    for lead in ("a", "b", "c"):
        await harness.lead(lead)
        await harness.event("go", lead)
    await harness.pass_time("61m")
    harness.scenario(VERSIONED.format(second="other", wait="5h"))
    harness.scenarios.migrator._library.refresh()
    await harness.pass_time(
        "1h"
    )  # all three had begun with the old one: the second step comes after one hour
    assert len(harness.telegram.sent) == 3

    for lead in ("d", "e"):
        await harness.lead(lead)
        await harness.event("go", lead)
    await harness.pass_time("30m")
    harness.scenario(VERSIONED.format(second="other", wait="2h").replace("wait: 1h", "wait: 3h"))
    assert await harness.scenarios.migrator.count("versioned") == 2
    preview = await harness.scenarios.migrator.preview("versioned")
    assert [(one.step, one.new_step) for one in preview] == [("first", "first")] * 2
    assert {(one.new_due or 0) - (one.due or 0) for one in preview} == {2 * 3_600_000}
    assert await harness.scenarios.migrator.count("versioned") == 2, "a preview changes nothing"
    assert await harness.scenarios.migrator.migrate("versioned", key="d") == 1
    harness.email.sent.clear()
    await harness.pass_time("40m")
    assert len(harness.email.sent) == 1, "e has kept its version"
    await harness.pass_time("2h")
    assert len(harness.email.sent) == 2, "d has followed the new one"
    await harness.pass_time("1d")
    assert len(harness.telegram.sent) == 5


async def test_versions_that_make_their_key_alike_are_asked_for_it_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_key = VERSIONED.replace('"{{{{ lead.id }}}}"', '"other:{{{{ lead.id }}}}"')
    for number, text in enumerate([other_key, *[VERSIONED] * 4]):
        harness.scenario(text.format(second="second", wait=f"{number + 1}h") + "stop_on: [halt]\n")
        await harness.lead(f"lead-{number}")
        await harness.event("go", f"lead-{number}")
    asked = []
    match = Matcher.match

    def ask(matcher: Matcher, connection: Any, definition: Definition, *rest: Any) -> Any:
        asked.append(definition.key)
        return match(matcher, connection, definition, *rest)

    monkeypatch.setattr(Matcher, "match", ask)
    for number in range(5):
        await harness.event("halt", f"lead-{number}")
    assert len(asked) == 5 * 2, "the five versions have two ways to make a key"
    await harness.pass_time("1d")
    assert harness.letters() == [], "every run heard of it, whichever version it follows"


async def test_a_step_that_is_gone_from_the_new_version_gives_way_to_the_next(harness: Harness) -> None:
    harness.scenario(VERSIONED.format(second="second", wait="1h"))
    await harness.lead()
    await harness.event("go")
    harness.scenario(VERSIONED.format(second="second", wait="1h").replace("job: first", "job: renamed"))
    (one,) = await harness.scenarios.migrator.preview("versioned")
    assert (one.step, one.new_step) == ("first", "second")
    assert await harness.scenarios.migrator.migrate("versioned") == 1
    await harness.pass_time("1d")
    assert (len(harness.email.sent), len(harness.telegram.sent)) == (0, 1)


# ── What is looked after ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_job_that_was_lost_is_queued_anew(harness: Harness) -> None:
    await harness.lead()
    await harness.event("lead.created")
    (job,) = await harness.jobs("emailChain")
    await job.remove()
    harness.app.clock._now += 30 * 60_000 + LATE
    assert await harness.scenarios.sweeper.ask_after_the_late() == 1
    await harness.app.drain()
    assert harness.letters() == ["email_1"]


async def test_a_job_that_was_cancelled_by_hand_stops_its_run(harness: Harness) -> None:
    await harness.lead()
    await harness.event("lead.created")
    (job,) = await harness.jobs("emailChain")
    await job.cancel()
    harness.app.clock._now += 30 * 60_000 + LATE
    await harness.scenarios.sweeper.sweep()
    run = await harness.run("email_chain")
    assert (run["status"], run["reason"]) == ("stopped", "the job of email1 was cancelled in the queue")


async def test_what_is_long_over_is_forgotten(harness: Harness) -> None:
    await harness.lead()
    await harness.event("lead.created")
    await harness.pass_time("3d")
    await harness.lead("other")
    await harness.event("lead.created", "other")
    harness.app.clock._now += 90 * 86_400_000
    await harness.lead("third")
    await harness.event("lesson.booked", "third", lesson_datetime=harness.ahead(days=5))
    await harness.app.drain()
    await harness.scenarios.sweeper.prune()

    def count(connection: Any) -> dict[str, int]:
        tables = (scenario_runs, scenario_steps, scenario_events, scenario_outbox)
        return {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in tables
        }

    counts = await harness.app.database.read(count)
    assert counts["scenario_runs"] == 2
    assert counts["scenario_outbox"] == 0
    assert counts["scenario_events"] <= 2


async def test_a_lesson_after_the_last_one_is_forgotten_is_reminded_of_too(harness: Harness) -> None:
    """Its run is another one, though nobody remembers the first: not one message of it has left."""
    await harness.lead()
    for name in ("first", "second"):
        await harness.event("lesson.booked", event_id=name, lesson_datetime=harness.ahead(days=3))
        await harness.pass_time("3d")
        await harness.pass_time("91d")
        await harness.scenarios.sweeper.prune()
    assert harness.chats() == ["remind_24h", "remind_5h"] * 2
    assert (await harness.leads.log(LEAD)) == ["REMINDER_24H_SENT"] * 2 + ["REMINDER_5H_SENT"] * 2


async def test_never_again_is_remembered_after_what_is_long_over_is_forgotten(harness: Harness) -> None:
    steps = "steps: [{job: note, send: {channel: email, template: note}}]"
    once = f'scenario: once\non: go\nentity: lead\nkey: "{{{{ lead.id }}}}"\nagain: never\n{steps}\n'
    harness.scenario(once, "once")
    await harness.lead()
    await harness.event("go")
    await harness.pass_time("91d")
    await harness.scenarios.sweeper.prune()
    await harness.event("go")
    await harness.pass_time("1h")
    assert harness.letters() == ["note"]
    assert await harness.steps("once") == [("note", "done", None)]
    harness.scenario(once.replace("again", "agian"), "once")
    async with open_harness(harness.app.settings.home) as restarted:  # its file can't be used
        await restarted.pass_time("91d")
        await restarted.scenarios.sweeper.prune()
    assert await harness.steps("once") == [("note", "done", None)]
    harness.scenario(once.replace("never", "when_finished"), "once")
    await harness.scenarios.sweeper.prune()
    assert await harness.scenarios.timelines.find(scenario="once") == []


async def test_an_erased_person_leaves_nothing(harness: Harness) -> None:
    harness.scenario("scenario: own\non: go\nkey: k\nsteps: [{job: note, wait: 1h}]\n")
    event = Event(event_type="go", event_id="1", user_id=UUID(PERSON), data={"secret": "x"})
    await harness.app.notifications.service.handle_event(event)
    assert (await harness.app.erase(PERSON))["scenario_runs"] == 1
    assert await harness.scenarios.timelines.find() == []
    assert await harness.jobs("scenarios") == []


async def test_an_erased_lead_leaves_no_job_and_no_dead_letter(harness: Harness) -> None:
    harness.telegram.answers = [Unrecoverable("no")]
    await harness.lead()
    await harness.event("lead.created")
    await harness.event("lesson.booked", lesson_datetime=harness.ahead(days=9))
    await harness.pass_time("3d")
    queue = harness.app.queue("emailChain")
    assert [len(await harness.jobs("emailChain", state)) for state in ("completed", "failed")] == [2, 1]
    assert await harness.scenarios.forget("lead", LEAD) == 2
    assert sum((await queue.counts()).values()) == 0
    assert sum((await harness.app.queue("reminders").counts()).values()) == 0
    assert (await queue.dead_letters.list()).letters == []
    rows = select(func.count()).select_from(scenario_events)
    assert await harness.app.database.read(lambda c: c.execute(rows).scalar_one()) == 0


async def test_data_too_large_for_a_job_fails_the_step_and_not_the_event(harness: Harness) -> None:
    await harness.lead(name="x" * 600_000, email="y" * 600_000)
    await harness.event("lead.created")
    run = await harness.run("email_chain")
    assert run["status"] == "failed"
    assert "more than the 1,048,576 allowed" in run["reason"]


async def test_data_that_no_job_can_have_keeps_no_event_out(harness: Harness) -> None:
    """A list without `|list` is a generator."""
    harness.scenario(
        """
scenario: order
on: order.paid
key: "{{ event.data.order_id }}"
data: {names: "{{ event.data.lines|map(attribute='name') }}", order: "{{ event.data.order_id }}"}
steps:
  - {job: thank, wait: 1h}
"""
    )
    await harness.event("order.paid", None, order_id="7", lines=[{"name": "tea"}])
    (job,) = await harness.jobs("scenarios")
    assert job.data == {"names": None, "order": "7"}


async def test_a_message_leaving_when_the_run_is_stopped_is_named(harness: Harness) -> None:
    """Stop comes while the letter is leaving, and the fields say that it left."""
    answers = []

    async def stop(message: Message) -> None:
        harness.email.before = None
        answers.append(await harness.event("bot.activated"))

    harness.email.before = stop
    await harness.lead()
    await harness.event("lead.created")
    await harness.pass_time("1d")
    assert harness.letters() == ["email_1"]
    assert (await harness.leads.fields(LEAD))["email_1_sent"] is True
    run = await harness.run("email_chain")
    assert run["status"] == "stopped"
    assert [(line["step"], line["state"]) for line in run["timeline"]] == [("email1", "done")]


async def test_a_strange_job_is_a_dead_letter_with_a_reason(harness: Harness) -> None:
    await harness.app.queue("emailChain").add({"leadId": LEAD}, name="email3", id="made-by-hand")
    await harness.app.drain()
    (letter,) = (await harness.app.queue("emailChain").dead_letters.list()).letters
    assert "is no step of a run" in letter.error


async def broken_version(harness: Harness) -> Any:
    """A run follows a version that this process can't use, as one of a newer process; gives what mends it."""
    old = VERSIONED.format(second="second", wait="1h") + "stop_on: halt\n"
    harness.scenario(old)
    await harness.lead()
    await harness.event("go")
    version = harness.scenarios.library.get("versioned").version
    harness.scenario(VERSIONED.format(second="second", wait="9h") + "stop_on: halt\n")
    which = scenario_definitions.c.version == version
    query = select(scenario_definitions.c.body).where(which)
    body = await harness.app.database.read(lambda c: c.execute(query).scalar_one())

    async def become(body: Any) -> None:
        changed = update(scenario_definitions).where(which).values(body=body)
        await harness.app.database.write(lambda c: c.execute(changed).rowcount)
        harness.scenarios.library._versions.clear()

    await become({**body, "nonsense": 1})
    return lambda: become(body)


async def test_a_run_of_a_version_that_cannot_be_used_here_waits_and_others_go_on(harness: Harness) -> None:
    mend = await broken_version(harness)
    await harness.event("lead.created")
    await harness.scenarios.changed("lead", LEAD)
    await harness.pass_time("61m")
    assert harness.letters() == ["email_1"], "the lead's other run goes on"
    harness.app.clock._now += LATE
    await harness.scenarios.sweeper.sweep()
    (job,) = await harness.jobs("scenarios")
    assert (job.name, job.attempts_made) == ("first", 0)
    await mend()
    await harness.pass_time("2m")
    assert harness.letters() == ["email_1", "note"]


async def test_a_run_of_a_version_that_cannot_be_used_here_can_be_stopped(harness: Harness) -> None:
    mend = await broken_version(harness)
    await harness.event("halt")
    await mend()
    assert (await harness.run("versioned"))["reason"] == "halt came"
    assert await harness.jobs("scenarios") == []


async def test_a_run_of_a_version_that_cannot_be_used_here_can_be_erased(harness: Harness) -> None:
    await broken_version(harness)
    assert await harness.scenarios.forget("lead", LEAD) == 1
    assert await harness.jobs("scenarios") == []


async def test_a_lesson_in_the_past_and_one_without_a_date_are_skipped_with_a_reason(
    harness: Harness,
) -> None:
    await harness.lead()
    await harness.event("lesson.booked", lesson_datetime="2020-01-01T10:00:00Z")
    run = await harness.run("lesson_reminders")
    assert (run["status"], {line["state"] for line in run["timeline"]}) == ("finished", {"skipped"})
    assert "2019-12-31T10:00:00Z, had passed already" in run["timeline"][0]["reason"]
    await harness.event("lesson.booked", lesson_datetime="some day")
    run = await harness.run("lesson_reminders")
    assert "'some day' is not a date" in run["timeline"][0]["reason"]
    await harness.pass_time("30d")
    assert harness.chats() == []


async def test_what_an_editor_keeps_beside_a_scenario_stops_no_event(harness: Harness) -> None:
    harness.scenario("scenario: own\non: go\nkey: k\nsteps: [{job: note, wait: 1h}]\n")
    folder = harness.app.settings.home / "scenarios"
    (folder / ".#own.yaml").symlink_to("me@machine.123:456")  # Emacs, while the file is changed
    (folder / "gone.yaml").symlink_to(folder / "nowhere.yaml")
    harness.scenarios.library.refresh()
    await harness.event("go", None)
    assert (await harness.run("own", "k"))["status"] == "running"
    (problem,) = harness.scenarios.library.problems
    assert "gone.yaml: it can't be read: No such file or directory" in str(problem)


async def test_lint_names_what_is_missing(harness: Harness) -> None:
    harness.scenario("""
scenario: careless
on: go
entity: unicorn
key: "{{ unicorn.id }}"
steps:
  - {job: write, send: {channel: email, template: no_such_letter}}
  - {job: do, call: no_such_function}
""")
    harness.scenario("scenario: broken\non: x\nkey: k\nsteps:\n  - {job: a, wait: soon}\n", "broken")
    said = [str(finding) for finding in await harness.scenarios.linter.lint()]
    assert any("broken.yaml:5: steps.0.wait: 'soon' is not a span of time" in one for one in said)
    careless = harness.app.settings.home / "scenarios" / "own.yaml"
    missing = "step write: there is no template 'no_such_letter' for email in ru, en, kk."
    assert f"{careless}:7: {missing}" in said
    assert f"{careless}:8: step do: nobody registered a function 'no_such_function'." in said
    assert any(f"{careless}:4: nobody keeps entities of the kind 'unicorn'" in one for one in said)


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
    harness: Harness, zone: str, lesson: str, moment: str
) -> None:
    harness.scenario("""
scenario: morning
on: go
entity: lead
key: "{{ lead.id }}"
steps: [{job: note, at: "lead.lesson_datetime - 1 day, 09:00", send: {channel: email, template: note}}]
""")
    await harness.lead(zone=zone, lesson_datetime=lesson)
    await harness.event("go")
    await harness.pass_time("365d")
    assert [when for when, _ in harness.email.sent] == [moment]


async def test_the_tables_are_as_the_code_has_them(harness: Harness) -> None:
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

    made = await harness.app.database.read(look)
    assert made == {
        table.name: ({column.name for column in table.columns}, {index.name for index in table.indexes})
        for table in metadata.tables.values()
    }


async def test_many_runs_begun_at_once_are_no_square(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left to do of what was written down is worked out once, and not for each."""
    outbox = harness.app.scenarios.outbox

    async def nothing(entry: Entry) -> None: ...

    monkeypatch.setattr(outbox, "_do", nothing)
    entries = [Entry(number, "event", None, {}) for number in range(1, 20_001)]
    began = process_time()
    await outbox.follow(entries)
    assert process_time() - began < 2


async def test_nobody_takes_the_id_of_an_event_of_a_step(harness: Harness) -> None:
    """The key of a run is known to who told of its lead; its id and those of its steps are made of that."""
    harness.scenario(
        """
scenario: welcome
on: go
key: "{{ event.data.number }}"
steps: [{job: tell, wait: 1m, emit: {event: welcomed, data: {by: us}}}]
"""
    )
    await harness.event("go", None, number="7")
    (run,) = await harness.app.database.rows(select(scenario_runs))
    for arming in range(3):
        taken = str(StepId(run.run_id, "tell", arming))
        await harness.event("welcomed", None, event_id=taken, by="a stranger")
    await harness.pass_time("10m")
    told = await harness.app.database.column(select(events.c.data).where(events.c.event_type == "welcomed"))
    assert {"by": "us", "number": "7"} in told
