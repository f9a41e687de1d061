"""The part of leads in `yamchi demo`: two people leave their contacts; one hears nothing more and is called, the other has a lesson."""

from datetime import timedelta

from yamchi.clock import as_datetime
from yamchi.leads.plugin import Leads
from yamchi.notifications.demo import DemoTelegram
from yamchi.notifications.plugin import Notifications
from yamchi.plugins import Stage

BEFORE_THE_LESSON = timedelta(days=2)


async def play(leads: Leads, stage: Stage) -> None:
    silent = await leads.submit(
        name="Марат", email="marat@example.com", phone="8 701 000 00 00", tranid="demo:1"
    )
    stage.say(f"{silent.name} left his contacts on a page of Tilda; the chain email_chain begins")
    for span, expected in (("31m", "the first letter"), ("24h", "the second"), ("24h", "the call")):
        await stage.wait(span)
        stage.say(f"{span} later, {expected}: {', '.join(await _log(leads, silent.id))}")
    stage.say(f"Марат is {(await leads.get(silent.id)).status}; in the managers' group: {_last_chat(leads)}")

    other = await leads.submit(
        name="Әсел", email="asel@example.com", phone="8 702 000 00 00", tranid="demo:2"
    )
    await stage.wait("5m")
    await leads.tell("bot.activated", other.id)
    await stage.wait("1m")
    stage.say("Әсел opened the bot within five minutes: her chain ended before the first letter")
    lesson = as_datetime(leads.app.clock.now()) + BEFORE_THE_LESSON
    await leads.tell(
        "lesson.booked", other.id, lesson_datetime=lesson.isoformat(), zoom_link="https://zoom.example/j/1"
    )
    await stage.wait("25h")
    stage.say(f"her lesson is in two days; 24 hours before it: {', '.join(await _log(leads, other.id))}")
    await stage.wait("20h")
    stage.say(f"five hours before it: {', '.join(await _log(leads, other.id))}")
    stage.look("/scenarios", "what happened to whom, and when")


def _last_chat(leads: Leads) -> str:
    """What was written last over the demo's Telegram."""
    telegram = leads.app.plugin(Notifications).channels["telegram"]
    messages = telegram.messages if isinstance(telegram, DemoTelegram) else []
    return " ".join(messages[-1][1].split()) if messages else "nothing"


async def _log(leads: Leads, lead_id: str) -> list[str]:
    return [str(line["text"]) for line in await leads.store.log(lead_id)]
