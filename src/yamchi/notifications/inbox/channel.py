"""The channel `database`: a message in the person's inbox, where it stays until it is read."""

from yamchi.notifications.channels.base import Channel, Message, Recipient
from yamchi.notifications.inbox.store import Inbox


class InboxChannel(Channel):
    """Keeps messages by their job's id, so that one sent twice is there once."""

    name = "database"
    provider = "inbox"
    resends_unknown = True

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def address(self, recipient: Recipient) -> str | None:
        return recipient.user_id

    async def send(self, message: Message) -> str | None:
        await self._inbox.add(message)
        return message.job_id
