"""One HTTP call to a provider: within a time, of a bounded size, its failure sorted by kind.

Only a definite no is `Refused`. An answer that says neither yes nor no (a provider that is still at work on the same key, a
proxy's page) is `UnknownOutcome`: taken for a no, it would let the same money be asked for or given back again.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

import structlog

from yamchi.errors import InvalidJob, Outage
from yamchi.outgoing import Answer, Client, NoAnswer, NotAsked, TooMuch
from yamchi.payments.providers.base import NotFound, Refused, UnknownOutcome, Unreadable

log = structlog.get_logger("yamchi.payments")

T = TypeVar("T")

TIMEOUT = 30.0
"""Seconds for a whole call; a provider may think for long about a card."""

LARGEST_ANSWER = 4 * 1024 * 1024

Page = tuple[Sequence[Mapping[str, Any]], str | None]
"""What a page of a list has, and from where the next one begins, if there is one."""

UNREADABLE = (ArithmeticError, AttributeError, InvalidJob, KeyError, TypeError, ValueError)
"""What reading an answer of another shape than the documented one raises."""


class ProviderApi:
    """A provider's address and how to show who we are. Each call is one request, repeated by nobody here."""

    def __init__(self, name: str, url: str, auth: tuple[str, str]) -> None:
        self._name = name
        self._url = url.rstrip("/")
        self._client = Client("payments", "A payment", auth=auth, timeout=TIMEOUT)

    async def close(self) -> None:
        await self._client.close()

    async def call(self, method: str, path: str, read: Callable[[Mapping[str, Any]], T], **request: Any) -> T:
        """What `read` makes of the answer's body; a failure by its kind."""
        answer = await self._ask(method, path, **request)
        if not answer.is_success:
            raise self._failure(answer)
        if answer.status == HTTPStatus.ACCEPTED:
            raise UnknownOutcome(f"{self._name} is still at work on it")
        try:
            return read(answer.body)
        except UNREADABLE as error:
            raise Unreadable(f"{self._name} gave an answer that can't be read: {error!r}") from error

    async def list_all(
        self,
        path: str,
        query: Mapping[str, Any],
        *,
        cursor: str,
        read_page: Callable[[Mapping[str, Any]], Page],
        read: Callable[[Mapping[str, Any]], T],
    ) -> AsyncIterator[T]:
        """All that a list has, page by page; of what can't be read a line is logged. `cursor` is the parameter that says from where."""
        after: str | None = None
        while True:
            params = {**query, cursor: after} if after else query
            items, after = await self.call("GET", path, read_page, params=params)
            for item in items:
                try:
                    found = read(item)
                except UNREADABLE as error:
                    log.warning(f"{self._name} lists a payment that can't be read", error=repr(error))
                else:
                    yield found
            if not after:
                return

    async def _ask(self, method: str, path: str, **request: Any) -> Answer:
        try:
            return await self._client.ask(
                method, f"{self._url}{path}", seconds=TIMEOUT, most=LARGEST_ANSWER, **request
            )
        except NotAsked as error:
            raise Outage(f"{self._name} can't be reached: {error}") from error
        except TooMuch as error:
            raise UnknownOutcome(f"{self._name} was asked, but {error}") from error
        except NoAnswer as error:
            raise UnknownOutcome(f"{self._name} was asked, but its answer was lost: {error}") from error

    def _failure(self, answer: Answer) -> Exception:
        said = f"{self._name} answered {answer.status}: {_sentence(answer.body)}"
        match answer.status:
            case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
                return Outage(f"{said}. Check the account's id and secret in the settings")
            case HTTPStatus.NOT_FOUND:
                return NotFound(said)
            case HTTPStatus.TOO_MANY_REQUESTS:
                return Outage(said, retry_after=answer.retry_after)
            case HTTPStatus.REQUEST_TIMEOUT | HTTPStatus.CONFLICT:  # 409: the same key is being worked on
                return UnknownOutcome(said)
            case status if status >= 500:
                return UnknownOutcome(said)
        return Refused(said)


def _sentence(body: Mapping[str, Any]) -> str:
    """YooKassa says `description`, Stripe `error.message`."""
    error = body.get("error")
    said = error.get("message") if isinstance(error, dict) else body.get("description")
    return str(said or "no reason given").rstrip(".")
