"""What one person can't do to the bot: silence it, occupy it, open a lead by trying ids."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid5

import pytest

from tests.leads.harness import Harness, open_harness
from tests.leads.messenger import AISHA, MARAT, WELCOME, Messenger, a_bot, keys, listener_of, stop
from tests.services.chat import KEY, ChatServer
from tests.services.telegram import BotServer
from yamchi.leads import chat
from yamchi.leads.contacts import SPACE
from yamchi.leads.welcome import MOST_WRONG
from yamchi.queues.job import Job
from yamchi.testing.waiting import eventually

# ── Updates ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("most", [chat.MAX_UPDATES_BYTES, 100_000])
async def test_long_messages_do_not_silence_the_bot(
    tmp_path: Path, server: BotServer, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Fifty of the longest are more than a megabyte; whatever is too much at once is had one by one."""
    monkeypatch.setattr(chat, "MAX_UPDATES_BYTES", most)
    async with a_bot(tmp_path, server, telegram_bot="polling") as telegram:
        server.updates = [
            {"update_id": number, "channel_post": {"text": "ж" * 4096}} for number in range(1, 51)
        ]
        polling = asyncio.create_task(listener_of(telegram).poll())
        await eventually(lambda: server.updates == [] or polling.done())
        assert not polling.done()
        await stop(polling)
        assert (await telegram.harness.app.queue("telegram-updates").counts())["waiting"] == 50


async def test_an_update_that_no_job_can_hold_is_left_out(tmp_path: Path, server: BotServer) -> None:
    async with a_bot(tmp_path, server, telegram_bot="polling") as telegram:
        server.updates = [
            {"update_id": 1, "message": {"text": "ж" * 700_000}},
            {"update_id": 2, "message": {"text": "after it"}},
        ]
        polling = asyncio.create_task(listener_of(telegram).poll())
        await eventually(lambda: server.updates == [] or polling.done())
        assert not polling.done()
        await stop(polling)
        (kept,) = await telegram.harness.app.queue("telegram-updates").jobs("waiting")
        assert kept.id == "tg-2"


async def test_who_waits_for_the_model_holds_it_and_nothing_else(
    tmp_path: Path, server: BotServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the queue's slots are lent to others while the model thinks."""
    model = ChatServer()
    model.start()
    held = []

    @contextmanager
    def hold(job: object, name: str) -> Iterator[None]:
        before = len(model.asked)
        yield
        held.append((name, len(model.asked) - before))

    monkeypatch.setattr(Job, "holding", hold)
    try:
        async with a_bot(tmp_path, server, ai_url=f"{model.origin}/v1", ai_key=KEY) as telegram:
            await telegram.say(MARAT, "Сколько стоит?")
            assert held == [("ai", 1)]
            await telegram.say(MARAT, "/start")
            assert held == [("ai", 1)]
    finally:
        model.stop()


# ── The id of a lead ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_leads_id_can_not_be_worked_out(
    telegram: Messenger, tmp_path: Path, server: BotServer
) -> None:
    lead_id = await telegram.harness.lead(tranid="12:34")
    await telegram.say(AISHA, f"/start {uuid5(SPACE, 'tilda:12:34')}")
    assert (await telegram.harness.get(lead_id))["tg_id"] is None
    async with a_bot(tmp_path / "another", server) as another:
        assert await another.harness.lead(tranid="12:34") != lead_id


async def test_a_form_is_known_again_after_the_key_has_changed(tmp_path: Path) -> None:
    async with open_harness(tmp_path, secret_key="a-secret-key-of-32-characters-001") as before:
        lead_id = await before.lead()
    async with open_harness(tmp_path, secret_key="a-secret-key-of-32-characters-002") as after:
        assert await after.lead() == lead_id
        assert await after.leads.store.count() == 1


async def test_a_lead_that_was_there_before_ids_were_secret_is_found(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        old = str(uuid5(SPACE, "tilda:1:2"))
        await harness.event("lead.created", old, f"lead.created:{old}", email="marat@example.com")
        assert await harness.lead() == old
        assert await harness.leads.store.count() == 1


async def test_who_tries_one_id_after_the_other_is_told_to_wait(telegram: Messenger) -> None:
    lead_id = await telegram.harness.lead()
    for number in range(MOST_WRONG):
        (asked,) = await telegram.say(AISHA, f"/start guess-{number}")
        assert "keyboard" in asked.fields["reply_markup"]
    (refused,) = await telegram.say(AISHA, f"/start {lead_id}")
    assert refused.fields["text"].endswith("через час.")
    (welcome,) = await telegram.say(MARAT, f"/start {lead_id}")
    assert welcome.fields["text"] == WELCOME["ru"]
    await telegram.harness.app.clock.advance("61m")
    (not_theirs,) = await telegram.say(AISHA, f"/start {lead_id}")
    assert not_theirs.fields["text"] == "⛔ Это не ваша заявка."


# ── The school's clock ────────────────────────────────────────────────────────────────────────────────────────────


async def test_reminders_name_the_hour_that_the_bot_named(tmp_path: Path, server: BotServer) -> None:
    clocks = {"default_timezone": "UTC", "lesson_timezone": "Asia/Almaty"}
    async with a_bot(tmp_path, server, **clocks) as telegram:
        harness: Harness = telegram.harness
        lead_id = await telegram.start()
        booked, _ = await telegram.book("2026-01-05")
        assert "15:00" in booked.fields["text"]
        (job,) = await harness.jobs("reminders")
        assert (job.data["lessonTime"], job.data["lessonDatetime"]) == ("15:00", "2026-01-05T10:00:00Z")
        await harness.app.clock.advance("4d")
        assert "15:00" in server.log[-1].fields["text"]
        await harness.client.patch(f"/v1/leads/{lead_id}", json={"lesson_datetime": "2026-01-07T16:00"})
        assert (await harness.get(lead_id))["lesson_datetime"] == "2026-01-07T11:00:00Z"


# ── Many days ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_days_far_ahead_are_on_further_pages(tmp_path: Path, server: BotServer) -> None:
    async with a_bot(tmp_path, server, lesson_ahead=60) as telegram:
        lead_id = await telegram.harness.lead()
        (page,) = await telegram.say(MARAT, f"/start {lead_id}")
        offered = [data for _, data in keys(page)]
        assert (len(offered), offered[-1]) == (15, "days:1")
        while (turned := keys(page)[-1])[0] == "»":
            page, _ = await telegram.press(MARAT, turned[1])
            assert page.method == "editMessageText"
            offered += [data for _, data in keys(page)]
        days = [data for data in offered if data.startswith("day:")]
        assert days == sorted(set(days))
        assert (len(days), days[0], days[-1]) == (43, "day:2026-01-01", "day:2026-03-02")
        assert keys(page)[-1] == ("«", "days:2")
        for odd in ("days:999", "days:x", "days:-1", "days:" + "9" * 50):
            (page, _) = await telegram.press(MARAT, odd)
            assert keys(page)
