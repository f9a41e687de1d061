"""Files of scenarios that come, change or break: the others go on, and so does whatever is pending."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from tests.scenarios.harness import LEAD, Harness, open_harness
from tests.scenarios.leads import TableLeads
from yamchi.notifications.schemas.event import Event
from yamchi.scenarios.defaults import FOLDER
from yamchi.scenarios.sweeping import LATE

NOTE = "---\nsubject: note\ntransactional: true\n---\nnote"
OWN = 'scenario: {name}\non: {on}\nentity: lead\nkey: "{{{{ lead.id }}}}"\nsteps: [{step}]\n'
SHIPPED = {"email_chain", "lesson_reminders"}

WITHOUT_KIND = """\
scenario: email_chain
on: lead.created
key: "{{ lead.id }}"                  # one run per key
stop_on: bot.activated                # event that cancels what is pending
queue: emailChain
steps:
  - job: email1
    wait: 30m
    unless: lead.bot_activated
    send: {channel: email, template: email_1}
    set: {email_1_sent: true, email_1_sent_at: "{{ now }}"}
    log: EMAIL_1_SENT
  - job: email2
    wait: 24h
    send: {channel: email, template: email_2}
  - job: callAlert
    wait: 24h
    set: {status: CALL_NEEDED}
    send: {channel: telegram, to: admin_group, template: call_needed}
    log: CALL_NEEDED
