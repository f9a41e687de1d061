"""An errand: one notification on its way, with everything known of it before it is decided whether it goes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from yamchi.clock import Millis, to_moment
from yamchi.errors import Outage
from yamchi.notifications.channels.base import Channel, NoAddress, Recipient
from yamchi.notifications.channels.stand_in import Instead
from yamchi.notifications.people.quiet_hours import zone_of
from yamchi.notifications.people.recipients import Recipients
from yamchi.notifications.policy.model import Policy, policy_of
from yamchi.notifications.schemas.notification_job import ALIASES, NotificationJob, is_test
from yamchi.notifications.templates.locales import locale_chain
from yamchi.notifications.templates.model import Rendered, Template, TemplateStore, UnknownTemplate
from yamchi.queues.job import Job


@dataclass(frozen=True, slots=True)
class Errand:
    """The job as the table knows it, for whom, by what, and which attempt it is."""

    job: NotificationJob
    policy: Policy
    recipient: Recipient
    channel: Channel
    template: Template | None
    """None where the words are given and not made from a template."""

    attempt: int
    attempts: int
    default_zone: str

    @property
    def circuit(self) -> str:
        return f"{self.channel.name}:{self.channel.provider}"

    def circuit_of(self, outage: Outage) -> str:
        return f"{self.channel.name}:{outage.provider or self.channel.provider}"

    @property
    def address(self) -> str | None:
        return self.channel.address(self.recipient)

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


class Errands:
    """Finds what an errand needs. People are looked up in batches; channels and templates are at hand."""

    def __init__(
        self,
        channels: Mapping[str, Channel],
        templates: TemplateStore,
        recipients: Recipients,
        zone: str,
        instead: Instead,
    ) -> None:
        self._channels = channels
        self._templates = templates
        self._recipients = recipients
        self._zone = zone
        self._instead = instead

    async def of(
        self,
        job: Job[Any],
        notification: NotificationJob,
        recipient: Recipient | None,
        ready: Rendered | None,
    ) -> Errand:
        name = ALIASES.get(notification.channel, notification.channel)
        channel = self._channels.get(name)
        if is_test(notification):
            channel = self._instead.of(name, channel)
        if channel is None:
            raise NoAddress(f"The channel {name} is not set up here")
        return Errand(
            notification,
            policy_of(notification),
            recipient or await self._person(str(notification.user_id)),
            channel,
            None if ready else await self._template(notification, name),
            job.attempts_made,
            job.attempts,
            self._zone,
        )

    async def _person(self, user_id: str) -> Recipient:
        return await self._recipients.get(user_id) or Recipient(user_id)

    async def _template(self, job: NotificationJob, channel: str) -> Template:
        locales = locale_chain(job.locale)
        found = await self._templates.find(job.template_code, channel, locales)
        if found is None:
            raise UnknownTemplate(job.template_code, channel, locales)
        return found
