"""What the processor says of a message: one type for each way it can go, and the JSON that is kept as the job's result."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from yamchi.notifications.sending.statuses import Status


@dataclass(frozen=True, slots=True)
class Sent:
    """The provider took it."""

    provider_message_id: str | None

    def as_json(self) -> dict[str, Any]:
        return {"status": "SENT", "provider_message_id": self.provider_message_id}


@dataclass(frozen=True, slots=True)
class Ended:
    """The job is over, now or since an earlier attempt; the status says how."""

    status: Status
    reason: str | None = None
    next_job: str | None = None
    """The job that tries the next channel."""

    def as_json(self) -> dict[str, Any]:
        further = {"reason": self.reason, "next": self.next_job}
        return {"status": self.status} | {name: value for name, value in further.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Collected:
    """It waits for its digest, and is sent by the digest's job."""

    digest_job: str

    def as_json(self) -> dict[str, Any]:
        return {"status": "QUEUED", "digest": self.digest_job}


@dataclass(frozen=True, slots=True)
class Split:
    """It had several addresses: there is a job for each now."""

    jobs: Sequence[str | None]

    def as_json(self) -> dict[str, Any]:
        return {"status": "SPLIT", "jobs": list(self.jobs)}


Result = Sent | Ended | Collected | Split
