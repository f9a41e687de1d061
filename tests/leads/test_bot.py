"""The bot, driven by updates as Telegram sends them, against a Bot API server: what it says, in three languages."""

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.leads.messenger import (
    AISHA,
    GROUP,
    MARAT,
    WELCOME,
    Messenger,
    a_bot,
    keys,
    listener_of,
    person,
    private,
    stop,
)
from tests.leads.test_meetings import settings_of
from tests.services.chat import KEY, ChatServer
from tests.services.telegram import BotServer, refusal
from tests.services.webserver import Response
from tests.services.zoom import ZoomServer
from yamchi.errors import Snooze
from yamchi.leads.listening import LOOK_AGAIN, POLLER
from yamchi.testing.waiting import eventually

# ── From /start to a lesson ───────────────────────────────────────────────────────────────────────────────────────

FRIDAYS = {"ru": "пт, 2 янв.", "en": "Fri, 2 Jan", "kk": "жм, 2 қаң."}
TIMES = {
    "ru": "🕐 Выберите время, пятница, 2 января:",
    "en": "🕐 Choose a time on Friday, January 2:",
    "kk": "🕐 Уақытты таңдаңыз, 2 қаңтар, жұма:",
}
BACK = {"ru": "← Другой день", "en": "← Another day", "kk": "← Басқа күн"}
BOOKED = {
    "ru": ("🎉 Вы записаны на урок!", "пятница, 2 января, 16:00", "📅 Перенести"),
    "en": ("🎉 Your lesson is booked!", "Friday, January 2, 16:00", "📅 Reschedule"),
    "kk": ("🎉 Сіз сабаққа жазылдыңыз!", "2 қаңтар, жұма, 16:00", "📅 Ауыстыру"),
}


@pytest.mark.parametrize("locale", ["ru", "en", "kk"])
async def test_from_the_letter_to_a_lesson(telegram: Messenger, locale: str) -> None:
    harness = telegram.harness
    lead_id = await harness.lead(locale=locale)
    await harness.app.clock.advance("30m")
    (welcome,) = await telegram.say(MARAT, f"/start {lead_id}")
    assert welcome.fields["text"] == WELCOME[locale]
    assert keys(welcome)[1] == (FRIDAYS[locale], "day:2026-01-02")
    assert len(keys(welcome)) == 11  # two weeks without their weekends
    assert await harness.jobs("emailChain") == []
    assert await harness.app.keys.get(f"email_job:{lead_id}") is None

    times, _ = await telegram.press(MARAT, "day:2026-01-02")
    assert (times.method, times.fields["message_id"]) == ("editMessageText", 55)
    assert times.fields["text"] == TIMES[locale]
    assert [text for text, _ in keys(times)] == ["15:00", "16:00", "17:00", BACK[locale]]

    booked, answered = await telegram.press(MARAT, keys(times)[1][1])
    title, when, button = BOOKED[locale]
    assert title in booked.fields["text"]
    assert when in booked.fields["text"]
    assert keys(booked) == [(button, f"reschedule:{lead_id}")]
    assert answered.method == "answerCallbackQuery"
    lead = await harness.get(lead_id)
    assert (lead["lesson_datetime"], lead["status"], lead["tg_id"]) == (
        "2026-01-02T11:00:00Z",
        "LESSON_BOOKED",
        str(MARAT),
    )
    assert [job.name for job in await harness.jobs("reminders")] == ["remind24h"]


@pytest.mark.parametrize(
    ("locale", "day"),
    [("kz", FRIDAYS["kk"]), ("ru-RU", FRIDAYS["ru"]), ("en-US", "Fri, 2 Jan"), ("x", "Fri, 2 Jan")],
)
async def test_a_language_as_forms_write_it(telegram: Messenger, locale: str, day: str) -> None:
    lead_id = await telegram.harness.lead()
    await telegram.harness.client.patch(f"/v1/leads/{lead_id}", json={"locale": locale})
    (welcome,) = await telegram.say(MARAT, f"/start {lead_id}")
    assert (day, "day:2026-01-02") in keys(welcome)
    (times, _) = await telegram.press(MARAT, "day:2026-01-02")
    assert "16:00" in [text for text, _ in keys(times)]


