"""The channels of an application under test: they write down what it sends to people, and nothing of it leaves."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from yamchi.clock import Clock, as_datetime
from yamchi.notifications.channels.base import Channel, Message, Recipient, StoredMessage
from yamchi.notifications.templates.model import Rendered

STAY_HERE = frozenset({"mailbox", "ledger", "inbox", "pages"})
"""Providers whose messages stay in Yamchi's own tables: they are sent there as ever."""

Address = Callable[[Recipient], str | None]


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message as its channel got it; `rendered` has what else belongs to it: HTML, title, buttons."""

    channel: str
    to: str
    template_code: str
    rendered: Rendered
    user_id: str | None
    job_id: str
    sent_at: datetime

    @property
    def subject(self) -> str | None:
        return self.rendered.subject

    @property
    def text(self) -> str:
        return self.rendered.text


class RecordedChannel(Channel):
    """Writes down what is sent through it, in the place of another channel, if there was one."""

    def __init__(
        self,
        sent: list[SentMessage],
        clock: Clock,
        name: str,
        address: Address,
        former: Channel | None = None,
    ) -> None:
        self.name, self.provider = name, former.provider if former else name
        self.resends_unknown = former is not None and former.resends_unknown
        self._sent, self._clock, self._address = sent, clock, address
        self._within = former if self.provider in STAY_HERE else None

    def address(self, recipient: Recipient) -> str | None:
        return self._address(recipient)

    async def send(self, message: Message) -> str | StoredMessage | None:
        answer = await self._within.send(message) if self._within else f"sent-{message.job_id}"
        what = (message.to, message.template_code, message.rendered, message.user_id, message.job_id)
        self._sent.append(SentMessage(self.name, *what, as_datetime(self._clock.now())))
        return answer
