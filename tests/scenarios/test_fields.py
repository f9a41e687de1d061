"""What steps and buttons write to an entity: when, how often, and which other runs it moves."""

import asyncio
from collections.abc import AsyncIterator
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.harness import LEAD, Harness, open_harness
from tests.scenarios.leads import RemoteLeads
from yamchi.errors import Retryable, Unrecoverable
from yamchi.testing import eventually

OWN = """
scenario: own
on: go
entity: lead
key: "{{{{ lead.id }}}}"
actions: {{later: {{set: {{lesson_datetime: "{date}"}}}}}}
steps:
  - {step}
  - {{job: last, wait: 30d}}
"""
NEW_DATE = "2026-01-20T12:00:00Z"


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path) as made:
        yield made
        await made.check()


# ── Dates ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def reminder_of(harness: Harness) -> str:
    (job,) = await harness.jobs("reminders")
    return job.run_at.isoformat() if job.run_at else ""


async def booked(harness: Harness, step: str) -> None:
    harness.scenario(OWN.format(date=NEW_DATE, step=step))
    await harness.event("lesson.booked", lesson_datetime="2026-01-05T12:00:00Z")
    assert await reminder_of(harness) == "2026-01-04T12:00:00+00:00"
    await harness.event("go")


@pytest.mark.parametrize(
    "step",
    [
        f'{{job: move, wait: 1h, set: {{lesson_datetime: "{NEW_DATE}"}}}}',
        "{job: move, wait: 1h, call: find_a_date}",
        f'{{job: move, wait: 1h, call: nothing, set_first: true, set: {{lesson_datetime: "{NEW_DATE}"}}}}',
    ],
    ids=["set", "call", "set_first"],
)
@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["table", "elsewhere"])
async def test_a_date_that_a_step_sets_moves_the_other_runs(
    harness: Harness, step: str, is_elsewhere: bool
) -> None:
    @harness.scenarios.function("find_a_date")
    async def find_a_date(_: Any) -> dict[str, str]:
        return {"lesson_datetime": NEW_DATE}

    @harness.scenarios.function("nothing")
    async def nothing(_: Any) -> None: ...

    if is_elsewhere:
        leads = RemoteLeads()
        harness.scenarios.entities.register("lead", leads)
        leads.rows[LEAD] = {"email": "marat@example.com"}
    else:
        await harness.lead()
    await booked(harness, step)
    await harness.pass_time("1h")
    assert await reminder_of(harness) == "2026-01-19T12:00:00+00:00"


async def test_a_date_that_a_button_sets_moves_the_other_runs(harness: Harness) -> None:
    await harness.lead()
    await booked(harness, "{job: wait, wait: 1h}")
    await harness.scenarios.act("own", LEAD, "later", by="somebody")
    assert await reminder_of(harness) == "2026-01-19T12:00:00+00:00"


# ── What is written before the message ────────────────────────────────────────────────────────────────────────────


async def to_the_call(harness: Harness, **fields: Any) -> None:
    await harness.lead(email=None, **fields)
    await harness.event("lead.created")


async def test_a_retry_does_not_write_over_what_a_person_wrote_meanwhile(harness: Harness) -> None:
    harness.telegram.answers = [Retryable("no")]
    await to_the_call(harness)
    await harness.pass_time("48h30m")
    assert (await harness.leads.fields(LEAD))["status"] == "CALL_NEEDED"
    assert await harness.leads.log(LEAD) == ["CALL_NEEDED"]
    await harness.leads.change(LEAD, status="TALKED")
    await harness.pass_time("1h")
    assert harness.chats() == ["call_needed"]
    assert (await harness.leads.fields(LEAD))["status"] == "TALKED"
    run = await harness.run("email_chain")
    assert (run["timeline"][-1]["effects"] or {})["set"] == ["status"]


async def test_a_stop_while_the_alert_leaves_has_the_last_word(harness: Harness) -> None:
    async def leaving(_: Any) -> None:
        halt = harness.event("bot.activated", fields={"status": "BOT_STARTED"})
        stopping.append(asyncio.create_task(halt, context=Context()))
        await eventually(is_stopped)

    async def is_stopped() -> bool:
        return bool((await harness.run("email_chain"))["status"] == "stopped")

    stopping: list[Any] = []
    harness.telegram.before = leaving
    await to_the_call(harness)
    await harness.pass_time("3d")
    await asyncio.gather(*stopping)
    assert harness.chats() == ["call_needed"]
    assert (await harness.leads.fields(LEAD))["status"] == "BOT_STARTED"
    assert [state for _, state, _ in await harness.steps("email_chain")] == ["skipped", "skipped", "done"]


async def test_a_replayed_alert_writes_no_second_line(harness: Harness) -> None:
    harness.telegram.answers = [Unrecoverable("no such chat")]
    await to_the_call(harness)
    await harness.pass_time("3d")
    await harness.leads.change(LEAD, status="TALKED")
    letters = harness.app.queue("emailChain").dead_letters
    (letter,) = (await letters.list()).letters
    await letters.replay(letter.id)
    await harness.pass_time("1m")
    assert harness.chats() == ["call_needed"]
    assert await harness.leads.log(LEAD) == ["CALL_NEEDED"]
    assert (await harness.leads.fields(LEAD))["status"] == "TALKED"
