"""One HTTP call to a service outside: within a time, of a bounded size, its failure sorted by kind."""

from http import HTTPStatus
from typing import Any

from yamchi.errors import Outage, Retryable, Unrecoverable
from yamchi.outgoing import Answer, Client, NoAnswer, NotAsked

LARGEST_ANSWER = 4 * 1024 * 1024


class Lost(Retryable):
    """It was asked, and may have done it, but its answer did not come."""


class OutsideApi:
    """A service at an address. Each call is one request, repeated by nobody here."""

    def __init__(self, name: str, seconds: float) -> None:
        self._name = name
        self._seconds = seconds
        self._client = Client("telegram", name, timeout=seconds)

    async def close(self) -> None:
        await self._client.close()

    async def call(self, method: str, url: str, **request: Any) -> Answer:
        try:
            return await self._client.ask(method, url, seconds=self._seconds, most=LARGEST_ANSWER, **request)
        except NotAsked as error:
            raise Outage(f"{self._name} can't be reached: {error}") from error
        except NoAnswer as error:
            raise Lost(f"{self._name} was asked, but its answer was lost: {error}") from error

    def failure(self, reply: Answer, why: str) -> Exception:
        """What a refusal means for a job."""
        said = f"{self._name} answered {reply.status}: {why[:500] or 'no reason given'}"
        match reply.status:
            case HTTPStatus.TOO_MANY_REQUESTS:
                return Outage(said, retry_after=reply.retry_after)
            case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
                return Outage(f"{said}. Check its settings")
            case status if status >= 500:
                return Lost(said)
        return Unrecoverable(said)
