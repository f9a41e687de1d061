"""The scenarios that ship, with time under control: a test for each way through them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.scenarios.harness import LEAD, Harness, open_harness
from tests.scenarios.invariants import check_leads
from yamchi.clock import isoformat
from yamchi.errors import Outage, Retryable


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with open_harness(
        tmp_path, default_timezone="Asia/Almaty", telegram_admin_group_id="-100"
    ) as harness:
        yield harness
        await harness.check()
        await check_leads(harness.app)


# ── email_chain ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_whole_chain_to_the_call(harness: Harness) -> None:
    await harness.lead()
    await harness.event("lead.created")
    (job,) = await harness.jobs("emailChain")
    assert job.name == "email1"
    assert job.data == {"leadId": LEAD, "email": "marat@example.com", "name": "Марат"}
    assert await harness.app.keys.get(f"email_job:{LEAD}") == job.id
    await harness.pass_time("29m")
    assert harness.letters() == []
    await harness.pass_time("1m")
    assert harness.letters() == ["email_1"]
    fields = await harness.leads.fields(LEAD)
    assert fields["email_1_sent"] is True
    assert fields["email_1_sent_at"] == "2026-01-01T00:30:00Z"
    (job,) = await harness.jobs("emailChain")
    assert (job.name, isoformat(job.record.run_at)) == ("email2", "2026-01-02T00:30:00Z")
    assert await harness.app.keys.get(f"email_job:{LEAD}") == job.id
    await harness.pass_time("24h")
    assert harness.letters() == ["email_1", "email_2"]
    (job,) = await harness.jobs("emailChain")
    assert job.name == "callAlert"
    assert job.data == {"leadId": LEAD, "name": "Марат", "phone": "+77010000000"}
    await harness.pass_time("24h")
    assert harness.chats() == ["call_needed"]
    assert harness.telegram.sent[0][1].to == "admin_group"
    fields = await harness.leads.fields(LEAD)
    assert (fields["status"], fields["email_2_sent"]) == ("CALL_NEEDED", True)
    assert await harness.leads.log(LEAD) == ["CALL_NEEDED", "EMAIL_1_SENT", "EMAIL_2_SENT"]
    assert (await harness.run("email_chain"))["status"] == "finished"
    assert await harness.app.keys.get(f"email_job:{LEAD}") is None
    await harness.pass_time("30d")
    assert len(harness.email.sent) == 2


async def test_opening_the_bot_after_the_first_letter_stops_it(harness: Harness) -> None:
    await harness.lead()
    await harness.event("lead.created")
    await harness.pass_time("30m")
    (pending,) = await harness.jobs("emailChain")
    with capture_logs() as logs:
        await harness.event("bot.activated")
    (line,) = (line for line in logs if line["event"] == "Email chain cancelled")
    assert (line["key"], line["job"], line["reason"]) == (LEAD, pending.id, "bot.activated came")
    assert await harness.jobs("emailChain") == []
    assert await harness.app.keys.get(f"email_job:{LEAD}") is None
    run = await harness.run("email_chain")
    assert (run["status"], run["reason"]) == ("stopped", "bot.activated came")
    await harness.pass_time("7d")
    assert harness.letters() == ["email_1"]
    assert harness.chats() == []


async def test_a_lead_who_opened_the_bot_otherwise_gets_no_letter(harness: Harness) -> None:
    """The row was changed by hand, and no event told of it."""
    await harness.lead()
    await harness.event("lead.created")
    await harness.leads.change(LEAD, bot_activated=True)
    await harness.pass_time("7d")
    assert harness.letters() == []
    assert [state for _, state, _ in await harness.steps("email_chain")] == ["skipped"] * 3


async def test_a_step_that_fails_twice_sends_on_the_third(harness: Harness) -> None:
    harness.email.answers = [Retryable("no"), Retryable("no again")]
    await harness.lead()
    await harness.event("lead.created")
    await harness.pass_time("30m")
    assert harness.letters() == []
    await harness.pass_time("6m")
    assert [when for when, _ in harness.email.sent] == ["2026-01-01T00:36:00Z"]  # 1 minute, then 5
    await harness.pass_time("24h")
    assert harness.letters() == ["email_1", "email_2"]


async def test_an_outage_delays_and_costs_nothing(harness: Harness) -> None:
    harness.email.answers = [Outage("down") for _ in range(10)]
    await harness.lead()
    await harness.event("lead.created")
    await harness.pass_time("2h")
    assert harness.letters() == ["email_1"]
    assert (await harness.run("email_chain"))["status"] == "running"


async def test_one_that_fails_for_good_is_a_dead_letter_and_its_replay_goes_on(harness: Harness) -> None:
    harness.email.answers = [Retryable("no") for _ in range(3)]
    await harness.lead()
    await harness.event("lead.created")
    await harness.pass_time("1h")
    run = await harness.run("email_chain")
    assert (run["status"], run["reason"]) == ("failed", "email1: no")
    letters = (await harness.app.queue("emailChain").dead_letters.list()).letters
    assert len(letters) == 1
    await harness.app.queue("emailChain").dead_letters.replay(letters[0].id)
    await harness.pass_time("1s")
    await harness.check()
    assert harness.letters() == ["email_1"]
    await harness.pass_time("48h")
    assert harness.letters() == ["email_1", "email_2"]
    assert harness.chats() == ["call_needed"]
    assert (await harness.run("email_chain"))["status"] == "finished"


async def test_the_same_event_twice_is_one_run(harness: Harness) -> None:
    await harness.lead()
    await harness.event("lead.created", event_id="once")
    assert (await harness.event("lead.created", event_id="once")).duplicate
    await harness.event("lead.created", event_id="another")
    await harness.pass_time("30d")
    assert harness.letters() == ["email_1", "email_2"]


# ── lesson_reminders ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("tg_id", ["777", None], ids=["chat", "letter"])
async def test_a_field_of_the_form_does_not_change_what_a_reminder_says(
    harness: Harness, tg_id: str | None
) -> None:
    """The form asks for a convenient time, in a field named lesson_time."""
    await harness.lead(tg_id=tg_id, lesson_time="in the evening", zone="Asia/Almaty")
    await harness.event("lesson.booked", lesson_datetime="2026-01-05T15:00:00+05:00")
    await harness.pass_time("10d")
    sent = harness.telegram.sent if tg_id else harness.email.sent
    assert [message.template_code for _, message in sent] == ["remind_24h", "remind_5h"]
    for _, message in sent:
        said = message.rendered.html or message.rendered.text or ""
        assert "15:00" in said
        assert "evening" not in said


@pytest.mark.parametrize(("hours", "sent"), [(20, ["remind_24h", "remind_5h"]), (3, ["remind_5h"])])
async def test_a_reminder_that_failed_is_replayed_only_before_the_next(
    harness: Harness, hours: int, sent: list[str]
) -> None:
    """Of the two reminders each is for itself: that the first can't be sent does not keep back the second."""
    harness.email.answers = [Retryable("no") for _ in range(3)]
    await harness.lead(tg_id=None)
    await harness.event("lesson.booked", lesson_datetime=harness.ahead(hours=48))
    await harness.pass_time(f"{48 - hours}h")
    (letter,) = (await harness.app.queue("reminders").dead_letters.list()).letters
    await harness.app.queue("reminders").dead_letters.replay(letter.id)
    await harness.pass_time("48h")
    assert harness.letters() == sent
    await harness.check()


