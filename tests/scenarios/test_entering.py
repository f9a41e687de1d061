"""Jobs that other programs put onto the queue of a scenario, as a team's own worker did before: they enter the run."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.harness import LEAD, Harness, open_harness
from tests.scenarios.invariants import check_leads
from yamchi.errors import Unrecoverable
from yamchi.queues.job import Job

LETTER = {"leadId": LEAD, "email": "marat@example.com", "name": "Марат"}
CALL = {"leadId": LEAD, "name": "Марат", "phone": "+77010000000"}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with open_harness(
        tmp_path, default_timezone="Asia/Almaty", telegram_admin_group_id="-100"
    ) as harness:
        yield harness
        await harness.check()
        await check_leads(harness.app)


async def put(harness: Harness, name: str, data: Any, id: str = "1", queue: str = "emailChain") -> Any:
    """What becomes of a job that another program has put there."""
    await harness.app.queue(queue).add(data, name=name, id=id)
    await harness.app.drain()
    job: Job[Any] = await harness.app.queue(queue).job(id)
    return job.returned if job.state == "completed" else job.failed_reason


def lesson(harness: Harness, **ahead: float) -> dict[str, Any]:
    """The data of a reminder."""
    moment = harness.ahead(**ahead)
    return {
        "leadId": LEAD, "tgId": 777, "lessonDate": moment[:10], "lessonTime": moment[11:16],
        "lessonDatetime": moment, "zoomLink": "https://zoom.us/j/1", "name": "Марат",
    }  # fmt: skip


# ── Where there is no run ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_letter_is_sent_and_the_chain_goes_on(harness: Harness) -> None:
    await harness.lead()
    answer = await put(harness, "email1", LETTER)
    assert answer["status"] == "entered"
    assert harness.letters() == ["email_1"]
    assert (await harness.leads.fields(LEAD))["email_1_sent"] is True
    assert await harness.leads.log(LEAD) == ["EMAIL_1_SENT"]
    (job,) = await harness.jobs("emailChain")
    assert (job.name, job.data) == ("email2", LETTER)
    assert await harness.app.keys.get(f"email_job:{LEAD}") == job.id
    await harness.pass_time("48h")
    assert (harness.letters(), harness.chats()) == (["email_1", "email_2"], ["call_needed"])
    assert (await harness.run("email_chain"))["status"] == "finished"


async def test_the_second_letter_and_the_call_come_in_by_themselves(harness: Harness) -> None:
    await harness.lead()
    await put(harness, "email2", LETTER)
    assert harness.letters() == ["email_2"]
    (job,) = await harness.jobs("emailChain")
    assert (job.name, job.data) == ("callAlert", CALL)
    await harness.lead("other")
    await put(harness, "callAlert", {**CALL, "leadId": "other"}, "2")
    assert harness.chats() == ["call_needed"]
    assert (await harness.leads.fields("other"))["status"] == "CALL_NEEDED"
    run = await harness.run("email_chain", "other")
    assert (run["status"], [line["step"] for line in run["timeline"]]) == ("finished", ["callAlert"])


async def test_a_lead_who_opened_the_bot_gets_nothing(harness: Harness) -> None:
    await harness.lead(bot_activated=True)
    for number, name in enumerate(("email1", "email2", "callAlert")):
        assert await put(harness, name, LETTER, str(number)) == {
            "status": "nothing",
            "reason": "unless: lead.bot_activated",
        }
    assert await harness.scenarios.timelines.find() == []
    await harness.pass_time("7d")
    assert harness.letters() == []


async def test_the_bot_stops_what_a_job_has_begun(harness: Harness) -> None:
    await harness.lead()
    await put(harness, "email1", LETTER)
    await harness.event("bot.activated")
    assert await harness.jobs("emailChain") == []
    assert await harness.app.keys.get(f"email_job:{LEAD}") is None
    await harness.leads.change(LEAD, bot_activated=False)
    answer = await put(harness, "email2", LETTER, "2")
    assert answer == {"status": "nothing", "reason": "its run was stopped: bot.activated came"}


async def test_the_reminder_of_a_day_before_and_then_the_second_one(harness: Harness) -> None:
    data = lesson(harness, hours=24)
    await harness.lead(lesson_datetime=data["lessonDatetime"])
    await put(harness, "remind24h", data, queue="reminders")
    assert harness.chats() == ["remind_24h"]
    (job,) = await harness.jobs("reminders")
    assert (job.name, job.data["lessonDatetime"]) == ("remind5h", data["lessonDatetime"])
    assert await harness.app.keys.get(f"remind5h_job:{LEAD}") == job.id
    await harness.pass_time("19h")
    assert harness.chats() == ["remind_24h", "remind_5h"]
    assert await harness.leads.log(LEAD) == ["REMINDER_24H_SENT", "REMINDER_5H_SENT"]


async def test_a_reminder_that_comes_too_late_is_left_out_and_the_next_is_not(harness: Harness) -> None:
    """Workers were away for most of a day: what an own step says of its lateness holds for another program's job."""
    data = lesson(harness, hours=11)
    await harness.lead(lesson_datetime=data["lessonDatetime"])
    await put(harness, "remind24h", data, queue="reminders")
    assert harness.chats() == []
    await harness.pass_time("6h")
    assert harness.chats() == ["remind_5h"]


