"""The channel `ws`: a message to the pages that the person has open.

With no page open it waits for the first one to open, until it expires or for five minutes; then it is gone. What must
not be missed belongs into the inbox.
"""

from yamchi.clock import Clock, isoformat
from yamchi.notifications.channels.base import Channel, Message, Recipient
from yamchi.notifications.inbox.feed import Feed
from yamchi.notifications.inbox.store import links


class LiveChannel(Channel):
    """Tells the feed by the job's id, so that a message sent twice is heard once."""

    name = "ws"
    provider = "pages"
    resends_unknown = True

    def __init__(self, feed: Feed, clock: Clock) -> None:
        self._feed = feed
        self._clock = clock

    def address(self, recipient: Recipient) -> str | None:
        return recipient.user_id

    async def send(self, message: Message) -> str | None:
        rendered = message.rendered
        body = {
            "id": message.job_id,
            "title": rendered.title or rendered.subject,
            "text": rendered.text,
            "url": rendered.url,
            "buttons": links(rendered.buttons),
            "category": message.category,
            "template_code": message.template_code,
            "is_urgent": message.is_urgent,
            "created_at": isoformat(self._clock.now()),
        }
        await self._feed.publish(message.to, body, once=message.job_id, expires_at=message.expires_at)
        return message.job_id
