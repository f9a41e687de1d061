"""What becomes of a delivery: its statuses, the outcomes of attempts, and how one that is `UNKNOWN` stands."""

from typing import Literal

from sqlalchemy import ColumnElement, func

from yamchi.notifications.tables import notification_delivery as table

Status = Literal["QUEUED", "SENT", "FAILED", "RETRYING", "EXPIRED", "CANCELLED", "SUPPRESSED", "UNKNOWN"]
Outcome = Literal["sent", "retryable", "permanent", "outage", "unknown"]

FINAL: tuple[Status, ...] = ("SENT", "FAILED", "EXPIRED", "CANCELLED", "SUPPRESSED")
NOT_SENT: tuple[Status, ...] = ("FAILED", "EXPIRED", "CANCELLED", "SUPPRESSED")
OVER: tuple[Status, ...] = ("SENT", "CANCELLED", "SUPPRESSED")
"""What is not sent though its job comes again, as a dead letter that is replayed does."""
WAITING = ("QUEUED", "RETRYING")

BEING_SENT = "It is being sent"
"""What is said of a delivery while its provider has the message and has not answered."""

LOST = "It was handed over, and what became of it was not recorded: the provider may have taken it"

INTERRUPTED = "Its job ended while it was being sent: the provider may have taken it"

NOT_AGAIN = "The provider may have taken it, and it is not sent again: its job has expired or was taken out of its queue"

LEFT = (INTERRUPTED, NOT_AGAIN)
"""What is said of those that are `UNKNOWN` and left to a person on every channel."""


def is_being_sent() -> ColumnElement[bool]:
    return (table.c.status == "UNKNOWN") & table.c.last_error.is_not_distinct_from(BEING_SENT)


def is_left() -> ColumnElement[bool]:
    """Whether it is not sent again by itself, though its channel may send things again."""
    return (table.c.status == "UNKNOWN") & func.coalesce(table.c.last_error, "").in_(LEFT)