async def test_a_lesson_that_is_confirmed_needs_no_reminder(harness: Harness) -> None:
    data = lesson(harness, hours=5)
    await harness.lead(lesson_datetime=data["lessonDatetime"], confirmed=True)
    answer = await put(harness, "remind5h", data, queue="reminders")
    assert answer == {"status": "nothing", "reason": "unless: lead.confirmed"}


async def test_a_lesson_that_moves_takes_both_reminders_along(harness: Harness) -> None:
    """The run began at the second one; the first is scheduled for the new date all the same."""
    data = lesson(harness, hours=6)
    await harness.lead(lesson_datetime=data["lessonDatetime"])
    harness.telegram.answers = []
    await put(harness, "remind5h", data, queue="reminders")
    assert harness.chats() == ["remind_5h"]
    await put(harness, "remind5h", {**data, "zoomLink": "again"}, "2", queue="reminders")
    assert harness.chats() == ["remind_5h"]
    moved = harness.ahead(days=7)
    await harness.event("lesson.rescheduled", lesson_datetime=moved)
    await harness.pass_time("7d")
    assert harness.chats() == ["remind_5h", "remind_24h", "remind_5h"]


async def test_a_date_that_moves_before_the_message_leaves(harness: Harness) -> None:
    data = lesson(harness, hours=5)
    await harness.lead(lesson_datetime=data["lessonDatetime"])
    moved = harness.ahead(days=7)

    async def move(message: Any) -> None:
        harness.telegram.before = None
        await harness.event("lesson.rescheduled", lesson_datetime=moved)

    harness.telegram.before = move
    await put(harness, "remind5h", data, queue="reminders")
    await harness.pass_time("7d")
    assert harness.chats() == ["remind_5h", "remind_24h", "remind_5h"]


async def test_a_lead_that_nobody_knows(harness: Harness) -> None:
    """The store of these leads takes nothing over from jobs."""
    await harness.lead("other")
    answer = await put(harness, "email1", LETTER)
    assert answer == {"status": "nothing", "reason": f"there is no lead {LEAD}"}


# ── Where there is one ────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_pending_or_done_is_not_asked_for_anew(harness: Harness) -> None:
    await harness.lead()
    await harness.event("lead.created")
    assert (await put(harness, "email1", LETTER))["reason"] == "email1 is pending already"
    assert harness.letters() == []
    await harness.pass_time("30m")
    assert (await put(harness, "email1", LETTER, "2"))["reason"] == "its run is at email2 already"
    assert (await put(harness, "email2", LETTER, "3"))["reason"] == "email2 is pending already"
    await harness.pass_time("30d")
    assert (await put(harness, "email1", LETTER, "4"))["reason"] == "email1 is done already"
    assert (await put(harness, "callAlert", CALL, "5"))["reason"] == "callAlert is done already"
    await harness.pass_time("30d")
    assert (harness.letters(), harness.chats()) == (["email_1", "email_2"], ["call_needed"])
    assert len(await harness.scenarios.timelines.find()) == 1


async def test_a_later_step_brings_the_run_there(harness: Harness) -> None:
    await harness.lead()
    await harness.event("lead.created")
    await put(harness, "email2", LETTER)
    assert harness.letters() == ["email_2"]
    assert await harness.steps("email_chain") == [
        ("email1", "cancelled", "email2 was asked for"),
        ("email2", "done", None),
        ("callAlert", "armed", None),
    ]
    await harness.pass_time("7d")
    assert harness.letters() == ["email_2"]


async def test_a_later_step_while_the_message_of_one_before_is_leaving(harness: Harness) -> None:
    async def ask(message: Any) -> None:
        harness.email.before = None
        await harness.app.queue("emailChain").add(LETTER, name="email2", id="1")

    harness.email.before = ask
    await harness.lead()
    await harness.event("lead.created")
    await harness.pass_time("7d")
    assert harness.letters() == ["email_1", "email_2"]


@pytest.mark.parametrize(
    ("name", "data", "sent"),
    [("email1", LETTER, "email_1"), ("email2", LETTER, "email_2"), ("callAlert", CALL, "call_needed")],
)
async def test_two_jobs_at_once_are_one_message(harness: Harness, name: str, data: Any, sent: str) -> None:
    await harness.lead()
    queue = harness.app.queue("emailChain")
    for number in range(5):
        await queue.add(data, name=name, id=str(number))
    await harness.app.drain()
    assert harness.letters() + harness.chats() == [sent]
    entered = [(await queue.job(str(number))).returned["status"] for number in range(5)]
    assert sorted(entered) == ["entered", *["nothing"] * 4]


