"""Messages to an address instead of a user: how each becomes a notification like any other.

Many brokers give a message only a number, and numbers start again when a queue is created again. So the id of the delivery
is derived from the number and the content: read twice it is one message, and a new message is a new one.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from hashlib import sha256
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from yamchi.clock import Millis, as_datetime
from yamchi.errors import Unrecoverable
from yamchi.notifications.channels.base import Message, Recipient
from yamchi.notifications.policy.context import SendRequest
from yamchi.notifications.schemas.notification_job import (
    AS_SENT,
    NOBODY,
    TEST,
    DirectMessage,
    DirectOptions,
    Meta,
    NotificationJob,
    derived_id,
)
from yamchi.notifications.templates.model import Rendered
from yamchi.queues.handlers import decode_json, describe
from yamchi.queues.job import Job
from yamchi.queues.newjobs import New

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def addresses_of(direct: DirectMessage) -> list[str]:
    to = direct.options.to
    return [to] if isinstance(to, str) else to


class _Anywhere(Mapping[str, str]):
    """The attributes of a person of whom only an address is known: every attribute that a channel asks for is the address."""

    def __init__(self, address: str) -> None:
        self._address = _Address(address)

    def __getitem__(self, name: str) -> str:
        return self._address

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class _Address(str):
    """An address whose attributes and items are the address again, for channels that look deeper."""

    def get(self, name: str, default: Any = None) -> str:
        return self

    def __getitem__(self, place: Any) -> str:
        return self if isinstance(place, str) else super().__getitem__(place)


def at(address: str) -> Recipient:
    """A recipient with this address on every channel. A UUID is also taken as the user's id, for the inbox."""
    user_id = address if _ID.fullmatch(address) else None
    return Recipient(
        user_id, email=address, phone=address, telegram_id=address, attributes=_Anywhere(address)
    )


def rendered_of(options: DirectOptions) -> Rendered | None:
    """The text of the message; None if it names a template."""
    if options.template is not None:
        return None
    return Rendered(options.text or "", html=options.html, subject=options.subject)


def as_job(job: Job[Any], direct: DirectMessage, now: Millis) -> NotificationJob:
    return NotificationJob(
        job_id=derived_id("direct", job.queue.name, job.id, content_digest(job)),
        user_id=NOBODY,
        channel=direct.channel,
        template_code=direct.options.template or "direct",
        locale=direct.options.locale,
        data=direct.options.data,
        meta=Meta(event_type="direct", event_id=job.id, **_mark(direct)),
        created_at=as_datetime(now),
        **{
            name: value for name, value in (direct.options.model_extra or {}).items() if name == "attachments"
        },
    )


def content_digest(job: Job[Any]) -> str:
    """A digest of the message's content, whatever the order of its fields."""
    said = orjson.dumps(decode_json(job.record.payload), option=orjson.OPT_SORT_KEYS)
    return sha256(said).hexdigest()


def _mark(direct: DirectMessage) -> dict[str, Any]:
    is_test = (direct.model_extra or {}).get(TEST) is True
    return {TEST: True} if is_test else {}


class AsSent(BaseModel):
    """A message as its channel got it. It is kept in the job, since it has no user to look up."""

    model_config = ConfigDict(extra="forbid")

    to: str
    user_id: str | None
    rendered: Rendered


def sendable_again(request: SendRequest, message: Message) -> NotificationJob:
    """The notification from which alone this message can be sent again."""
    notification, recipient = request.notification, request.recipient
    if recipient is None:
        return notification
    kept = {"to": message.to, "user_id": recipient.user_id, "rendered": asdict(message.rendered)}
    meta = Meta.model_validate(notification.meta.model_dump() | {AS_SENT: kept})
    return notification.model_copy(update={"meta": meta})


def as_sent(notification: NotificationJob) -> AsSent | None:
    """The message that `sendable_again` kept, if there is one."""
    kept = (notification.meta.model_extra or {}).get(AS_SENT)
    if kept is None:
        return None
    try:
        return AsSent.model_validate(kept)
    except ValidationError as error:
        raise Unrecoverable(f"The job's meta.{AS_SENT} can't be used: {describe(error)}.") from error


def split(job: Job[Any], direct: DirectMessage) -> list[New]:
    """One job per recipient, so that a failure for one does not send it twice to another."""
    digest = content_digest(job)
    return [
        New(
            direct.model_copy(update={"options": direct.options.model_copy(update={"to": address})}),
            id=str(derived_id(job.id, digest, address)),
            priority=job.priority,
            expires_at=job.expires_at,
        )
        for address in dict.fromkeys(addresses_of(direct))
    ]
