"""Test mode: a message of a test key is rendered for its channel as usual, and stored in the mailbox instead of being sent."""

import re
from dataclasses import replace

from yamchi.notifications.channels.base import Channel, Message, Recipient
from yamchi.notifications.channels.email.channel import MailboxChannel

TEST_DOMAIN = "test.invalid"
"""A domain that never exists (RFC 6761)."""

_NOT_ALPHANUMERIC = re.compile(r"[^A-Za-z0-9]+")


class TestModeChannel(Channel):
    """Has the name of the real channel, so that its templates and preferences apply."""

    provider = "mailbox"
    resends_unknown = True

    def __init__(self, name: str, real: Channel | None, mailbox: MailboxChannel) -> None:
        self.name = name
        self._real = real
        self._mailbox = mailbox

    def address(self, recipient: Recipient) -> str | None:
        if self._real is not None:
            return self._real.address(recipient)
        known = {"email": recipient.email, "sms": recipient.phone, "telegram": recipient.telegram_id}
        return known.get(self.name, recipient.user_id)

    async def send(self, message: Message) -> str | None:
        subject = message.rendered.subject or message.rendered.title or message.template_code
        rendered = replace(message.rendered, subject=f"[test, {self.name}] {subject}")
        return await self._mailbox.send(replace(message, rendered=rendered, to=self._to(message.to)))

    def _to(self, address: str) -> str:
        if self.name == "email":
            return address
        return f"{_NOT_ALPHANUMERIC.sub('-', f'{self.name}-{address}').strip('-')[:60].rstrip('-')}@{TEST_DOMAIN}"