REMINDER = {
    "ru": ("завтра у вас урок!", "понедельник, 5 января, 15:00", "Вы придёте?"),
    "en": ("your lesson is tomorrow!", "Monday, January 5, 15:00", "Will you be there?"),
    "kk": ("ертең сабағыңыз бар!", "5 қаңтар, дүйсенбі, 15:00", "Қатысасыз ба?"),
}
YES = {"ru": "✅ Да, буду!", "en": "✅ Yes, I'll be there!", "kk": "✅ Иә, қатысамын!"}
THANKS = {
    "ru": "✅ Спасибо, ждём вас!",
    "en": "✅ Thank you, see you there!",
    "kk": "✅ Рақмет, сізді күтеміз!",
}


@pytest.mark.parametrize("locale", ["ru", "en", "kk"])
async def test_reminders_are_answered_by_their_buttons(telegram: Messenger, locale: str) -> None:
    harness = telegram.harness
    lead_id = await telegram.start(locale=locale)
    await telegram.book("2026-01-05")
    await harness.app.clock.advance("4d")
    reminder = telegram.server.log[-1]
    assert [words for words in REMINDER[locale] if words not in reminder.fields["text"]] == []
    assert keys(reminder) == [
        (YES[locale], f"confirm:{lead_id}"),
        (BOOKED[locale][2], f"reschedule:{lead_id}"),
    ]
    answered, thanks = await telegram.press(MARAT, f"confirm:{lead_id}")
    assert answered.method == "answerCallbackQuery"
    assert THANKS[locale] in thanks.fields["text"]
    assert (await harness.get(lead_id))["confirmed"] is True
    before = len(telegram.server.log)
    await harness.app.clock.advance("20h")
    assert len(telegram.server.log) == before  # no reminder five hours before


MOVED = {
    "ru": "📅 Урок перенесён: теперь он четверг, 8 января, 15:00. Эта кнопка была для прежней даты.",
    "en": "📅 The lesson was moved: it is on Thursday, January 8, 15:00 now. This button was for the earlier date.",
    "kk": "📅 Сабақ ауыстырылды, жаңа уақыты: 8 қаңтар, бейсенбі, 15:00. Бұл түйме бұрынғы күнге арналған.",
}


async def test_a_sender_takes_no_event_of_the_bot(telegram: Messenger) -> None:
    """They may know the lead, and updates are numbered: what they make up must not be taken for what the bot tells."""
    harness = telegram.harness
    lead_id = await harness.lead()
    for number in range(1, 10):
        event = {"event_type": "made.up", "event_id": f"tg:{number}:{lead_id}"}
        assert (await harness.client.post("/v1/events", json=event)).status_code == 202
    await telegram.say(MARAT, f"/start {lead_id}")
    await telegram.book("2026-01-05")
    assert await harness.log(lead_id) == ["LEAD_CREATED", "BOT_ACTIVATED", "LESSON_BOOKED"]
    await telegram.press(MARAT, f"confirm:{lead_id}")
    assert (await harness.get(lead_id))["confirmed"] is True


@pytest.mark.parametrize("locale", ["ru", "en", "kk"])
async def test_a_reminder_of_a_date_that_was_moved_confirms_nothing(telegram: Messenger, locale: str) -> None:
    """As a link in a letter does not: who promised to come on Monday has not promised to come on Thursday."""
    harness = telegram.harness
    lead_id = await telegram.start(locale=locale)
    await telegram.book("2026-01-05")
    await harness.app.clock.advance("4d")
    old = len(telegram.server.log)
    assert keys(telegram.server.log[-1])[0] == (YES[locale], f"confirm:{lead_id}")
    await harness.client.patch(f"/v1/leads/{lead_id}", json={"lesson_datetime": "2026-01-08T15:00:00+05:00"})
    (refused,) = await telegram.press(MARAT, f"confirm:{lead_id}", under=old)
    assert (refused.method, refused.fields["text"]) == ("answerCallbackQuery", MOVED[locale])
    assert (await harness.get(lead_id))["confirmed"] is False
    await harness.app.clock.advance("3d")
    new = len(telegram.server.log)
    assert keys(telegram.server.log[-1])[0] == (YES[locale], f"confirm:{lead_id}")
    (refused,) = await telegram.press(MARAT, f"confirm:{lead_id}", under=old)
    assert refused.fields["text"] == MOVED[locale]
    _, thanks = await telegram.press(MARAT, f"confirm:{lead_id}", under=new)
    assert THANKS[locale] in thanks.fields["text"]
    assert (await harness.get(lead_id))["confirmed"] is True


