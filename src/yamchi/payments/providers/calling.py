"""One HTTP call to a provider: within a time, of a bounded size, its failure sorted by kind."""

from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson

from yamchi.errors import MissingExtra, Outage
from yamchi.outgoing import Answer, TooMuch, ask
from yamchi.payments.providers.base import NotFound, Refused, UnknownOutcome

if TYPE_CHECKING:
    import httpx2

TIMEOUT = 30.0
"""Seconds for a whole call; a provider may think for long about a card."""

LARGEST_ANSWER = 4 * 1024 * 1024
LONGEST_WAIT = timedelta(hours=1)


class ProviderApi:
    """A provider's address and how to show who we are. Each call is one request, repeated by nobody here."""

    def __init__(self, name: str, url: str, auth: tuple[str, str]) -> None:
        self._name = name
        self._url = url.rstrip("/")
        self._auth = auth

    @cached_property
    def _client(self) -> "httpx2.AsyncClient":
        try:
            import httpx2
        except ImportError as error:
            raise MissingExtra("payments", "A payment") from error
        return httpx2.AsyncClient(auth=self._auth, timeout=TIMEOUT)

    async def close(self) -> None:
        if "_client" in self.__dict__:
            await self._client.aclose()

    async def call(self, method: str, path: str, **request: Any) -> Mapping[str, Any]:
        """The answer's body; a failure by its kind."""
        client = self._client
        import httpx2

        try:
            answer = await ask(
                client, method, f"{self._url}{path}", seconds=TIMEOUT, most=LARGEST_ANSWER, **request
            )
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise Outage(f"{self._name} can't be reached: {_why(error)}") from error
        except httpx2.TransportError as error:
            raise UnknownOutcome(f"{self._name} was asked, but its answer was lost: {_why(error)}") from error
        except TooMuch as error:
            raise UnknownOutcome(f"{self._name} was asked, but {error}") from error
        body = _read(answer.content)
        if answer.is_success:
            return body
        raise self._failure(answer, body)

    def _failure(self, answer: Answer, body: Mapping[str, Any]) -> Exception:
        said = f"{self._name} answered {answer.status}: {_sentence(body)}"
        match answer.status:
            case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
                return Outage(f"{said}. Check the account's id and secret in the settings")
            case HTTPStatus.NOT_FOUND:
                return NotFound(said)
            case HTTPStatus.TOO_MANY_REQUESTS:
                return Outage(said, retry_after=_retry_after(answer))
            case status if status >= 500:
                return UnknownOutcome(said)
        return Refused(said)


def _read(content: bytes) -> Mapping[str, Any]:
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return {}
    return body if isinstance(body, dict) else {}


def _sentence(body: Mapping[str, Any]) -> str:
    """YooKassa says `description`, Stripe `error.message`."""
    error = body.get("error")
    said = error.get("message") if isinstance(error, dict) else body.get("description")
    return str(said or "no reason given").rstrip(".")


def _retry_after(answer: Answer) -> timedelta | None:
    said = answer.headers.get("retry-after", "")
    return min(timedelta(seconds=int(said[:9])), LONGEST_WAIT) if said.isdecimal() else None


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
