"""Messages that have left do not leave again, whatever is armed anew; what was stopped leaves nothing behind."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextvars import Context
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from tests.scenarios.harness import LEAD, Harness, open_harness
from yamchi.errors import Retryable, Unrecoverable
from yamchi.notifications.channels.base import Unreachable
from yamchi.queues.queue import Queue
from yamchi.scenarios import performing, scenario_engine, store
from yamchi.scenarios.outbox import Entry, Outbox
from yamchi.testing import eventually

NOTE = "---\nsubject: note\ntransactional: true\n---\nnote"
LETTER = """
scenario: letter
on: go
entity: lead
key: "{{ lead.id }}"
stop_on: halt
steps:
  - job: one
    wait: 1h
    send: {channel: email, template: note}
    log: "{{ 12 // lead.share }} each"
    remember: {key: "letter:{{ lead.id }}", ttl: 48h}
  - {job: two, wait: 1h}
"""


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path) as made:
        made.template("note", NOTE)
        made.scenario(LETTER, "letter")
        await made.lead(share=0)
        yield made


def elsewhere(act: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Done by somebody else at the same time."""
    return asyncio.create_task(act, context=Context())


async def replay(harness: Harness) -> None:
    (letter,) = (await harness.app.queue("scenarios").dead_letters.list()).letters
    await harness.app.queue("scenarios").dead_letters.replay(letter.id)


async def test_a_replayed_step_whose_letter_had_left_only_writes_what_was_missing(harness: Harness) -> None:
    """The letter left, and then the log line could not be made: that is what the replay does."""
    await harness.event("go")
    await harness.pass_time("1h")
    assert (await harness.run("letter"))["status"] == "failed"
    for share in (0, 3):  # the first replay fails the same way
        await harness.leads.change(LEAD, share=share)
        await replay(harness)
        await harness.pass_time("1m")
    assert harness.letters() == ["note"]
    assert await harness.leads.log(LEAD) == ["4 each"]
    assert [step for step, state, _ in await harness.steps("letter") if state == "done"] == ["one"]
    await harness.pass_time("1h")
    assert (await harness.run("letter"))["status"] == "finished"
    await harness.check()


async def test_a_migrated_step_whose_letter_had_left_does_not_send_it_again(harness: Harness) -> None:
    await harness.event("go")
    with pytest.MonkeyPatch.context() as patch:
        interrupt(harness, patch)
        await harness.pass_time("1h")
    assert harness.letters() == ["note"]
    await harness.leads.change(LEAD, share=3)
    harness.scenario(LETTER.replace("job: two, wait: 1h", "job: two, wait: 2h"), "letter")
    assert await harness.scenarios.migrator.migrate("letter") == 1
    await harness.pass_time("3h")
    assert harness.letters() == ["note"]
    assert (await harness.run("letter"))["status"] == "finished"
    await harness.check()


async def test_a_run_whose_message_is_leaving_is_not_migrated(harness: Harness) -> None:
    await harness.event("go")
    moved = []

    async def leaving(_: Any) -> None:
        harness.scenario(LETTER.replace("job: two, wait: 1h", "job: two, wait: 2h"), "letter")
        moved.append(await harness.scenarios.migrator.migrate("letter"))

    await harness.leads.change(LEAD, share=3)
    harness.email.before = leaving
    await harness.pass_time("1h")
    assert moved == [0]
    assert await harness.scenarios.migrator.migrate("letter") == 1
    await harness.pass_time("2h")
    assert harness.letters() == ["note"]
    await harness.check()


async def test_an_event_that_stops_is_answered_when_the_message_has_left(harness: Harness) -> None:
    await harness.leads.change(LEAD, share=3)
    await harness.event("go")
    order: list[str] = []

    async def stop() -> None:
        await harness.event("halt")
        order.append("answered")

    async def leaving(_: Any) -> None:
        stopping.append(elsewhere(stop()))
        await eventually(lambda: is_stopped(harness))
        order.append("left")

    stopping: list[asyncio.Task[None]] = []
    harness.email.before = leaving
    await harness.pass_time("1h")
    await asyncio.gather(*stopping)
    assert order == ["left", "answered"]
    assert await harness.leads.log(LEAD) == ["4 each"]


async def is_stopped(harness: Harness) -> bool:
    return bool((await harness.run("letter"))["status"] == "stopped")


async def test_a_function_may_stop_its_own_run(harness: Harness) -> None:
    """It does not wait for itself."""
    harness.scenario(LETTER.replace("send: {channel: email, template: note}", "call: halt"), "letter")

    @harness.scenarios.function("halt")
    async def halt(context: Any) -> None:
        async with asyncio.timeout(2):
            await harness.event("halt")

    await harness.leads.change(LEAD, share=3)
    await harness.event("go")
    await harness.pass_time("1h")
    assert (await harness.run("letter"))["status"] == "stopped"
    assert await harness.jobs("scenarios", "failed") == []