@pytest.mark.parametrize("new", ["2026-01-08T15:00:00+05:00", None], ids=["moved", "cancelled"])
async def test_a_lesson_that_moves_while_it_is_confirmed_is_not_confirmed(
    telegram: Messenger, monkeypatch: pytest.MonkeyPatch, new: str | None
) -> None:
    harness = telegram.harness
    lead_id = await telegram.start(locale="en")
    await telegram.book("2026-01-05")
    await harness.app.clock.advance("4d")
    service, looked = harness.leads.service, harness.leads.service.has_moved_since

    async def look_and_move(lead_id: str, message: int) -> bool:
        found = await looked(lead_id, message)
        change = {"lesson_datetime": new}
        assert (await harness.client.patch(f"/v1/leads/{lead_id}", json=change)).status_code == 200
        return found

    monkeypatch.setattr(service, "has_moved_since", look_and_move)
    (refused,) = await telegram.press(MARAT, f"confirm:{lead_id}", under=len(telegram.server.log))
    assert (refused.method, refused.fields["text"] == MOVED["en"]) == ("answerCallbackQuery", new is not None)
    assert (await harness.get(lead_id))["confirmed"] is False
    assert "LESSON_CONFIRMED" not in await harness.log(lead_id)
    assert len(await harness.jobs("reminders")) == (0 if new is None else 1)  # of the new date


MOVE = {
    "ru": "📅 На какой день перенести урок?",
    "en": "📅 Which day shall we move the lesson to?",
    "kk": "📅 Сабақты қай күнге ауыстырамыз?",
}


@pytest.mark.parametrize("locale", ["ru", "en", "kk"])
async def test_moving_a_lesson(telegram: Messenger, locale: str) -> None:
    harness = telegram.harness
    lead_id = await telegram.start(locale=locale)
    await telegram.book("2026-01-05")
    _, days = await telegram.press(MARAT, f"reschedule:{lead_id}")
    assert days.fields["text"] == MOVE[locale]
    await telegram.book("2026-01-06")
    assert (await harness.get(lead_id))["lesson_datetime"] == "2026-01-06T10:00:00Z"
    (job,) = await harness.jobs("reminders")
    assert job.data["lessonDate"] == "2026-01-06"
    times, _ = await telegram.press(MARAT, "day:2026-01-05")
    assert keys(times)[0][0] == "15:00"  # the old time is free again


async def test_a_restart_in_the_middle_of_a_dialogue(tmp_path: Path, server: BotServer) -> None:
    """What a dialogue needs is in its buttons, the lead and the key store: another process goes on with it."""
    async with a_bot(tmp_path, server) as before:
        lead_id = await before.start()
        times, _ = await before.press(MARAT, "day:2026-01-05")
    async with a_bot(tmp_path, server) as after:
        after._turn = count(100)
        booked, _ = await after.press(MARAT, keys(times)[0][1])
        assert BOOKED["ru"][0] in booked.fields["text"]
        assert (await after.harness.get(lead_id))["lesson_datetime"] == "2026-01-05T10:00:00Z"


JUST_TAKEN = {
    "ru": "😔 Это время только что заняли.",
    "en": "😔 Somebody has just taken that time.",
    "kk": "😔 Бұл уақытты жаңа ғана алып қойды.",
}


@pytest.mark.parametrize("locale", ["ru", "en", "kk"])
async def test_two_people_tap_the_same_time(telegram: Messenger, locale: str) -> None:
    harness = telegram.harness
    first = await harness.lead(locale=locale)
    second = await harness.lead(locale=locale, tranid="3", phone="8 702 111 22 33")
    await telegram.say(MARAT, f"/start {first}")
    await telegram.say(AISHA, f"/start {second}")
    times, _ = await telegram.press(MARAT, "day:2026-01-02")
    slot = keys(times)[0][1]
    chosen = [
        {
            "id": str(who),
            "from": person(who, "ru"),
            "message": {"message_id": 5, "chat": private(who)},
            "data": slot,
        }
        for who in (MARAT, AISHA)
    ]
    await asyncio.gather(
        *(
            telegram.send({"update_id": 900 + number, "callback_query": one})
            for number, one in enumerate(chosen)
        )
    )
    leads = [await harness.get(one) for one in (first, second)]
    assert sorted(str(lead["lesson_datetime"]) for lead in leads) == ["2026-01-02T10:00:00Z", "None"]
    told = [sent.fields["text"] for sent in telegram.server.log if sent.method == "editMessageText"][-2:]
    assert sum(BOOKED[locale][0] in text for text in told) == 1
    assert sum(JUST_TAKEN[locale] in text for text in told) == 1


