"""Telegram with a real Bot API server: what it is sent, what its answers mean, and that limits hold across processes."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest

from tests.notifications.conftest import USER
from tests.processes import Process
from tests.services.telegram import TOKEN, BotServer, refusal
from yamchi import Yamchi
from yamchi.errors import Outage, Snooze
from yamchi.notifications.channels.base import Attachment, Message
from yamchi.notifications.channels.circuits import SOURCES_TO_OPEN
from yamchi.notifications.channels.telegram import telegram_html
from yamchi.notifications.channels.telegram.channel import TelegramChannel
from yamchi.notifications.people.recipients import User
from yamchi.notifications.schemas.notification_job import DirectMessage
from yamchi.notifications.templates.model import Button, Rendered
from yamchi.queues.newjobs import New
from yamchi.queues.records import NewJob
from yamchi.settings import Settings
from yamchi.testing import TestApp, eventually

CHAT = "1001"
GROUP = "-100777"
APPLICATION = Path(__file__).with_name("app.py")
TIMEOUT_SECONDS = 100.0


@pytest.fixture
def bot() -> Iterator[BotServer]:
    with BotServer() as server:
        yield server


@pytest.fixture
async def app(bot: BotServer, tmp_path: Path) -> AsyncIterator[TestApp]:
    app = TestApp(
        home=tmp_path,
        telegram_bot_token=TOKEN,
        telegram_api_url=bot.origin,
        telegram_admin_group_id=GROUP,
    )
    bot.clock = lambda: app.clock.now() / 1000
    app.notifications.serve()
    await app.notifications.recipients.put(USER, User(telegram_id=CHAT, locale="en"))
    yield app
    await app.close()


def job(template: str = "payment_failed", **fields: Any) -> dict[str, Any]:
    given = {
        "job_id": str(uuid4()),
        "user_id": USER,
        "channel": "telegram",
        "template_code": template,
        "locale": "en",
        "data": {"amount": "12990.00", "retry_url": "https://example.com/42"},
        "meta": {"event_type": "payment.canceled", "event_id": "e-1"},
        "created_at": "2025-11-14T12:35:10Z",
    }
    return {**given, **fields}


def direct(to: str = CHAT, **options: Any) -> dict[str, Any]:
    return {"job_id": str(uuid4()), "channel": "telegram", "options": {"to": to, **options}}


async def put(app: TestApp, *messages: dict[str, Any]) -> None:
    new = [NewJob(message["job_id"], "send", orjson.dumps(message)) for message in messages]
    await app.notifications.queue.engine.add("notifications", new)


async def delivery(app: TestApp, message: dict[str, Any]) -> dict[str, Any]:
    return await app.notifications.deliveries.get(message["job_id"])


async def test_a_message_with_tags_and_buttons(app: TestApp, bot: BotServer) -> None:
    message = job(
        data={"amount": "12990.00", "reason": "<script> & co", "retry_url": "https://example.com/42"}
    )
    await put(app, message)
    await app.drain()
    found = await delivery(app, message)
    assert (found["status"], found["provider_message_id"]) == ("SENT", "1")
    (sent,) = bot.messages
    assert sent.fields["parse_mode"] == "HTML"
    assert "<b>Payment failed</b>" in sent.fields["text"]
    assert "&lt;script&gt; &amp; co" in sent.fields["text"]
    assert sent.fields["reply_markup"] == {
        "inline_keyboard": [[{"text": "🔁 Try again", "url": "https://example.com/42"}]]
    }


async def test_a_plain_text_is_escaped_and_the_admin_group_has_a_name(app: TestApp, bot: BotServer) -> None:
    await put(app, direct("admin_group", subject="1 < 2", text="<b>not bold</b> & so on"))
    await app.drain()
    (sent,) = bot.messages
    assert sent.chat == GROUP
    assert sent.fields["text"] == "<b>1 &lt; 2</b>\n\n&lt;b&gt;not bold&lt;/b&gt; &amp; so on"


@pytest.mark.parametrize("result", [None, True, {"chat": {"id": 1001}}])
async def test_a_message_that_was_taken_without_an_id_is_sent_once(
    app: TestApp, bot: BotServer, monkeypatch: pytest.MonkeyPatch, result: Any
) -> None:
    """As servers that only imitate the Bot API answer."""
    ask = bot._answer
    monkeypatch.setattr(bot, "_answer", lambda *asked: ask(*asked) and (200, {"ok": True, "result": result}))
    message = job()
    await put(app, message)
    await app.clock.advance("1m")
    assert bot.by_chat() == {CHAT: 1}
    found = await delivery(app, message)
    assert (found["status"], found["provider_message_id"]) == ("SENT", None)


async def test_a_long_text_arrives_in_parts_and_none_twice(app: TestApp, bot: BotServer) -> None:
    words = "слово 😀 " * 1_500
    message = direct(html=f"<b>{words}</b> <i>end</i>")
    bot.answers.extend([(200, {"ok": True}), refusal(502, "Bad Gateway")])
    await put(app, message)
    await app.clock.advance("1m")
    texts = bot.texts(CHAT)
    assert len(texts) == 4
    assert "".join(telegram_html.read(text)[0].text for text in texts).replace(" ", "") == words.replace(
        " ", ""
    )
    assert all(text.startswith("<b>") for text in texts)
    assert texts[-1].endswith("</b> <i>end</i>")


async def send(app: TestApp, message: Message) -> None:
    """As a worker does it: come back when told to."""
    while True:
        await app.clock.advance("1s")
        try:
            await app.notifications.channels["telegram"].send(message)
        except Snooze:
            continue
        return


async def test_pictures_and_documents(app: TestApp, bot: BotServer) -> None:
    photo = Attachment("a.png", b"\x89PNG", "image/png")
    report = Attachment("r.pdf", b"%PDF", "application/pdf")
    look = Rendered("Look", html="<b>Look</b>", buttons=((Button("Open", callback="open:1"),),))
    await send(app, Message("1", "1", look, attachments=[photo]))
    (sent,) = bot.messages
    assert (sent.method, sent.file, sent.fields["caption"]) == ("sendPhoto", b"\x89PNG", "<b>Look</b>")
    assert orjson.loads(sent.fields["reply_markup"]) == {
        "inline_keyboard": [[{"text": "Open", "callback_data": "open:1"}]]
    }
    links = Rendered("Read it", image="https://example.com/p.jpg", document="https://example.com/d.pdf")
    await send(app, Message("2", "2", links, attachments=[report]))
    assert [(one.method, one.file) for one in bot.messages[1:]] == [
        ("sendPhoto", None),
        ("sendDocument", None),
        ("sendDocument", b"%PDF"),
        ("sendMessage", None),
    ]
    assert bot.messages[1].fields["photo"] == "https://example.com/p.jpg"


@pytest.mark.parametrize(
    "said", ["bot was blocked by the user", "user is deactivated", "bot was kicked from the group chat"]
)
async def test_a_bot_that_was_blocked_is_remembered(app: TestApp, bot: BotServer, said: str) -> None:
    bot.refusals[CHAT] = refusal(403, f"Forbidden: {said}")
    first, second = job(), job()
    await put(app, first)
    await app.drain()
    found = await delivery(app, first)
    assert (found["status"], found["last_error"]) == ("FAILED", f"403 Forbidden: {said}")
    await put(app, second)
    await app.clock.advance("1h")
    assert len(bot.log) == 1
    assert (await delivery(app, second))["status"] in ("FAILED", "SUPPRESSED")


async def test_a_chat_that_never_existed(app: TestApp, bot: BotServer) -> None:
    bot.refusals[CHAT] = refusal(400, "Bad Request: chat not found")
    message = job()
    await put(app, message)
    await app.clock.advance("1h")
    found = await delivery(app, message)
    assert (found["status"], found["attempts"]) == ("FAILED", 1)
    assert found["last_error"] == "400 Bad Request: chat not found"
    assert len(bot.log) == 1


async def test_a_group_that_moved_is_followed(app: TestApp, bot: BotServer) -> None:
    bot.refusals[GROUP] = refusal(400, "Bad Request: group chat was upgraded", migrate_to_chat_id=-100999)
    await put(app, direct("admin_group", text="Hello"))
    await app.drain()
    assert bot.by_chat() == {"-100999": 1}


async def test_a_pause_that_telegram_asks_for_costs_no_attempt(app: TestApp, bot: BotServer) -> None:
    bot.answers.append(refusal(429, "Too Many Requests: retry after 3600", retry_after=3_600))
    messages = [job() for _ in range(3)]
    began = app.clock.now() / 1000
    await put(app, *messages)
    await app.clock.advance("59m")
    assert len(bot.log) == 1
    await app.clock.advance("2m")
    assert len(bot.messages) == 3
    assert min(sent.at for sent in bot.messages) >= began + 3_600
    for message in messages:
        found = await delivery(app, message)
        assert (found["status"], found["attempts"]) == ("SENT", 1)


async def test_a_pause_of_one_chat_leaves_the_others_alone(app: TestApp, bot: BotServer) -> None:
    bot.refusals["700"] = refusal(429, "Too Many Requests: retry after 600", retry_after=600)
    await put(app, direct("700", text="first"), direct("700", text="second"))
    await app.drain()
    await put(app, *(direct(str(chat), text="hello") for chat in range(701, 711)))
    await app.clock.advance("5s")
    assert bot.by_chat() == {str(chat): 1 for chat in range(701, 711)}
    assert [sent.chat for sent in bot.log].count("700") == 1, "the second to this chat waits too"
    assert [one for one in await app.notifications.circuits.all() if one.is_open] == []
    del bot.refusals["700"]
    await app.clock.advance("11m")
    assert sorted(bot.texts("700")) == ["first", "second"]


async def test_pauses_of_several_chats_pause_the_bot(app: TestApp, bot: BotServer) -> None:
    for chat in ("700", "701", "702"):
        bot.refusals[chat] = refusal(429, "Too Many Requests: retry after 600", retry_after=600)
        await put(app, direct(chat, text="hello"))
        await app.drain()
    (circuit,) = await app.notifications.circuits.all()
    assert circuit.is_open
    assert "retry after 600" in (circuit.reason or "")
    await put(app, direct("703", text="hello"))
    await app.clock.advance("9m")
    assert len(bot.log) == 3
    bot.refusals.clear()
    await app.clock.advance("11m")
    assert bot.by_chat() == {str(chat): 1 for chat in range(700, 704)}


async def test_a_wrong_token_is_our_own_mistake(bot: BotServer, tmp_path: Path) -> None:
    app = TestApp(home=tmp_path, telegram_bot_token="1:wrong", telegram_api_url=bot.origin)
    app.notifications.serve()
    await app.notifications.recipients.put(USER, User(telegram_id=CHAT))
    message = job()
    await put(app, message)
    await app.drain()
    found = await delivery(app, message)
    assert found["status"] == "RETRYING"
    assert "TELEGRAM_BOT_TOKEN" in found["last_error"]
    assert "wrong" not in found["last_error"]
    await app.close()


async def test_the_doctor_asks_telegram(app: TestApp, bot: BotServer) -> None:
    channel = app.notifications.channels["telegram"]
    assert isinstance(channel, TelegramChannel)
    assert await channel.ping() == "Telegram knows the bot @yamchi_bot"
    bot.stop()
    with pytest.raises(Outage, match="can't be reached"):
        await channel.ping()


async def test_telegram_is_away_and_comes_back(app: TestApp, bot: BotServer) -> None:
    bot.stop()
    message = job()
    await put(app, message)
    await app.clock.advance("1h")
    found = await delivery(app, message)
    assert "can't be reached" in found["last_error"]
    assert TOKEN not in found["last_error"]
    bot.start()
    await app.clock.advance("2m")
    found = await delivery(app, message)
    assert (found["status"], found["attempts"]) == ("SENT", 1)


async def test_a_lost_answer(app: TestApp, bot: BotServer) -> None:
    bot.hang_ups = 1
    message = job()
    await put(app, message)
    await app.drain()
    assert (await delivery(app, message))["status"] == "UNKNOWN"
    await app.clock.advance("1m")
    assert (await delivery(app, message))["status"] == "SENT"
    assert len(bot.messages) == 2


# ── Limits ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_group_gets_twenty_a_minute(app: TestApp, bot: BotServer) -> None:
    await put(app, *(direct(GROUP, text=str(number)) for number in range(50)))
    await app.clock.advance("5m")
    assert sorted(map(int, bot.texts(GROUP))) == list(range(50))
    assert bot.most_within(60, GROUP) <= 20
    assert bot.most_within(1, GROUP) == 1
    spent = max(sent.at for sent in bot.messages) - min(sent.at for sent in bot.messages)
    assert spent < 240  # near the limit, not far below it


async def test_a_chat_in_a_hurry_does_not_hold_up_others(app: TestApp, bot: BotServer) -> None:
    await put(app, *(direct("5", text=f"busy {number}") for number in range(20)))
    await put(app, *(direct(str(100 + number), text="quiet") for number in range(20)))
    await app.clock.advance("2s")
    assert sum(bot.by_chat()[str(100 + number)] for number in range(20)) == 20
    assert bot.by_chat()["5"] <= 3
    await app.clock.advance("1m")
    assert bot.by_chat()["5"] == 20
    assert bot.most_within(1, "5") == 1


async def test_an_urgent_message_overtakes_a_backlog(app: TestApp, bot: BotServer) -> None:
    await put(app, *(direct(str(number), text="bulk") for number in range(120)))
    await app.clock.advance("1s")
    urgent = job(meta={"event_type": "e", "event_id": "e", "priority": "high"})
    await put(app, urgent)
    await app.clock.advance("1s")
    assert (await delivery(app, urgent))["status"] == "SENT"
    assert len(bot.messages) < 80
    await app.clock.advance("1m")
    assert len(bot.messages) == 121
    assert bot.most_within(1) <= 30


async def test_messages_that_wait_are_looked_at_few_times(app: TestApp, bot: BotServer) -> None:
    """A backlog neither keeps its workers busy nor costs a write every moment."""
    looks = 0
    ask = app.notifications.channels["telegram"].send

    async def counted(message: Message) -> str | None:
        nonlocal looks
        looks += 1
        return await ask(message)

    app.notifications.channels["telegram"].send = counted  # type: ignore[method-assign]
    await put(app, *(direct(str(number), text="bulk") for number in range(120)))
    await app.clock.advance("1m")
    assert len(bot.messages) == 120
    print(f"looks per message of a backlog: {looks / 120}")
    assert looks <= 300


@pytest.mark.services
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_two_processes_together_keep_to_the_limits(
    bot: BotServer, tmp_path: Path, database: str, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/data.db"
    if database == "postgresql":
        url = request.getfixturevalue("postgres_database")().url
    queue = f"sqlite:///{tmp_path}/jobs.db"
    app = Yamchi(Settings(home=tmp_path, default_queue_url=queue, database_url=url, telegram_bot_token=TOKEN))
    await app.database.migrate()
    single, busy = 100, 4
    chats = [str(5_000 + number) for number in range(single)] + ["42"] * busy
    messages = [DirectMessage(channel="telegram", options={"to": chat, "text": chat}) for chat in chats]
    await app.notifications.queue.add_many([New(message, name="send") for message in messages])
    bot.pause_after = 40
    environment = {
        "QUEUE_URL": queue,
        "DATABASE_URL": url,
        "TELEGRAM_BOT_TOKEN": TOKEN,
        "TELEGRAM_API_URL": bot.origin,
        "LOG_LEVEL": "warning",
    }
    workers = [Process(tmp_path, "worker", "--app", str(APPLICATION), **environment) for _ in range(2)]
    try:
        await eventually(lambda: len(bot.messages) >= len(chats), TIMEOUT_SECONDS)
    except AssertionError as error:
        raise AssertionError("\n".join(worker.said[-2_000:] for worker in workers)) from error
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.wait()
        await app.close()
    refused = sum(sent.status == 429 for sent in bot.log)
    in_flight = 2 * (10 + SOURCES_TO_OPEN)  # of both processes, when they heard of it
    assert 0 < refused <= in_flight, "one process heard that it was too much, and the other went on"
    spent = bot.log[-1].at - bot.log[0].at
    print(
        f"{database}: {len(bot.log)} messages in {spent:.1f} s with a pause of 3 s, over {bot.connections} connections, at most "
        f"{bot.most_within(1)} in a second, {bot.most_within(1, '42')} to one chat"
    )
    assert bot.by_chat() == {**dict.fromkeys(chats[:single], 1), "42": busy}
    assert bot.most_within(1) <= 30
    assert bot.most_within(1, "42") == 1
