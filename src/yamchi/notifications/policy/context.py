"""Everything that the decision about one notification needs."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from zoneinfo import ZoneInfo

from yamchi.clock import Millis, to_moment
from yamchi.errors import Outage
from yamchi.notifications.channels.base import Channel, NoAddress, Recipient
from yamchi.notifications.channels.circuits import circuit_name
from yamchi.notifications.channels.email.channel import MailboxChannel
from yamchi.notifications.channels.test_mode import TestModeChannel
from yamchi.notifications.people.quiet_hours import zone_of
from yamchi.notifications.people.recipients import Recipients
from yamchi.notifications.policy.model import Policy, policy_of
from yamchi.notifications.schemas.notification_job import NotificationJob, canonical_channel, is_test
from yamchi.notifications.templates.model import Rendered, Template, TemplateStore, find_template
from yamchi.queues.job import Job

BeforeSending = Callable[[], Awaitable[None]]
"""Called right before the message is handed to its channel; if it raises, nothing is sent."""


@dataclass(frozen=True, slots=True)
class SendRequest:
    """A job of the queue, its notification, and what the caller knows already."""

    job: Job[Any]
    notification: NotificationJob
    recipient: Recipient | None = None
    """None: the user of the notification is looked up."""

    rendered: Rendered | None = None
    """None: the template of the notification is rendered."""

    subject: str | None = None
    """Replaces the subject of the template."""

    before_sending: BeforeSending | None = None
    address: str | None = None
    """None: the address of the recipient on the channel."""


@dataclass(frozen=True, slots=True)
class SendContext:
    """The request with its policy, recipient, channel and template."""

    request: SendRequest
    job: NotificationJob
    policy: Policy
    recipient: Recipient
    channel: Channel
    template: Template | None
    """None if the request has its content."""

    default_zone: str

    @property
    def attempt(self) -> int:
        return self.request.job.attempts_made

    @property
    def attempts(self) -> int:
        return self.request.job.attempts

    @property
    def circuit(self) -> str:
        return circuit_name(self.channel.name, self.channel.provider)

    def circuit_of(self, outage: Outage) -> str:
        return circuit_name(self.channel.name, outage.provider or self.channel.provider)

    @property
    def address(self) -> str | None:
        return self.request.address or self.channel.address(self.recipient)

    @property
    def category(self) -> str:
        return self.template.category if self.template else "general"

    @property
    def is_transactional(self) -> bool:
        return self.template is None or self.template.is_transactional

    @property
    def is_urgent(self) -> bool:
        return self.job.meta.priority == "high"

    @property
    def expires_at(self) -> Millis | None:
        return None if self.job.expires_at is None else to_moment(self.job.expires_at)

    @property
    def zone(self) -> ZoneInfo:
        return zone_of(self.recipient.timezone, self.default_zone)


class ContextLoader:
    """Loads what a context needs. People are read in batches; channels and templates are in memory."""

    def __init__(
        self,
        channels: Mapping[str, Channel],
        templates: TemplateStore,
        recipients: Recipients,
        zone: str,
        test_mailbox: MailboxChannel,
    ) -> None:
        self._channels = channels
        self._templates = templates
        self._recipients = recipients
        self._zone = zone
        self._test_mailbox = test_mailbox

    async def load(self, request: SendRequest) -> SendContext:
        notification = request.notification
        name = canonical_channel(notification.channel)
        channel = self.channel_of(notification)
        if channel is None:
            raise NoAddress(f"The channel {name} is not set up here")
        return SendContext(
            request,
            notification,
            policy_of(notification),
            request.recipient or await self._person(str(notification.user_id)),
            channel,
            None if request.rendered else await self._template(notification, name),
            self._zone,
        )

    def channel_of(self, notification: NotificationJob) -> Channel | None:
        """The channel of a message, if it is set up here."""
        name = canonical_channel(notification.channel)
        channel = self._channels.get(name)
        return TestModeChannel(name, channel, self._test_mailbox) if is_test(notification) else channel

    async def with_choices(self, recipient: Recipient) -> Recipient:
        """The recipient with their opt-outs, if the address is a user's id. A message to an address has no quiet hours."""
        known = await self._recipients.get(recipient.user_id) if recipient.user_id else None
        if known is None:
            return recipient
        return replace(recipient, preferences=replace(known.preferences, quiet_hours=None))

    async def _person(self, user_id: str) -> Recipient:
        return await self._recipients.get(user_id) or Recipient(user_id)

    async def _template(self, job: NotificationJob, channel: str) -> Template:
        return await find_template(self._templates, job.template_code, channel, job.locale)