async def test_who_taps_two_times_in_a_row_has_one_lesson(
    telegram: Messenger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second tap is handled when the first is booked, so that neither takes away what the other has told of."""
    harness, bot = telegram.harness, telegram.harness.leads.bot
    assert bot is not None
    lead_id = await telegram.start()
    times, _ = await telegram.press(MARAT, "day:2026-01-02")
    (_, first), (_, second), *_ = keys(times)
    tell, snoozed = harness.leads.service.tell, []

    async def slowly(*told: Any, **data: Any) -> bool:
        if not snoozed:
            with pytest.raises(Snooze) as found:
                await bot.handle(pressed(902, second))
            snoozed.append(found)
        return await tell(*told, **data)

    monkeypatch.setattr(harness.leads.service, "tell", slowly)
    await bot.handle(pressed(901, first))
    assert (await harness.get(lead_id))["lesson_datetime"] == "2026-01-02T10:00:00Z"
    await bot.handle(pressed(902, second))
    assert (await harness.get(lead_id))["lesson_datetime"] == "2026-01-02T11:00:00Z"
    assert await harness.log(lead_id) == [
        "LEAD_CREATED",
        "BOT_ACTIVATED",
        "LESSON_BOOKED",
        "LESSON_RESCHEDULED",
    ]


async def test_a_tap_that_is_tried_again_takes_nothing_back(telegram: Messenger) -> None:
    """Its answer did not get through, and the lesson has moved since: the time that it has now stays taken."""
    harness = telegram.harness
    first, second = await harness.lead(), await harness.lead(tranid="3", phone="8 702 111 22 33")
    await telegram.say(MARAT, f"/start {first}")
    await telegram.say(AISHA, f"/start {second}")
    times, _ = await telegram.press(MARAT, "day:2026-01-02")
    (_, early), (_, late), *_ = keys(times)
    telegram.server.answers.append(refusal(429, "Too Many Requests: retry after 7", retry_after=7))
    await telegram.press(MARAT, early)
    await telegram.press(MARAT, late)
    await harness.app.clock.advance("10m")
    assert (await harness.get(first))["lesson_datetime"] == "2026-01-02T11:00:00Z"
    told = [sent for sent in telegram.server.messages if sent.method == "editMessageText"][-1]
    assert "пятница, 2 января, 16:00" in told.fields["text"]
    times, _ = await telegram.press(AISHA, "day:2026-01-02")
    assert [text for text, _ in keys(times)] == ["15:00", "17:00", BACK["ru"]]
    await telegram.press(AISHA, late)
    assert (await harness.get(second))["lesson_datetime"] is None


async def test_a_tap_that_is_tried_again_after_the_lesson_was_cancelled(telegram: Messenger) -> None:
    harness = telegram.harness
    lead_id = await telegram.start()
    times, _ = await telegram.press(MARAT, "day:2026-01-02")
    (_, slot), *_ = keys(times)
    telegram.server.answers.append(refusal(429, "Too Many Requests: retry after 7", retry_after=7))
    await telegram.press(MARAT, slot)
    await harness.client.patch(f"/v1/leads/{lead_id}", json={"lesson_datetime": None})
    await harness.app.clock.advance("10m")
    assert (await harness.app.queue("telegram-updates").counts())["failed"] == 0
    other = await harness.lead(tranid="3", phone="8 702 111 22 33")
    await telegram.say(AISHA, f"/start {other}")
    times, _ = await telegram.press(AISHA, "day:2026-01-02")
    assert (slot, "15:00") in [(data, text) for text, data in keys(times)]


def pressed(update_id: int, data: str) -> dict[str, Any]:
    message = {"message_id": 5, "chat": private(MARAT)}
    query = {"id": str(update_id), "from": person(MARAT, "ru"), "message": message, "data": data}
    return {"update_id": update_id, "callback_query": query}


async def test_times_that_are_not_offered(telegram: Messenger) -> None:
    lead_id = await telegram.start()
    for slot in (
        "slot:1",
        "slot:29500000",
        "slot:99999999999",
        "slot:-5",
        "slot:x",
        "day:never",
        "what:ever",
        "day:0001-01-01",
    ):
        await telegram.press(MARAT, slot)
    assert (await telegram.harness.get(lead_id))["lesson_datetime"] is None


# ── Who may what ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_shared_contact_finds_the_lead(telegram: Messenger) -> None:
    lead_id = await telegram.harness.lead()
    (asked,) = await telegram.say(MARAT, "/start", language="en")
    assert asked.fields["text"].startswith("👋 Hello! Send your number")
    ((button,),) = asked.fields["reply_markup"]["keyboard"]
    assert button == {"text": "📱 Send my number", "request_contact": True}
    (refused,) = await telegram.say(AISHA, "", contact={"phone_number": "77010000000", "user_id": MARAT})
    assert refused.fields["text"] == "⛔ Это не ваша заявка."
    assert (await telegram.harness.get(lead_id))["tg_id"] is None
    (unknown,) = await telegram.say(AISHA, "", contact={"phone_number": "77029999999", "user_id": AISHA})
    assert "Не нахожу вашу заявку" in unknown.fields["text"]
    (welcome,) = await telegram.say(MARAT, "", contact={"phone_number": "77010000000", "user_id": MARAT})
    assert welcome.fields["text"] == WELCOME["ru"]
    assert (await telegram.harness.get(lead_id))["bot_activated"] is True


NOT_YOURS = {
    "ru": "⛔ Это не ваша заявка.",
    "en": "⛔ This is not your request.",
    "kk": "⛔ Бұл сіздің өтініміңіз емес.",
}


@pytest.mark.parametrize("locale", ["ru", "en", "kk"])
async def test_a_forged_button_is_refused(telegram: Messenger, locale: str) -> None:
    harness = telegram.harness
    lead_id = await telegram.start()
    await telegram.book("2026-01-05")
    for data in (
        f"confirm:{lead_id}",
        f"reschedule:{lead_id}",
        f"taken:{lead_id}",
        "slot:29460000",
        "confirm:",
    ):
        (answered,) = await telegram.press(AISHA, data, language=locale)
        assert (answered.method, answered.fields["text"]) == ("answerCallbackQuery", NOT_YOURS[locale])
    (refused,) = await telegram.say(AISHA, f"/start {lead_id}", language=locale)
    assert refused.fields["text"] == NOT_YOURS[locale]
    lead = await harness.get(lead_id)
    assert (lead["confirmed"], lead["tg_id"], lead["taken_by"]) == (False, str(MARAT), None)


OVER = {
    "ru": "Этого урока больше нет. Чтобы выбрать время, отправьте /start.",
    "en": "This lesson is no more. To choose a time, send /start.",
    "kk": "Бұл сабақ енді жоқ. Уақыт таңдау үшін /start жіберіңіз.",
}


@pytest.mark.parametrize("locale", ["ru", "en", "kk"])
async def test_a_lesson_that_is_over_can_not_be_confirmed(telegram: Messenger, locale: str) -> None:
    lead_id = await telegram.start(locale=locale)
    (answered,) = await telegram.press(MARAT, f"confirm:{lead_id}")
    assert answered.fields["text"] == OVER[locale]


ALERT = {
    "ru": """📞 <b>Нужен звонок</b>

Клиент получил два письма, но так и не открыл бота.

<b>Имя:</b> Марат
<b>Телефон:</b> +77010000000
<b>Почта:</b> marat@example.com
<b>Заявка:</b> <code>{lead}</code>""",
    "en": """📞 <b>Please call</b>

This lead got two letters and never opened the bot.

<b>Name:</b> Марат
<b>Phone:</b> +77010000000
<b>E-mail:</b> marat@example.com
<b>Lead:</b> <code>{lead}</code>""",
    "kk": """📞 <b>Қоңырау шалу керек</b>

Клиент екі хат алды, бірақ ботты ашпады.

<b>Аты:</b> Марат
<b>Телефоны:</b> +77010000000
<b>Поштасы:</b> marat@example.com
<b>Өтінім:</b> <code>{lead}</code>""",
}
TAKE = {"ru": "☎️ Беру", "en": "☎️ I'll call", "kk": "☎️ Мен қоңырау шаламын"}
TAKEN = {"ru": "✋ Звонит Айша", "en": "✋ Айша is calling", "kk": "✋ Айша қоңырау шалады"}


@pytest.mark.parametrize(
    ("locale", "settings", "form"),
    [
        ("ru", {}, {}),
        ("en", {"lead_locale": "en"}, {}),
        ("kk", {}, {"locale": "kk"}),
        ("ru", {"telegram_admin_locale": "ru"}, {"locale": "en"}),
        ("en", {"telegram_admin_locale": "en"}, {"locale": "kk"}),
        ("kk", {"telegram_admin_locale": "kk"}, {}),
    ],
)
async def test_the_first_of_the_team_takes_the_call(
    tmp_path: Path, server: BotServer, locale: str, settings: dict[str, Any], form: dict[str, str]
) -> None:
    """The team's chat has a language; without one it is the lead's."""
    async with a_bot(tmp_path, server, **settings) as telegram:
        await check_taking(telegram, await telegram.harness.lead(**form), locale)


async def check_taking(telegram: Messenger, lead_id: str, locale: str) -> None:
    harness = telegram.harness
    await harness.app.clock.advance("49h")
    alert = telegram.server.log[-1]
    assert (alert.chat, keys(alert)) == (GROUP, [(TAKE[locale], f"taken:{lead_id}")])
    assert alert.fields["text"] == ALERT[locale].format(lead=lead_id)
    answered, edited = await telegram.press(AISHA, f"taken:{lead_id}", chat=GROUP)
    assert answered.fields["text"] == TAKEN[locale]
    assert keys(edited) == [(f"{TAKEN[locale]} · 06:00", f"taken:{lead_id}")]
    answered, _ = await telegram.press(MARAT, f"taken:{lead_id}", chat=GROUP)
    assert answered.fields["text"] == TAKEN[locale]
    lead = await harness.get(lead_id)
    assert (lead["taken_by"], lead["taken_at"]) == ("Айша", "2026-01-03T01:00:00Z")
    assert (await harness.log(lead_id))[-1] == "CALL_TAKEN"


# ── Updates ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_update_is_handled_once(telegram: Messenger) -> None:
    lead_id = await telegram.harness.lead()
    message = {"from": person(MARAT, "ru"), "chat": private(MARAT), "text": f"/start {lead_id}"}
    for _ in range(3):
        assert await telegram.send({"update_id": 7, "message": message}) == 200
    assert len(telegram.server.log) == 1


async def test_what_telegram_can_not_take_now_is_tried_again(telegram: Messenger) -> None:
    lead_id = await telegram.harness.lead()
    telegram.server.answers.append(refusal(429, "Too Many Requests: retry after 7", retry_after=7))
    (refused,) = await telegram.say(MARAT, f"/start {lead_id}")
    assert refused.status == 429
    await telegram.harness.app.clock.advance("10m")
    assert telegram.server.texts(str(MARAT)) == [WELCOME["ru"]]


async def test_a_wrong_word_and_what_is_no_update(telegram: Messenger) -> None:
    for word in (None, "", "wrong", "x" * 300):
        assert await telegram.send({"update_id": 1}, word) == 403
    assert await telegram.send({"hello": 1}) == 422
    for odd in (
        {"message": "text"},
        {"message": {"from": {"id": "x"}, "chat": 5}},
        {"callback_query": {"from": person(MARAT, "ru")}},
        {"message": {"from": person(MARAT, "ru"), "chat": {"id": -5, "type": "group"}, "text": "hello"}},
    ):
        assert await telegram.update(**odd) == 200
    assert telegram.server.log == []


async def test_free_text_gets_a_polite_answer(telegram: Messenger) -> None:
    (said,) = await telegram.say(MARAT, "Сколько стоит урок?", language="kk")
    assert said.fields["text"].startswith("Хабарламаңызға рақмет!")


async def test_a_person_who_blocked_the_bot_is_no_failure(telegram: Messenger) -> None:
    lead_id = await telegram.harness.lead()
    telegram.server.refusals[str(MARAT)] = refusal(403, "Forbidden: bot was blocked by the user")
    await telegram.say(MARAT, f"/start {lead_id}")
    assert (await telegram.harness.get(lead_id))["bot_activated"] is True
    assert (await telegram.harness.app.queue("telegram-updates").counts())["failed"] == 0


async def test_asking_for_updates(tmp_path: Path, server: BotServer) -> None:
    async with a_bot(tmp_path, server, telegram_bot="polling") as telegram:
        lead_id = await telegram.harness.lead()
        message = {"from": person(MARAT, "ru"), "chat": private(MARAT), "text": f"/start {lead_id}"}
        server.updates = [{"update_id": 41, "message": message}]
        polling = asyncio.create_task(listener_of(telegram).poll())
        await eventually(lambda: server.updates == [])
        await stop(polling)
        await telegram.harness.app.drain()
        assert server.texts(str(MARAT)) == [WELCOME["ru"]]


async def test_one_process_asks_for_updates_and_takes_the_webhook_back(
    tmp_path: Path, server: BotServer
) -> None:
    """Telegram answers 409 to whoever asks while a webhook is set, and to the second who asks."""
    settings = {"telegram_bot": "polling", "database_url": f"sqlite:///{tmp_path}/shared.db"}
    server.webhook = "https://old.example/telegram"
    server.updates = [{"update_id": 41}]
    async with (
        a_bot(tmp_path, server, **settings) as first,
        a_bot(tmp_path, server, **settings) as second,
    ):
        polling = {one: asyncio.create_task(listener_of(one).poll()) for one in (first, second)}
        await eventually(lambda: server.updates == [])
        assert server.webhook == ""
        await eventually(lambda: any(one.harness.app.clock.sleepers for one in polling))
        (asking,) = (one for one in polling if listener_of(one)._holds.has(POLLER))
        (waiting,) = (one for one in polling if one.harness.app.clock.sleepers)
        assert asking is not waiting
        await stop(polling[asking])
        await waiting.harness.app.clock.advance(LOOK_AGAIN / 1000)
        server.updates = [{"update_id": 42}]
        await eventually(lambda: server.updates == [])
        await stop(polling[waiting])


# ── Answers by a model ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def model() -> Iterator[ChatServer]:
    with ChatServer() as server:
        yield server


async def test_a_model_answers_with_what_was_said_before(
    tmp_path: Path, server: BotServer, model: ChatServer
) -> None:
    settings = {"ai_url": f"{model.origin}/v1", "ai_key": KEY, "ai_hourly_limit": 3}
    async with a_bot(tmp_path, server, **settings) as telegram:
        keys_of = telegram.harness.app.keys
        model.answers += ["<b>500</b> & <script>", "Yes"]
        (said,) = await telegram.say(MARAT, "Сколько стоит?")
        assert said.fields["text"] == "&lt;b&gt;500&lt;/b&gt; &amp; &lt;script&gt;"
        await telegram.say(MARAT, "Sure?")
        roles = [(one["role"], one["content"]) for one in model.asked[-1]["messages"][1:]]
        assert roles == [
            ("user", "Сколько стоит?"),
            ("assistant", "<b>500</b> & <script>"),
            ("user", "Sure?"),
        ]
        model.answers.append(Response(503, b"Loading model"))
        (said,) = await telegram.say(MARAT, "Hello?")
        assert said.fields["text"].startswith("Спасибо за сообщение!")
        (said,) = await telegram.say(MARAT, "Hello?")
        assert said.fields["text"].startswith("Вы задали много вопросов подряд")
        assert len(model.asked) == 3
        assert await keys_of.get(f"ai_rate:{MARAT}") == "4"
        await telegram.harness.app.clock.advance("61m")
        assert len(await telegram.say(MARAT, "Again")) == 1
        assert len(model.asked) == 4
        await telegram.harness.app.clock.advance("25h")
        assert await keys_of.get(f"ai_history:{MARAT}") is None


async def test_the_link_of_the_meeting_follows(tmp_path: Path, server: BotServer) -> None:
    with ZoomServer() as meetings:
        async with a_bot(tmp_path, server, **settings_of(meetings)) as telegram:
            lead_id = await telegram.start()
            sent = await telegram.book("2026-01-05")
            (link,) = [one for one in sent if "Ссылка на ваш урок готова" in one.fields.get("text", "")]
            assert (await telegram.harness.get(lead_id))["zoom_link"] in link.fields["text"]
