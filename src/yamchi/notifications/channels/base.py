"""What a channel is: a class with an address and a `send`; the rest has defaults. Ten lines are enough for one's own.

`docs/recipes/own-channel.md` writes one, and a test runs it through everything that may happen to a message.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from yamchi.clock import Millis
from yamchi.errors import Outage, Unrecoverable, YamchiError
from yamchi.notifications.people.model import Recipient as Recipient
from yamchi.notifications.templates.model import Rendered
from yamchi.storage.database import Put

ADMIN_GROUP = "admin_group"
"""The address that means the chat TELEGRAM_ADMIN_GROUP_ID."""


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


class NoAddress(Unrecoverable):
    """The person has no address on this channel, or the channel is not set up here."""


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
class StoredMessage:
    """The answer of a channel whose messages stay in Yamchi's own tables: the row, written together with the status.

    So a message is there if and only if its delivery says `SENT`, whenever the process ends.
    """

    put: Put
    id: str | None = None


class Channel(ABC):
    """A way to reach people. Derive from it, say the `name`, and write `address` and `send`."""

    name: str
    """As NotificationJob has it."""

    provider: str = ""
    """Who delivers the messages; an outage of one provider opens its circuit, not another's. Defaults to the name."""

    resends_unknown: bool = False
    """Whether to send again when an answer was lost. Defaults to False: then a person decides. True where the receiver can
    tell that a message is a repeat."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not cls.provider and "name" in cls.__dict__:
            cls.provider = cls.name

    @abstractmethod
    def address(self, recipient: Recipient) -> str | None:
        """Where this person is reached; None when there is no such address."""

    @abstractmethod
    async def send(self, message: Message) -> str | StoredMessage | None:
        """Hand the message over; the provider's own id for it, if there is one."""

    async def ping(self) -> str | None:
        """Ask the provider whether it knows us, for `yamchi doctor`: what it answered; None where it can't be asked."""
        return None

    async def close(self) -> None:  # noqa: B027 - most channels hold nothing open
        """Close connections."""
