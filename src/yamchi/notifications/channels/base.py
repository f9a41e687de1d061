"""The channel protocol: ten lines are enough for a channel of one's own.

class Pager:
    name = "pager"
    provider = "pager.example"

    def address(self, recipient: Recipient) -> str | None:
        return recipient.attributes.get("pager")

    async def send(self, message: Message) -> str | None:
        ...              # raise Unreachable, Unrecoverable, Retryable, Outage or AnswerLost

notifications.register(Pager())
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from yamchi.clock import Millis
from yamchi.errors import Outage, Unrecoverable, YamchiError
from yamchi.notifications.templates.model import Rendered
from yamchi.notifications.wishes import NONE, Wishes
from yamchi.storage.database import Put


class AnswerLost(YamchiError):
    """The provider may have taken the message, but its answer did not arrive: the delivery is `UNKNOWN`.

    `outage` says that the provider itself has gone, so that the lost answer costs no attempt.
    """

    def __init__(self, message: str, *, outage: Outage | None = None) -> None:
        super().__init__(message)
        self.outage = outage


class Unreachable(Unrecoverable):
    """Nobody is reached at this address, now or later: no such mailbox, the bot is blocked.

    The address is remembered as suppressed, and a job that names another channel goes on to it.
    """


@dataclass(frozen=True, slots=True)
class Recipient:
    """A person, as far as channels need to know one."""

    user_id: str | None = None
    email: str | None = None
    phone: str | None = None
    telegram_id: str | None = None
    locale: str | None = None
    timezone: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    wishes: Wishes = NONE


@dataclass(frozen=True, slots=True)
class Attachment:
    filename: str
    content: bytes
    type: str = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Message:
    """What a channel sends: to whom, the rendered template, and what ties it to its job."""

    job_id: str
    to: str
    rendered: Rendered
    is_urgent: bool = False
    expires_at: Millis | None = None
    unsubscribe_url: str | None = None
    attachments: Sequence[Attachment] = ()
    user_id: str | None = None
    template_code: str = ""
    category: str = "general"


@dataclass(frozen=True, slots=True)
class Kept:
    """The answer of a channel whose messages stay in Yamchi's own tables: the row, written together with the status.

    So a message is there if and only if its delivery says `SENT`, whenever the process ends.
    """

    put: Put
    id: str | None = None


class Channel(Protocol):
    """A way to reach people."""

    name: str
    """As NotificationJob has it."""

    provider: str
    """Who carries the messages; an outage of one provider opens its circuit, not another's."""

    resends_unknown: bool
    """Whether to send again when an answer was lost. Defaults to True where a repeat can be recognized by the receiver."""

    def address(self, recipient: Recipient) -> str | None:
        """Where this person is reached; None when there is no such address."""

    async def send(self, message: Message) -> str | Kept | None:
        """Hand the message over; the provider's own id for it, if there is one."""

    async def close(self) -> None:
        """Let go of connections."""
