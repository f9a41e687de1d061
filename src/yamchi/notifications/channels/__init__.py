"""The ways a message can go. A channel is one small class; add your own with `register`."""

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
