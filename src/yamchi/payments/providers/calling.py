"""One HTTP call to a provider: within a time, of a bounded size, its failure sorted by kind."""

from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson

from yamchi.errors import MissingExtra, Outage
from yamchi.payments.providers.base import NotThere, Refused, UnknownOutcome

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
            raise MissingExtra("payments", "Payments") from error
        return httpx2.AsyncClient(auth=self._auth, timeout=TIMEOUT)

    async def close(self) -> None:
        if "_client" in self.__dict__:
            await self._client.aclose()

    async def call(self, method: str, path: str, **request: Any) -> Mapping[str, Any]:
        """The answer's body; a failure by its kind."""
        client = self._client
        import httpx2

        try:
            async with client.stream(method, f"{self._url}{path}", **request) as response:
                body = await _bounded(response)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise Outage(f"{self._name} can't be reached: {_why(error)}") from error
        except httpx2.TransportError as error:
            raise UnknownOutcome(f"{self._name} was asked, but its answer was lost: {_why(error)}") from error
        if response.is_success:
            return body
        raise self._failure(response, body)

    def _failure(self, response: "httpx2.Response", body: Mapping[str, Any]) -> Exception:
        said = f"{self._name} answered {response.status_code}: {_sentence(body)}"
        match response.status_code:
            case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
                return Outage(f"{said}. Check the account's id and secret in the settings")
            case HTTPStatus.NOT_FOUND:
                return NotThere(said)
            case HTTPStatus.TOO_MANY_REQUESTS:
                return Outage(said, retry_after=_retry_after(response))
            case status if status >= 500:
                return UnknownOutcome(said)
        return Refused(said)


async def _bounded(response: "httpx2.Response") -> Mapping[str, Any]:
    parts = bytearray()
    async for part in response.aiter_bytes():
        parts += part
        if len(parts) > LARGEST_ANSWER:
            raise UnknownOutcome(f"An answer of more than {LARGEST_ANSWER} bytes was not read to its end")
    try:
        body = orjson.loads(bytes(parts))
    except orjson.JSONDecodeError:
        return {}
    return body if isinstance(body, dict) else {}


def _sentence(body: Mapping[str, Any]) -> str:
    """YooKassa says `description`, Stripe `error.message`."""
    error = body.get("error")
    said = error.get("message") if isinstance(error, dict) else body.get("description")
    return str(said or "no reason given").rstrip(".")


def _retry_after(response: "httpx2.Response") -> timedelta | None:
    said = response.headers.get("retry-after", "")
    return min(timedelta(seconds=int(said[:9])), LONGEST_WAIT) if said.isdecimal() else None


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
