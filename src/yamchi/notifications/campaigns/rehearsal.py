"""A campaign is rehearsed before it begins: its message is made once for the first person, in every variant.

A template that lacks a variable would fail for everybody, one by one. So it is refused instead, with the names of what is missing.
"""

from yamchi.clock import Clock, as_datetime
from yamchi.errors import InvalidJob
from yamchi.notifications.campaigns.audience import Audience, Person
from yamchi.notifications.campaigns.model import Campaign
from yamchi.notifications.campaigns.planning import Message, messages_to
from yamchi.notifications.channels.base import Recipient
from yamchi.notifications.people.recipients import Recipients, as_template_data
from yamchi.notifications.schemas.notification_job import canonical_channel
from yamchi.notifications.templates.locales import locale_chain
from yamchi.notifications.templates.model import TemplateError, TemplateStore, UnknownTemplate
from yamchi.notifications.templates.rehearsing import rehearse

SAMPLE_LINK = "https://example.com/unsubscribe"
"""Stands for the link to unsubscribe."""


class Rehearsal:
    """Makes the message of a campaign for its first person, and sends it to nobody."""

    def __init__(
        self, templates: TemplateStore, recipients: Recipients, *, has_links: bool, clock: Clock
    ) -> None:
        self._templates = templates
        self._recipients = recipients
        self._has_links = has_links
        self._clock = clock

    async def run(self, campaign: Campaign, audience: Audience) -> None:
        """Raises `InvalidJob`, which says what is missing, if the message can't be made."""
        person = await audience.first()
        if person is None:
            return
        recipient = await self._recipients.get(person.user_id) or Recipient(person.user_id)
        for message in messages_to(person, campaign, self._clock.now()):
            await self._make(campaign, person, recipient, message)

    async def _make(self, campaign: Campaign, person: Person, recipient: Recipient, message: Message) -> None:
        channel, locales = campaign.body["channel"], locale_chain(message.locale)
        template = await self._templates.find(message.template_code, canonical_channel(channel), locales)
        if template is None:
            raise InvalidJob(str(UnknownTemplate(message.template_code, channel, locales)))
        data = {**message.data, "user": as_template_data(recipient)}
        link = SAMPLE_LINK if self._has_links and not template.is_transactional else None
        try:
            await rehearse(template, data, now=as_datetime(self._clock.now()), unsubscribe_url=link)
        except TemplateError as error:
            raise InvalidJob(
                f"The message to {person.user_id}, the first of this campaign, can't be made: {error} "
                "Nothing is sent: correct the data or the template, and send the campaign again."
            ) from error
