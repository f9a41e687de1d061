"""Leads and the bot on every engine, in real time: from the form over the bot to a lesson, with a worker that does the work."""

from pathlib import Path
from typing import Any

from tests.scenarios.test_engines import TIMEOUT_SECONDS, urls, working  # noqa: F401 - `urls` is a fixture
from tests.services.telegram import TOKEN, BotServer, Sent
from yamchi import Yamchi
from yamchi.leads.plugin import Leads
from yamchi.queues.job import Job
from yamchi.settings import Settings
from yamchi.testing import eventually

MARAT = 777


async def test_from_the_form_to_a_lesson(
    urls: tuple[str, str],  # noqa: F811
    tmp_path: Path,
    server: BotServer,
) -> None:
    queue, database = urls
    settings = Settings(
        home=tmp_path,
        plugins=("notifications", "scenarios", "leads"),
        default_queue_url=queue,
        database_url=database,
        default_timezone="Asia/Almaty",
        telegram_bot="webhook",
        telegram_bot_token=TOKEN,
        telegram_api_url=server.origin,
        telegram_webhook_secret="a-word",
        lesson_days="mon,tue,wed,thu,fri,sat,sun",
    )
    async with Yamchi(settings) as app:
        leads = app.plugin(Leads)
        assert leads.listener is not None
        lead = await leads.submit(
            name="Марат", email="marat@example.com", phone="8 701 000 00 00", tranid="1"
        )
        (letter,) = await app.queue("emailChain").jobs("delayed")
        assert letter.data == {"leadId": lead.id, "email": "marat@example.com", "name": "Марат"}
        async with working(app):
            await leads.listener.take(_message(1, f"/start {lead.id}"))
            await leads.listener.take(_message(1, f"/start {lead.id}"))  # Telegram repeats it
            days = await eventually(lambda: _shown(server, "sendMessage"), TIMEOUT_SECONDS)
            assert await app.queue("emailChain").jobs("delayed") == []
            await leads.listener.take(_press(2, _buttons(days)[3]))
            times = await eventually(lambda: _shown(server, "editMessageText"), TIMEOUT_SECONDS)
            await leads.listener.take(_press(3, _buttons(times)[0]))
            job = await eventually(lambda: _reminder(app), TIMEOUT_SECONDS)
        booked = await leads.get(lead.id)
        assert (booked.status, booked.tg_id, booked.bot_activated) == ("LESSON_BOOKED", str(MARAT), True)
        assert (job.name, job.data["leadId"], job.data["lessonDatetime"]) == (
            "remind24h",
            lead.id,
            booked.to_dict()["lesson_datetime"],
        )
        texts = [line["text"] for line in await leads.store.log(lead.id)]
        assert texts == ["LEAD_CREATED", "BOT_ACTIVATED", "LESSON_BOOKED"]
        assert len([sent for sent in server.log if sent.method == "sendMessage"]) == 1


def _message(number: int, text: str) -> dict[str, Any]:
    message = {"message_id": 1, "from": _person(), "chat": {"id": MARAT, "type": "private"}, "text": text}
    return {"update_id": number, "message": message}


def _press(number: int, data: str) -> dict[str, Any]:
    place = {"message_id": 55, "chat": {"id": MARAT, "type": "private"}}
    return {
        "update_id": number,
        "callback_query": {"id": f"q{number}", "from": _person(), "message": place, "data": data},
    }


def _person() -> dict[str, Any]:
    return {"id": MARAT, "is_bot": False, "first_name": "Марат", "language_code": "ru"}


def _shown(server: BotServer, method: str) -> Sent | None:
    return next((sent for sent in server.log if sent.method == method), None)


def _buttons(sent: Sent) -> list[str]:
    return [key["callback_data"] for row in sent.fields["reply_markup"]["inline_keyboard"] for key in row]


async def _reminder(app: Yamchi) -> Job[Any] | None:
    return next(iter(await app.queue("reminders").jobs("delayed")), None)