"""


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path) as made:
        made.template("note", NOTE)
        yield made


def write(home: Path, name: str, text: str) -> None:
    (home / "scenarios").mkdir(parents=True, exist_ok=True)
    (home / "scenarios" / f"{name}.yaml").write_text(text)


def starting(name: str, on: str, emits: str) -> str:
    return OWN.format(name=name, on=on, step=f"{{job: a, emit: {emits}}}")


async def rewrite(harness: Harness, name: str, text: str) -> set[str]:
    """Change a file while the application runs; the scenarios in force then."""
    write(harness.app.settings.home, name, text)
    harness.scenarios.library.refresh()
    return set(harness.scenarios.library.current)


async def test_a_file_with_a_queue_of_its_own_that_came_later_is_worked_on(harness: Harness) -> None:
    await harness.lead()
    await harness.app.drain()  # the worker has chosen its queues
    step = "{job: one, wait: 1h, send: {channel: email, template: note}}"
    await rewrite(harness, "carts", OWN.format(name="carts", on="go", step=step) + "queue: carts\n")
    await harness.event("go")
    assert len(await harness.jobs("carts")) == 1
    harness.app.clock._now += 3_600_000
    await harness.app.drain()
    await harness.scenarios.sweeper.sweep()
    assert harness.letters() == [], "it is not late yet"
    harness.app.clock._now += LATE
    await harness.scenarios.sweeper.sweep()
    await harness.check()
    await harness.app.drain()
    assert harness.letters() == ["note"]
    assert await harness.app.queue("carts").jobs("waiting") == []
    run = await harness.run("carts")
    assert run["status"] == "finished"
    assert [line["reason"] for line in run["timeline"]] == ["nobody worked on the queue carts", None]


async def test_the_queue_of_a_shipped_scenario_is_served_though_a_file_replaces_it(tmp_path: Path) -> None:
    chain = (FOLDER / "email_chain.yaml").read_text()
    write(tmp_path, "email_chain", chain.replace("queue: emailChain", "queue: letters"))
    async with open_harness(tmp_path) as harness:
        worked_on = {runner.queue.name for runner in harness.app.worker().runners}
        assert {"emailChain", "letters", "reminders", "scenarios"} <= worked_on


async def test_a_file_that_leaves_the_kind_to_its_key_runs_to_its_end_and_can_be_stopped(
    tmp_path: Path,
) -> None:
    write(tmp_path, "email_chain", WITHOUT_KIND)
    async with open_harness(tmp_path, telegram_admin_group_id="-100") as harness:
        assert harness.scenarios.library.problems == []
        for lead in (LEAD, "other"):
            await harness.lead(lead)
            await harness.event("lead.created", lead)
        await harness.pass_time("30m")
        assert harness.letters() == ["email_1", "email_1"]
        await harness.event("bot.activated", "other")
        assert (await harness.run("email_chain", "other"))["reason"] == "bot.activated came"
        await harness.pass_time("48h")
        assert (await harness.run("email_chain"))["status"] == "finished"
        assert harness.letters() == ["email_1", "email_1", "email_2"]
        assert harness.chats() == ["call_needed"]
        assert await harness.leads.log(LEAD) == ["CALL_NEEDED", "EMAIL_1_SENT"]
        fields = await harness.leads.fields(LEAD)
        assert (fields["email_1_sent"], fields["status"]) == (True, "CALL_NEEDED")


async def test_scenarios_that_start_each_other_leave_the_others_alone(tmp_path: Path) -> None:
    write(tmp_path, "a", starting("first", "a", "b"))
    write(tmp_path, "b", starting("second", "b", "a"))
    write(tmp_path, "c", starting("third", "c", "a"))
    async with open_harness(tmp_path) as harness:
        library = harness.scenarios.library
        assert set(library.current) == {*SHIPPED, "third"}
        assert "first → second → first" in str(library.problems[0])
        assert await rewrite(harness, "b", starting("second", "b", "d")) == {
            *SHIPPED,
            "first",
            "second",
            "third",
        }
        assert library.problems == []
        before = library.get("second")
        assert "second" in await rewrite(harness, "b", starting("second", "b", "a") + "# again\n")
        assert library.get("second") is before, "it stays as it was"


@pytest.mark.parametrize(
    ("name", "text"),
    [("email_chain", "steps: {{{\n"), ("mine", "scenario: email_chain\nsteps:\n  - {jobb: email1}\n")],
)
async def test_a_replacement_that_cannot_be_read_does_not_bring_back_what_ships(
    tmp_path: Path, name: str, text: str
) -> None:
    write(tmp_path, name, text)
    async with open_harness(tmp_path) as harness:
        assert set(harness.scenarios.library.current) == {"lesson_reminders"}
        await harness.lead()
        await harness.event("lead.created")
        assert await harness.scenarios.timelines.find(key=LEAD) == []
        (check,) = [one for one in await harness.scenarios.checks() if not one.ok]
        assert f"{name}.yaml" in check.found


async def test_a_file_that_breaks_while_it_runs_stays_named_until_it_is_mended(harness: Harness) -> None:
    step = "{job: one, wait: 1h}"
    await rewrite(harness, "own", OWN.format(name="own", on="go", step=step))
    shipped = harness.scenarios.library.get("email_chain")
    await rewrite(harness, "own", "scenario: own\nsteps: nonsense\n")
    assert await rewrite(harness, "email_chain", "scenario: email_chain\nsteps: half writ") == {
        *SHIPPED,
        "own",
    }
    assert harness.scenarios.library.get("email_chain") is shipped
    await rewrite(harness, "other", OWN.format(name="other", on="go", step=step))
    said = [str(problem) for problem in harness.scenarios.library.problems]
    assert ["email_chain.yaml" in said[0], "own.yaml" in said[1], len(said)] == [True, True, 2]
    assert await harness.scenarios.linter.lint()
    await rewrite(harness, "own", OWN.format(name="own", on="went", step=step))
    assert len(harness.scenarios.library.problems) == 1


class EditedMeanwhile(TableLeads):
    """Leads during whose events somebody edits the file of a scenario."""

    def __init__(self, harness: Harness, text: str) -> None:
        super().__init__(harness.app.database)
        self._harness = harness
        self._text = text

    def note_in(self, connection: Connection, event: Event) -> None:
        write(self._harness.app.settings.home, "own", self._text)
        self._harness.scenarios.library.refresh()
        super().note_in(connection, event)


async def test_a_file_that_is_edited_while_events_are_stored_keeps_none_of_them_from_starting_a_run(
    harness: Harness,
) -> None:
    before = OWN.format(name="own", on="go", step="{job: one, wait: 1h}")
    await rewrite(harness, "own", before)
    harness.scenarios.entities.register("lead", EditedMeanwhile(harness, before.replace("1h", "2h")))
    names = ["a", "b", "c"]
    for lead in names:
        await harness.lead(lead)
    events = [Event(event_type="go", event_id=lead, data={"lead_id": lead}) for lead in names]
    await harness.app.notifications.service.handle_events(events)
    assert [(await harness.run("own", lead))["status"] for lead in names] == ["running"] * 3
    await harness.lead("d")
    await harness.event("go", "d")
    assert (await harness.run("own", "d"))["version"] != (await harness.run("own", "a"))["version"]


async def test_of_two_files_with_the_same_name_the_second_is_complained_of(harness: Harness) -> None:
    await rewrite(harness, "a", starting("greet", "go", "done"))
    assert await rewrite(harness, "b", starting("greet", "come", "over")) == {"greet", *SHIPPED}
    library = harness.scenarios.library
    assert library.current["greet"].on == ["go"]
    (problem,) = library.problems
    assert "b.yaml names the scenario 'greet' as a.yaml does" in str(problem)
    assert [str(one) for one in await harness.scenarios.linter.lint() if one.level == "error"] == [
        str(problem)
    ]
    await rewrite(harness, "b", starting("part", "come", "over"))
    assert library.problems == []