async def test_a_letter_that_failed_for_good_is_replayed_and_not_sent_by_another_job(
    harness: Harness,
) -> None:
    """Its dead letter is the way to try it again."""
    harness.email.answers = [Unrecoverable("no such mailbox")]
    await harness.lead()
    await put(harness, "email1", LETTER)
    assert (await put(harness, "email1", LETTER, "2"))["reason"] == "email1 is failed already"


async def test_a_run_of_a_version_without_that_step(harness: Harness) -> None:
    text = "scenario: own\non: go\nentity: lead\nkey: '{{{{ lead.id }}}}'\nsteps:\n  - {{job: {name}, wait: 1h}}\n"
    harness.scenario(text.format(name="old"))
    await harness.lead()
    await harness.event("go")
    harness.scenario(text.format(name="renamed"))
    answer = await put(harness, "renamed", {"lead_id": LEAD}, queue="scenarios")
    assert "has no step renamed" in answer["reason"]


async def test_a_scenario_says_when_it_is_begun_and_how_often(harness: Harness) -> None:
    harness.scenario(
        "scenario: own\non: go\nentity: lead\nkey: '{{ lead.id }}'\nwhen: lead.is_wanted\nagain: never\n"
        "steps:\n  - {job: one}\n  - {job: two}\n"
    )
    await harness.lead()
    refused = await put(harness, "two", {"lead_id": LEAD}, "1", "scenarios")
    assert refused["reason"] == "own is not begun for it: when: lead.is_wanted"
    await harness.leads.change(LEAD, is_wanted=True)
    assert (await put(harness, "two", {"lead_id": LEAD}, "2", "scenarios"))["status"] == "entered"
    refused = await put(harness, "two", {"lead_id": LEAD}, "3", "scenarios")
    assert refused["reason"] == "own runs once for a key, and has"


async def test_a_scenario_of_no_entity_goes_by_the_data(harness: Harness) -> None:
    harness.template("note", "---\nsubject: note\ntransactional: true\n---\nOrder {{ order }}")
    harness.scenario(
        "scenario: order\non: order.paid\nkey: '{{ event.data.order }}'\nsteps:\n"
        "  - {job: thank, wait: 1h, send: {channel: email, template: note, to: '{{ event.data.email }}'}}\n"
    )
    answer = await put(harness, "thank", {"order": "7", "email": "a@example.com"}, queue="scenarios")
    assert answer["status"] == "entered"
    assert [message.to for _, message in harness.email.sent] == ["a@example.com"]
    assert "lack what the key" in await put(harness, "thank", {"email": "a@example.com"}, "2", "scenarios")


async def test_a_job_of_a_step_that_waits_for_an_event(harness: Harness) -> None:
    harness.scenario(
        "scenario: own\non: go\nentity: lead\nkey: '{{ lead.id }}'\n"
        "steps:\n  - {job: one, wait: 1h}\n  - {job: answer, wait_for: replied, timeout: 1h}\n"
    )
    await harness.lead()
    await put(harness, "answer", {"lead_id": LEAD}, queue="scenarios")
    run = await harness.run("own")
    assert (run["status"], run["step"], run["due_at"]) == ("running", "answer", "2026-01-01T01:00:00Z")


# ── Jobs that can't enter ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("email3", LETTER, "no scenario has a step 'email3' on the queue emailChain"),
        ("email1", {"email": "marat@example.com"}, "its data name no lead"),
        ("email1", {"leadId": 7}, "its data name no lead"),
        ("email1", ["a list"], "data: "),
        ("email1", None, "data: "),
    ],
)
async def test_a_strange_job_is_a_dead_letter_with_a_reason(
    harness: Harness, name: str, data: Any, said: str
) -> None:
    await harness.lead()
    assert said in await put(harness, name, data)
    (letter,) = (await harness.app.queue("emailChain").dead_letters.list()).letters
    assert said in letter.error


async def test_several_scenarios_with_such_a_step(harness: Harness) -> None:
    for name in ("first", "second"):
        harness.scenario(
            f"scenario: {name}\non: go\nkey: '{{{{ event.data.n }}}}'\nsteps:\n  - {{job: one}}\n", name
        )
    assert "several scenarios have a step 'one' on the queue scenarios: first, second" in await put(
        harness, "one", {"n": 1}, queue="scenarios"
    )


@pytest.mark.parametrize("id", ["lead.email1.1", "1.2.3", "6f1d2c9e.email1.1"])
async def test_an_id_that_looks_like_ours(harness: Harness, id: str) -> None:
    await harness.lead()
    await put(harness, "email1", LETTER, id)
    assert harness.letters() == ["email_1"]