async def test_a_long_function_is_known_to_be_under_way(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(performing, "HOLD", 300)
    harness.scenario(LETTER.replace("send: {channel: email, template: note}", "call: long"), "letter")
    answers = []

    @harness.scenarios.function("long")
    async def long(context: Any) -> None:
        harness.app.clock._now += 300  # without a renewal it is over now
        await eventually(lambda: is_held(harness))
        answers.append(elsewhere(harness.scenarios.stop("letter", LEAD)))
        await eventually(lambda: is_stopped(harness))

    await harness.leads.change(LEAD, share=3)
    await harness.event("go")
    await harness.pass_time("1h")
    assert (await answers[0]).on_its_way == "one"


async def is_held(harness: Harness) -> bool:
    row = await harness.app.database.read(lambda c: store.latest(c, "letter", LEAD))
    return row is not None and store.is_held(row, harness.app.clock.now())


async def test_a_message_that_fails_for_good_after_the_stop_is_not_said_to_be_leaving(
    harness: Harness,
) -> None:
    await harness.event("go")

    async def leaving(_: Any) -> None:
        stopping.append(elsewhere(harness.scenarios.stop("letter", LEAD)))
        await eventually(lambda: is_stopped(harness))
        raise Unrecoverable("550 no such mailbox")

    stopping: list[asyncio.Task[Any]] = []
    harness.email.before = leaving
    await harness.pass_time("1h")
    answer = await stopping[0]
    assert (answer.on_its_way, answer.is_still_sending) == ("one", False)
    (line,) = await harness.steps("letter")
    assert line == ("one", "cancelled", "550 no such mailbox")


async def test_a_stop_between_writing_down_a_job_and_queueing_it_leaves_neither_job_nor_key(
    harness: Harness,
) -> None:
    do = Outbox._do

    async def late(self: Outbox, entry: Entry) -> None:
        if entry.kind == "job":
            await harness.scenarios.stop("letter", LEAD)
        await do(self, entry)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Outbox, "_do", late)
        await harness.event("go")
    assert await harness.jobs("scenarios") == []
    assert await harness.app.keys.get(f"letter:{LEAD}") is None


