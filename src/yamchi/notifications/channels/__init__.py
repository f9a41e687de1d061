"""Channels: how messages reach people. A channel is one small class; add your own with `app.notifications.register`.

base.py           what a channel is
configured.py     the channels that the settings turn on
email/            SMTP, and the mailbox of the board
telegram/         the Bot API
push/             Web Push
apprise.py        SMS, and whatever else Apprise has a URL for
null.py           sends nothing and counts; for rehearsals
test_mode.py      messages of test keys, which go to the mailbox
circuits.py       pauses for providers that are down
send_limits.py    rate limits that all processes share
parts.py          messages that are sent in several parts
"""

from yamchi.notifications.channels.base import (
    AnswerLost,
    Attachment,
    Channel,
    Message,
    Recipient,
    StoredMessage,
    Unreachable,
)

__all__ = ["AnswerLost", "Attachment", "Channel", "Message", "Recipient", "StoredMessage", "Unreachable"]
