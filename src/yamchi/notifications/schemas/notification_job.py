"""NotificationJob: the message on `notifications.outbox`, as other systems write and read it.

Unknown fields are kept. A missing or mistyped one makes the message poison: it goes to the dead letters as it came.
The queue also takes the shorter `DirectMessage`, which names an address instead of a user.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal
from uuid import NAMESPACE_URL, UUID, uuid5

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from yamchi.fields import Address, JsonObject, Locale, Moment, Name, Subject, Words, check_json

CHANNELS = ["email", "push", "browser", "telegram", "ws", "sms", "database", "null"]
"""Names that a message may have: those that ship, and those of channels registered in this process."""

LONGEST_CHANNEL = 32
"""Characters of a channel's name."""

MOST_ADDRESSES = 1_000
"""Of one direct message; more than that is a campaign."""

MOST_SPLIT = 64 * 1024 * 1024
"""Bytes of all the jobs that one direct message becomes, which has a job for each address."""

DEFAULT_LOCALE = "ru"
"""Of a message whose sender and whose person name no language."""

ALIASES = {"browser": "push"}
"""Channels that have two names."""


def canonical_channel(name: str) -> str:
    """The one name of a channel that has two."""
    return ALIASES.get(name, name)


def know_channel(name: str) -> None:
    """Let messages name a channel of one's own."""
    if name not in CHANNELS:
        CHANNELS.append(name)


def _is_known(name: str) -> str:
    if name not in CHANNELS:
        raise ValueError(f"there is no channel {name!r}: choose from {', '.join(CHANNELS)}")
    return name


Channel = Annotated[Name, AfterValidator(_is_known), Field(examples=["email"])]
Priority = Literal["normal", "high"]

TEST = "test"
"""The field of `meta`, and of a direct message, that marks a test. It never comes from outside."""

AS_SENT = "as_sent"
"""The field of `meta` with the message itself, of one that is sent again and has nobody to look up. Never from outside."""

NAMESPACE = uuid5(NAMESPACE_URL, "yamchi:notifications")


def derived_id(*parts: str) -> UUID:
    """The same parts give the same id, so that doing a thing twice is doing it once."""
    return uuid5(NAMESPACE, "\x1f".join(parts))


NOBODY = derived_id("nobody")
"""The user of a message to an address."""


class Meta(BaseModel):
    """Where a notification comes from."""

    model_config = ConfigDict(extra="allow")

    event_type: Name
    event_id: Name
    campaign_id: Name | None = None
    priority: Priority = "normal"


class NotificationJob(BaseModel):
    """One message to one person over one channel."""

    model_config = ConfigDict(extra="allow")

    job_id: UUID
    user_id: UUID
    channel: Channel
    template_code: Name
    locale: Locale
    data: JsonObject
    meta: Meta
    created_at: Moment
    send_after: Moment | None = None
    expires_at: Moment | None = None

    @model_validator(mode="after")
    def _fits(self) -> "NotificationJob":
        """Unknown fields are kept as well, so they must be such that they can be."""
        for beside in (self.model_extra, self.meta.model_extra):
            if beside:
                check_json(beside)
        return self

    @property
    def delivery_id(self) -> str:
        return str(self.job_id)


def is_test(job: NotificationJob) -> bool:
    """Whether this is to stay in the mailbox."""
    return job.meta.model_extra is not None and job.meta.model_extra.get(TEST) is True


def as_test(job: NotificationJob) -> NotificationJob:
    return job.model_copy(update={"meta": Meta.model_validate(job.meta.model_dump() | {TEST: True})})


def check_split(addresses: str | list[str], one: Callable[[], str]) -> None:
    """Refuse a message that a request of a megabyte would make a gigabyte of; `one` is what each address gets, as JSON."""
    if isinstance(addresses, list) and len(addresses) > 1:
        size = len(one().encode())
        if len(addresses) * size > MOST_SPLIT:
            raise ValueError(
                f"{len(addresses):,} addresses of a message of {size:,} bytes are more than {MOST_SPLIT:,} bytes in all: "
                "keep the text in a template, or send it in parts"
            )


def check_says_something(message: BaseModel) -> None:
    """Refuse a message to an address that would arrive blank."""
    given = [
        getattr(message, field, None) for field in ("template", "subject", "text", "html", "attachments")
    ]
    if not any(one.strip() if isinstance(one, str) else one for one in given):
        raise ValueError("there is nothing to say: give a template, or a subject, text or html")


class DirectOptions(BaseModel):
    """To whom and what, by address."""

    model_config = ConfigDict(extra="allow")

    to: Address | Annotated[list[Address], Field(min_length=1, max_length=MOST_ADDRESSES)]
    template: Name | None = None
    subject: Subject | None = None
    text: Words | None = None
    html: Words | None = None
    locale: Locale = DEFAULT_LOCALE
    data: JsonObject = Field(default_factory=dict)

    @model_validator(mode="after")
    def _says_something(self) -> "DirectOptions":
        check_says_something(self)
        return self


class DirectMessage(BaseModel):
    """`{channel, options: {to, template, subject, text, data}}`: a message to an address, with no user behind it."""

    model_config = ConfigDict(extra="allow")

    channel: Channel
    options: DirectOptions

    @model_validator(mode="after")
    def _fits(self) -> "DirectMessage":
        check_split(self.options.to, lambda: self.model_dump_json(exclude={"options": {"to"}}))
        return self


def _form(value: Any) -> str:
    has_options = "options" in value if isinstance(value, dict) else isinstance(value, DirectMessage)
    return "direct" if has_options else "job"


AnyNotification = Annotated[
    Annotated[NotificationJob, Tag("job")] | Annotated[DirectMessage, Tag("direct")], Discriminator(_form)
]