async def test_a_job_that_is_done_at_once_leaves_the_key_to_the_next_one(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is quicker than whoever has queued it."""
    remember = 'remember: {key: "letter:{{ lead.id }}", ttl: 48h}'
    quick = LETTER.replace("wait: 1h", "wait: 0s", 1).replace("wait: 1h}", f"wait: 1h, {remember}}}")
    harness.scenario(quick, "letter")
    await harness.leads.change(LEAD, share=3)
    add = Queue.add

    async def at_once(self: Queue, *given: Any, **options: Any) -> Any:
        job = await add(self, *given, **options)
        if job.name == "one":
            await harness.app.drain()
        return job

    monkeypatch.setattr(Queue, "add", at_once)
    await harness.event("go")
    (job,) = await harness.jobs("scenarios")
    assert job.name == "two"
    assert await harness.app.keys.get(f"letter:{LEAD}") == job.id
    await harness.check()


async def test_a_job_that_is_done_while_its_key_is_written_leaves_no_key(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.scenario(LETTER.replace("wait: 1h", "wait: 0s", 1), "letter")
    await harness.leads.change(LEAD, share=3)
    set_key = harness.app.keys.set

    async def late(*given: Any) -> None:
        await harness.app.drain()
        await set_key(*given)

    monkeypatch.setattr(harness.app.keys, "set", late)
    await harness.event("go")
    assert [step for step, state, _ in await harness.steps("letter") if state == "done"] == ["one"]
    assert await harness.app.keys.get(f"letter:{LEAD}") is None
    await harness.check()


async def test_a_job_that_is_queued_a_second_time_after_it_was_done_leaves_no_key(harness: Harness) -> None:
    """As by a sweeper that read the outbox before the first to queue it had cleared it."""
    outbox, follow, followed = harness.scenarios.outbox, Outbox.follow, []

    async def noted(self: Outbox, entries: Sequence[Entry]) -> None:
        followed.extend(entries)
        await follow(self, entries)

    await harness.leads.change(LEAD, share=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Outbox, "follow", noted)
        await harness.event("go")
    await harness.pass_time("1h")
    await outbox.follow(followed)
    assert await harness.app.keys.get(f"letter:{LEAD}") is None
    await harness.check()


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_letter_that_left_is_written_down_though_the_run_is_stopped_before_its_job_is_tried_again(
    harness: Harness, is_killed: bool
) -> None:
    """A process that was killed has not let go of the run either."""
    await harness.leads.change(LEAD, share=3)
    await harness.event("go")
    with pytest.MonkeyPatch.context() as patch:
        interrupt(harness, patch)
        if is_killed:
            patch.setattr(harness.scenarios.performer, "_went_wrong", AsyncMock())
        await harness.pass_time("1h")
        assert harness.letters() == ["note"]
        patch.setattr(scenario_engine, "STOP_TIMEOUT", 0)
        await harness.event("halt")
    assert await harness.app.keys.get(f"letter:{LEAD}") is None
    await harness.pass_time("1h")
    assert harness.letters() == ["note"]
    assert await harness.leads.log(LEAD) == ["4 each"]
    assert await harness.steps("letter") == [("one", "done", "it left before the run was stopped")]
    assert await harness.jobs("scenarios") == []
    await harness.check()


async def test_a_reminder_that_left_is_written_down_though_its_date_moves_before_its_job_is_tried_again(
    harness: Harness,
) -> None:
    harness.scenario(LETTER.replace("wait: 1h", "at: lead.date - 24h", 1), "letter")
    await harness.leads.change(LEAD, share=3, date=harness.ahead(days=2))
    await harness.event("go")
    with pytest.MonkeyPatch.context() as patch:
        interrupt(harness, patch)
        await harness.pass_time("1d")
    await harness.event("moved", fields={"date": harness.ahead(days=3)})
    await harness.pass_time("1h")
    assert await harness.steps("letter") == [("one", "done", "its date moved since"), ("one", "armed", None)]
    await harness.pass_time("3d")
    assert harness.letters() == ["note", "note"]
    assert await harness.leads.log(LEAD) == ["4 each", "4 each"]
    await harness.check()


def interrupt(harness: Harness, patch: pytest.MonkeyPatch) -> None:
    """What is done can't be written down."""

    def interrupted(*_: Any) -> None:
        raise Retryable("the database went away")

    patch.setattr(harness.scenarios.performer._writing, "complete", interrupted)


async def test_a_letter_that_did_not_leave_stays_cancelled_for_the_reason_of_the_stop(
    harness: Harness,
) -> None:
    await harness.event("go")
    harness.email.answers.append(Retryable("421 try again later"))
    await harness.pass_time("1h")
    await harness.event("halt")
    await harness.pass_time("1h")
    assert harness.letters() == []
    assert await harness.steps("letter") == [("one", "cancelled", "halt came")]
    assert await harness.jobs("scenarios") == []
    await harness.check()


async def test_one_event_ends_one_wait(harness: Harness) -> None:
    """And only events that came since the step before ended count."""
    waits = "\n".join(f"  - {{job: {job}, wait_for: {event}}}" for job, event in WAITS.items())
    text = f'scenario: waits\non: go\nentity: lead\nkey: "{{{{ lead.id }}}}"\nsteps:\n{waits}\n'
    harness.scenario(text, "waits")
    await harness.event("go")
    for event, pending in (("other", "one"), ("paid", "two"), ("paid", "three"), ("other", None)):
        await harness.event(event)
        assert (await harness.run("waits"))["step"] == pending
    done = [step for step, state, _ in await harness.steps("waits")]
    assert done == list(WAITS)


WAITS = {"one": "paid", "two": "paid", "three": "other"}


# ── Who can't be reached ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_lead_that_blocked_the_bot_is_reminded_by_mail(harness: Harness) -> None:
    harness.telegram.answers = [Unreachable("Forbidden: bot was blocked by the user")]
    await harness.event("lesson.booked", lesson_datetime=harness.ahead(days=2))
    await harness.pass_time("3d")
    assert harness.letters() == ["remind_24h", "remind_5h"]
    assert harness.chats() == []
    run = await harness.run("lesson_reminders")
    assert run["status"] == "finished"
    assert [line["effects"]["channel"] for line in run["timeline"]] == ["email", "email"]
    await harness.check()


async def test_a_chat_that_was_suppressed_before_is_passed_by(harness: Harness) -> None:
    await harness.app.notifications.suppressions.add("telegram", "777", "blocked")
    await harness.event("lesson.booked", lesson_datetime=harness.ahead(days=2))
    await harness.pass_time("3d")
    assert harness.letters() == ["remind_24h", "remind_5h"]


async def test_a_message_that_left_over_one_channel_does_not_leave_over_another(harness: Harness) -> None:
    """The letter left since the chat could not be reached, and the rest failed; then the chat was open again."""

    def interrupted(*_: Any) -> None:
        raise Retryable("the database went away")

    harness.telegram.answers = [Unreachable("Forbidden: bot was blocked by the user")]
    await harness.event("lesson.booked", lesson_datetime=harness.ahead(days=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.scenarios.performer._writing, "complete", interrupted)
        await harness.pass_time("1d")
    await harness.app.notifications.suppressions.remove("telegram", "777")
    await harness.pass_time("10m")
    assert (harness.letters(), harness.chats()) == (["remind_24h"], [])
    assert await harness.leads.log(LEAD) == ["REMINDER_24H_SENT"]
    await harness.check()


async def test_who_can_be_reached_nowhere_is_said(harness: Harness) -> None:
    for channel, address in (("telegram", "777"), ("email", "marat@example.com")):
        await harness.app.notifications.suppressions.add(channel, address, "gone")
    await harness.event("lesson.booked", lesson_datetime=harness.ahead(days=2))
    await harness.pass_time("3d")
    said = "suppressed: The address is suppressed: gone"
    assert [reason for _, _, reason in await harness.steps("lesson_reminders")] == [said, said]
