"""Jobs of a team's former worker, about leads: what they tell is kept where nothing is known, and an unknown lead is made."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.leads.harness import Harness, open_harness
from yamchi.clock import isoformat
from yamchi.queues.job import Job

LEAD = "6f1d2c9e-4b1a-4f7e-9a53-0d7c1b2a3e4f"
LETTER = {"leadId": LEAD, "email": "marat@example.com", "name": "Марат"}
CALL = {"leadId": LEAD, "name": "Марат", "phone": "8 701 000 00 00"}
HOUR = 3_600_000


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path) as harness:
        yield harness


async def put(harness: Harness, name: str, data: Any, id: str = "1", queue: str = "emailChain") -> Any:
    """What becomes of a job that another program has put there."""
    await harness.app.queue(queue).add(data, name=name, id=id)
    await harness.app.drain()
    job: Job[Any] = await harness.app.queue(queue).job(id)
    return job.returned if job.state == "completed" else job.failed_reason


def lesson(harness: Harness, hours: float, lead_id: str = LEAD) -> dict[str, Any]:
    """The data of a reminder."""
    moment = isoformat(harness.app.clock.now() + round(hours * HOUR))
    return {
        "leadId": lead_id, "tgId": 777, "lessonDate": moment[:10], "lessonTime": moment[11:16],
        "lessonDatetime": moment, "zoomLink": "https://zoom.us/j/1", "name": "Марат",
    }  # fmt: skip


def sent(harness: Harness) -> list[str]:
    return [
        message.template_code for channel in (harness.email, harness.telegram) for _, message in channel.sent
    ]


async def test_a_lead_that_nobody_knows_gets_its_letters(harness: Harness) -> None:
    """The job carries what the letter needs; from then on the lead is known."""
    assert (await put(harness, "email1", LETTER))["status"] == "entered"
    ((_, letter),) = harness.email.sent
    assert (letter.to, letter.template_code) == ("marat@example.com", "email_1")
    lead = await harness.get(LEAD)
    assert (lead["name"], lead["email"], lead["source"], lead["email_1_sent"]) == (
        "Марат",
        "marat@example.com",
        "job",
        True,
    )
    assert await harness.log(LEAD) == ["LEAD_CREATED", "EMAIL_1_SENT"]
    await harness.app.clock.advance("48h")
    assert sent(harness) == ["email_1", "email_2", "call_needed"]
    assert (await harness.get(LEAD))["status"] == "CALL_NEEDED"


async def test_a_call_for_a_lead_that_nobody_knows(harness: Harness) -> None:
    await put(harness, "callAlert", CALL)
    assert sent(harness) == ["call_needed"]
    lead = await harness.get(LEAD)
    assert (lead["phone"], lead["email"], lead["status"]) == ("+77010000000", None, "CALL_NEEDED")


async def test_nobody_is_reminded_who_is_not_known(harness: Harness) -> None:
    answer = await put(harness, "remind24h", lesson(harness, 24), queue="reminders")
    assert answer == {"status": "nothing", "reason": f"there is no lead {LEAD}"}
    assert (await harness.client.get(f"/v1/leads/{LEAD}")).status_code == 404


async def test_a_reminder_brings_the_date_that_nobody_told_of(harness: Harness) -> None:
    lead_id = await harness.lead()
    data = lesson(harness, 24, lead_id)
    assert (await put(harness, "remind24h", data, queue="reminders"))["status"] == "entered"
    assert sent(harness) == ["remind_24h"]
    lead = await harness.get(lead_id)
    assert (lead["lesson_datetime"], lead["zoom_link"], lead["tg_id"], lead["status"]) == (
        data["lessonDatetime"],
        "https://zoom.us/j/1",
        "777",
        "LESSON_BOOKED",
    )
    assert (lead["name"], lead["email"]) == ("Марат", "marat@example.com")
    await harness.app.clock.advance("19h")
    assert sent(harness).count("remind_5h") == 1


async def test_what_is_known_stays_as_it_is(harness: Harness) -> None:
    lead_id = await harness.lead()
    await put(harness, "email1", {"leadId": lead_id, "email": "old@example.com", "name": "Another"})
    lead = await harness.get(lead_id)
    assert (lead["name"], lead["email"], lead["email_1_sent"]) == ("Марат", "marat@example.com", False)
    await harness.app.clock.advance("30m")
    assert [message.to for _, message in harness.email.sent] == ["marat@example.com"]


async def test_a_reminder_of_a_date_that_the_lesson_has_no_more(harness: Harness) -> None:
    lead_id = await harness.lead()
    old = lesson(harness, 5, lead_id)
    await harness.event("lesson.booked", lead_id, "b", lesson_datetime=lesson(harness, 200)["lessonDatetime"])
    answer = await put(harness, "remind5h", old, queue="reminders")
    assert answer["reason"] == f"the lesson of {lead_id} is not at {old['lessonDatetime']} any more"
    assert "remind_5h" not in sent(harness)


async def test_the_next_lesson_of_somebody_who_had_one(harness: Harness) -> None:
    """The former worker books a second lesson; the first one was confirmed, and is over."""
    lead_id = await harness.lead()
    first = lesson(harness, 30, lead_id)
    await harness.event("lesson.booked", lead_id, "b", lesson_datetime=first["lessonDatetime"])
    await harness.event("lesson.confirmed", lead_id, "c")
    await harness.app.clock.advance("5d")
    again = lesson(harness, 24, lead_id)
    assert (await put(harness, "remind24h", first, "0", "reminders"))["status"] == "nothing"
    assert (await put(harness, "remind24h", again, "1", "reminders"))["status"] == "entered"
    assert sent(harness).count("remind_24h") == 1
    lead = await harness.get(lead_id)
    assert (lead["lesson_datetime"], lead["confirmed"]) == (again["lessonDatetime"], False)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"leadId": "x" * 60}, "data.lead_id"),
        ({"leadId": ".."}, "data.lead_id"),
        ({"leadId": "L", "name": "n" * 300}, "data.name"),
        ({"leadId": "L", "lessonDatetime": "tomorrow"}, "data.lesson_datetime"),
    ],
)
async def test_what_no_lead_can_have(harness: Harness, data: dict[str, Any], said: str) -> None:
    assert said in await put(harness, "email1", data)
    assert (await harness.client.get(f"/v1/leads/{data['leadId']}")).status_code == 404


async def test_whoever_was_erased_is_not_brought_back(harness: Harness) -> None:
    lead_id = await harness.lead()
    about = {**LETTER, "leadId": lead_id}
    await put(harness, "email1", about)
    assert (await harness.client.delete(f"/v1/leads/{lead_id}")).status_code < 300
    assert await harness.app.queue("emailChain").jobs("completed") == []
    answer = await put(harness, "email2", about, "2")
    assert answer == {"status": "nothing", "reason": f"the lead {lead_id} has been erased"}
    assert sent(harness) == []
