"""RetryEngine: what a failed send means for the delivery. What it means for the job, the worker knows from its kind."""

from dataclasses import dataclass

from yamchi.errors import Outage, Unrecoverable, YamchiError
from yamchi.notifications.channels.base import AnswerLost, Channel
from yamchi.notifications.sending.statuses import Outcome, Status
from yamchi.queues.records import storable
from yamchi.queues.verdicts import LONGEST_SENTENCE


@dataclass(frozen=True, slots=True)
class Decision:
    """The delivery's new status, what the attempt was, and what the worker is to be told (None: the job is over)."""

    status: Status
    outcome: Outcome
    verdict: Exception | None


class RetryEngine:
    """Sorts failures. An outage costs no attempt; a lost answer follows the channel's `resends_unknown`."""

    def decide(self, error: Exception, channel: Channel, attempts_made: int, attempts: int) -> Decision:
        match error:
            case Outage():
                return Decision("RETRYING", "outage", error)
            case AnswerLost() if channel.resends_unknown:
                return Decision("UNKNOWN", "unknown", error)
            case AnswerLost():
                return Decision("UNKNOWN", "unknown", None)
            case Unrecoverable():
                return Decision("FAILED", "permanent", error)
        is_last = attempts_made >= attempts
        return Decision("FAILED" if is_last else "RETRYING", "retryable", error)


def sentence(error: Exception) -> str:
    """The error as it is kept and shown to people: without secrets, and such that every database can keep it."""
    said = storable(str(error), LONGEST_SENTENCE)
    return said if isinstance(error, YamchiError) and said else f"{type(error).__name__}: {said}"
