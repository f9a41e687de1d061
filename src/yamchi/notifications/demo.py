"""The part of notifications in `yamchi demo`: an event, a repeat, a campaign, the inbox, and a letter another program asks for."""

from uuid import UUID

from yamchi.notifications.campaigns.model import CampaignIn
from yamchi.notifications.channels.base import Channel, Message, Recipient
from yamchi.notifications.people.recipients import User
from yamchi.notifications.plugin import Notifications
from yamchi.notifications.schemas.event import Event
from yamchi.notifications.schemas.notification_job import derived_id
from yamchi.plugins import Stage

PEOPLE = {
    "Айдана": User(email="aidana@example.com", locale="ru", timezone="Asia/Almaty"),
    "Нұржан": User(email="nurzhan@example.com", locale="kk", timezone="Asia/Almaty"),
    "Mary": User(email="mary@example.com", locale="en", timezone="Europe/London"),
}


class DemoTelegram(Channel):
    """A Telegram without Telegram: chats are kept here."""

    name = "telegram"

    def __init__(self) -> None:
        self.messages: list[tuple[str, str]] = []

    def address(self, recipient: Recipient) -> str | None:
        return recipient.telegram_id

    async def send(self, message: Message) -> str | None:
        self.messages.append((message.to, message.rendered.text))
        return str(len(self.messages))


def person(name: str) -> UUID:
    """The id of somebody of the demo."""
    return derived_id("demo", name)


async def play(notifications: Notifications, stage: Stage) -> None:
    notifications.register(DemoTelegram())
    for name, user in PEOPLE.items():
        await notifications.recipients.put(str(person(name)), user)
    for name in PEOPLE:
        await _register(notifications, name)
    await stage.wait("1m")
    stage.say(
        f"three people registered; letters, each in their language: {await _subjects(notifications, 3)}"
    )
    await _register(notifications, "Mary")
    await stage.wait("1m")
    stage.say(
        f"the same event again: {len(await notifications.mailbox.list())} letters, nobody got a second one"
    )

    audience = {"user_ids": [str(person(name)) for name in PEOPLE]}
    sale = CampaignIn.model_validate(
        {
            "campaign_id": "demo-sale",
            "template_code": "black_friday_sale",
            "channel": "database",
            "audience": audience,
            "data": {"discount": "30 %", "promo_code": "DEMO", "shop_url": "https://shop.example/sale"},
        }
    )
    await notifications.campaigns.create(sale)
    await notifications.fan_out.run()
    await stage.wait("1m")
    unread = sum((await notifications.inbox.unread([str(person(name)) for name in PEOPLE])).values())
    stage.say(f"a campaign reached the inboxes of all of them: {unread} unread")

    emails = notifications.app.queue("email_queue")
    task = {"to": "user@example.com", "subject": "Ваш чекап завершен", "html": "<p>Результаты готовы.</p>"}
    await emails.add(task, name="email")
    await emails.add({**task, "attachments": ["report:lost"]}, name="email")
    await stage.wait("1m")
    stage.say(f"another program asked for a letter in email_queue: {await _subjects(notifications, 1)}")
    (letter,) = (await emails.dead_letters.list()).letters
    stage.say(f"and for one with a file that is not there, which is a dead letter: {letter.error}")
    stage.look("/mailbox", "the letters")


async def _register(notifications: Notifications, name: str) -> None:
    data = {"first_name": name, "login_url": "https://shop.example/login"}
    event = Event(event_type="user_registered", event_id=f"demo-{name}", user_id=person(name), data=data)
    await notifications.service.handle_events([event])


async def _subjects(notifications: Notifications, count: int) -> str:
    return " · ".join(str(letter["subject"]) for letter in await notifications.mailbox.list(limit=count))
