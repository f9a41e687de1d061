"""One HTTP call to a service outside: within a time, of a bounded size, its failure sorted by kind."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson

from yamchi.errors import MissingExtra, Outage, Retryable, Unrecoverable
from yamchi.outgoing import TooMuch, ask

if TYPE_CHECKING:
    import httpx2

LARGEST_ANSWER = 4 * 1024 * 1024
LONGEST_WAIT = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Reply:
    """What it said."""

    status: int
    body: Mapping[str, Any]
    retry_after: timedelta | None = None


class Lost(Retryable):
    """It was asked, and may have done it, but its answer did not come."""


class OutsideApi:
    """A service at an address. Each call is one request, repeated by nobody here."""

    def __init__(self, name: str, seconds: float) -> None:
        self._name = name
        self._seconds = seconds

    @cached_property
    def _client(self) -> "httpx2.AsyncClient":
        try:
            import httpx2
        except ImportError as error:
            raise MissingExtra("telegram", self._name) from error
        return httpx2.AsyncClient(timeout=self._seconds)

    async def close(self) -> None:
        if "_client" in self.__dict__:
            await self._client.aclose()

    async def call(self, method: str, url: str, **request: Any) -> Reply:
        client = self._client
        import httpx2

        try:
            answer = await ask(client, method, url, seconds=self._seconds, most=LARGEST_ANSWER, **request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.InvalidURL) as error:
            raise Outage(f"{self._name} can't be reached: {_why(error)}") from error
        except (httpx2.TransportError, TooMuch) as error:
            raise Lost(f"{self._name} was asked, but its answer was lost: {_why(error)}") from error
        said = answer.headers.get("retry-after", "")
        wait = min(timedelta(seconds=int(said[:9])), LONGEST_WAIT) if said.isdecimal() else None
        return Reply(answer.status, _read(answer.content), wait)

    def failure(self, reply: Reply, why: str) -> Exception:
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


def _read(content: bytes) -> Mapping[str, Any]:
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return {}
    return body if isinstance(body, dict) else {}


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