async def test_both_reminders_with_the_seeds_data(harness: Harness) -> None:
    await harness.lead(zoom_link="https://zoom.us/j/1")
    await harness.event("lesson.booked", lesson_datetime="2026-01-05T15:00:00+05:00")
    (job,) = await harness.jobs("reminders")
    assert job.name == "remind24h"
    assert job.data == {
        "leadId": LEAD,
        "tgId": 777,
        "lessonDate": "2026-01-05",
        "lessonTime": "15:00",
        "lessonDatetime": "2026-01-05T10:00:00Z",
        "zoomLink": "https://zoom.us/j/1",
        "name": "Марат",
    }
    await harness.at("2026-01-04T10:00:00")
    assert harness.chats() == ["remind_24h"]
    buttons = [button for row in harness.telegram.sent[0][1].rendered.buttons for button in row]
    assert [(button.text, button.callback) for button in buttons] == [
        ("✅ Да, буду!", f"confirm:{LEAD}"),
        ("📅 Перенести", f"reschedule:{LEAD}"),
    ]
    (job,) = await harness.jobs("reminders")
    assert job.name == "remind5h"
    assert await harness.app.keys.get(f"remind5h_job:{LEAD}") == job.id
    await harness.pass_time("7h")
    assert await harness.app.keys.get(f"remind5h_job:{LEAD}") is None  # it lives for six hours
    await harness.at("2026-01-05T05:00:00")
    assert harness.chats() == ["remind_24h", "remind_5h"]
    assert await harness.leads.log(LEAD) == ["REMINDER_24H_SENT", "REMINDER_5H_SENT"]


async def test_confirming_stops_the_second_reminder(harness: Harness) -> None:
    await harness.lead()
    await harness.event("lesson.booked", lesson_datetime=harness.ahead(days=3))
    await harness.pass_time("49h")
    assert harness.chats() == ["remind_24h"]
    await harness.event("lesson.confirmed")
    assert await harness.jobs("reminders") == []
    await harness.pass_time("7d")
    assert harness.chats() == ["remind_24h"]


async def test_a_lesson_in_three_hours_gets_neither(harness: Harness) -> None:
    await harness.lead()
    await harness.event("lesson.booked", lesson_datetime=harness.ahead(hours=3))
    await harness.pass_time("7d")
    assert harness.chats() == []
    steps = await harness.steps("lesson_reminders")
    assert [state for _, state, _ in steps] == ["skipped", "skipped"]
    assert all("had passed already" in str(reason) for _, _, reason in steps)


async def test_a_lesson_in_ten_hours_gets_only_the_second(harness: Harness) -> None:
    await harness.lead()
    await harness.event("lesson.booked", lesson_datetime=harness.ahead(hours=10))
    await harness.pass_time("7d")
    assert [(when, m.template_code) for when, m in harness.telegram.sent] == [
        ("2026-01-01T05:00:00Z", "remind_5h")
    ]


async def test_one_that_was_confirmed_already_gets_nothing(harness: Harness) -> None:
    await harness.lead(confirmed=True)
    await harness.event("lesson.booked", lesson_datetime=harness.ahead(days=3))
    await harness.pass_time("7d")
    assert harness.chats() == []


async def test_a_lesson_that_moves_takes_its_reminders_along(harness: Harness) -> None:
    await harness.lead()
    await harness.event("lesson.booked", lesson_datetime=harness.ahead(days=2))
    await harness.pass_time("25h")
    assert harness.chats() == ["remind_24h"]
    await harness.event("lesson.rescheduled", lesson_datetime=harness.ahead(days=7))
    assert len(await harness.jobs("reminders")) == 1
    await harness.pass_time("5d")
    assert harness.chats() == ["remind_24h"]
    await harness.pass_time("2d")
    assert harness.chats() == ["remind_24h", "remind_24h", "remind_5h"]
    (run,) = await harness.scenarios.timelines.find(scenario="lesson_reminders")
    assert run["status"] == "finished"


async def test_a_lesson_that_moves_after_the_last_reminder_begins_anew(harness: Harness) -> None:
    await harness.lead()
    await harness.event("lesson.booked", lesson_datetime=harness.ahead(days=2))
    await harness.pass_time("44h")
    await harness.event("lesson.rescheduled", lesson_datetime=harness.ahead(days=4))
    await harness.pass_time("7d")
    assert harness.chats() == ["remind_24h", "remind_5h", "remind_24h", "remind_5h"]


async def test_a_lesson_moved_twice_gets_one_of_each(harness: Harness) -> None:
    await harness.lead()
    await harness.event("lesson.booked", lesson_datetime=harness.ahead(days=2))
    for days in (5, 3, 6, 4):
        await harness.event("lesson.rescheduled", lesson_datetime=harness.ahead(days=days))
    await harness.pass_time("30d")
    assert [(when, m.template_code) for when, m in harness.telegram.sent] == [
        ("2026-01-04T00:00:00Z", "remind_24h"),
        ("2026-01-04T19:00:00Z", "remind_5h"),
    ]


async def test_a_date_changed_without_an_event_is_seen_when_it_is_told_of_or_at_the_last_moment(
    harness: Harness,
) -> None:
    await harness.lead()
    await harness.event("lesson.booked", lesson_datetime=harness.ahead(days=2))
    await harness.leads.change(LEAD, lesson_datetime=harness.ahead(days=9))  # nobody is told
    await harness.pass_time("3d")
    assert harness.chats() == []
    await harness.leads.change(LEAD, lesson_datetime=harness.ahead(days=2))
    await harness.scenarios.changed("lead", LEAD)
    await harness.pass_time("25h")
    assert harness.chats() == ["remind_24h"]
    await harness.pass_time("7d")
    assert harness.chats() == ["remind_24h", "remind_5h"]


async def test_without_a_chat_the_reminder_is_a_letter_with_buttons(harness: Harness) -> None:
    await harness.lead(tg_id=None)
    await harness.event("lesson.booked", lesson_datetime=harness.ahead(days=2))
    await harness.pass_time("25h")
    assert harness.letters() == ["remind_24h"]
    assert "/act/" in (harness.email.sent[0][1].rendered.html or "")
