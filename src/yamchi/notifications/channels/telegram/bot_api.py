"""Telegram's Bot API over one pooled HTTP client, its answers sorted into the kinds of failure that jobs know.

What concerns the bot (too many requests, a wrong token, a failure of Telegram) is an `Outage`; what concerns the chat or the
message fails that message. A connection that breaks after the request was written is `AnswerLost`.
aiogram is not used for sending: it would bring a second HTTP client, and retries that know nothing of other processes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from yamchi import outgoing
from yamchi.errors import Outage, Retryable, Unrecoverable, YamchiError
from yamchi.notifications.channels.base import AnswerLost, Attachment, Unreachable
from yamchi.outgoing import Client, NoAnswer, NotAsked, TooMuch

TIMEOUT_SECONDS = 30.0
DEADLINE_SECONDS = 50.0
"""Seconds for a whole call: a large document takes its time, but a permit to send is held for at most a minute."""

MAX_ANSWER_BYTES = 1_048_576
LONGEST_REASON = 1_000
MAX_CONNECTIONS = 50
IDLE_SECONDS = 30.0
"""Seconds that a connection may be idle: shorter than the server keeps it."""

Fields = Mapping[str, Any]


class AnswerTooLarge(AnswerLost):
    """Telegram said more than is read of an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the Bot API said."""

    status: int
    body: Mapping[str, Any]

    @property
    def says(self) -> str:
        return f"{self.status} {str(self.body.get('description') or 'no description')[:LONGEST_REASON]}"

    @property
    def parameters(self) -> Mapping[str, Any]:
        found = self.body.get("parameters")
        return found if isinstance(found, dict) else {}

    @property
    def moved_to(self) -> str | None:
        """The chat's new id, when a group has become a supergroup."""
        moved = self.parameters.get("migrate_to_chat_id")
        return None if moved is None else str(moved)


class BotApi:
    """One bot. Each call is one request; it is repeated by nobody here."""

    def __init__(self, url: str, token: str) -> None:
        self.bot_id = token.partition(":")[0]
        self._host = url.partition("://")[2].strip("/")
        self._base = f"{url.rstrip('/')}/bot{token}"
        self._client = Client(
            "telegram",
            "Telegram",
            timeout=TIMEOUT_SECONDS,
            connections=MAX_CONNECTIONS,
            idle_seconds=IDLE_SECONDS,
        )

    async def call(
        self,
        method: str,
        fields: Fields,
        file: tuple[str, Attachment] | None = None,
        *,
        most: int = MAX_ANSWER_BYTES,
    ) -> Any:
        """The result of a method; a failure by its kind. A file is sent beside the fields, under the name given."""
        answer = await self._ask(method, fields, file, most)
        if answer.moved_to and "chat_id" in fields:
            answer = await self._ask(method, {**fields, "chat_id": answer.moved_to}, file, most)
        if answer.body.get("ok"):
            return answer.body.get("result")
        raise _refused(answer)

    async def close(self) -> None:
        await self._client.close()

    async def _ask(
        self, method: str, fields: Fields, file: tuple[str, Attachment] | None, most: int
    ) -> Answer:
        try:
            response = await self._client.ask(
                "POST",
                f"{self._base}/{method}",
                seconds=DEADLINE_SECONDS,
                most=most,
                **_body(fields, file),
            )
        except TooMuch as error:
            raise AnswerTooLarge(f"{self._host} was asked to {method}: {error}") from error
        except NoAnswer as error:
            said = f"{self._host} was asked to {method}, but its answer was lost: {error}"
            raise AnswerLost(said, outage=await self._gone()) from error
        except NotAsked as error:
            raise self._unreachable(error) from error
        return Answer(response.status, _read(response))

    async def _gone(self) -> Outage | None:
        """An `Outage` if Telegram can't be reached now; None if only the one connection broke."""
        try:
            url = f"{self._base}/getMe"
            await self._client.ask("POST", url, seconds=TIMEOUT_SECONDS, most=MAX_ANSWER_BYTES)
        except (NotAsked, NoAnswer) as error:
            return self._unreachable(error)
        return None

    def _unreachable(self, error: Exception) -> Outage:
        return Outage(f"Telegram at {self._host} can't be reached: {error}")


def _body(fields: Fields, file: tuple[str, Attachment] | None) -> dict[str, Any]:
    given = {name: value for name, value in fields.items() if value is not None}
    if file is None:
        return {"json": given}
    name, attachment = file
    flat = {key: value if isinstance(value, str) else json.dumps(value) for key, value in given.items()}
    return {"data": flat, "files": {name: (attachment.filename, attachment.content, attachment.type)}}


def _read(response: outgoing.Answer) -> Mapping[str, Any]:
    try:
        body = json.loads(response.content)
    except (ValueError, RecursionError):
        return {"description": f"{response.reason} (and no JSON)"}
    return body if isinstance(body, dict) else {"description": "JSON that is no answer of a Bot API"}


def _retry_after(answer: Answer) -> timedelta:
    """For how long to wait: as long as Telegram says, if that is a time, and no longer than a day."""
    asked = answer.parameters.get("retry_after", 1)
    is_number = isinstance(asked, int | float) and not isinstance(asked, bool)
    return timedelta(seconds=min(max(float(asked), 0), 86_400) if is_number and abs(asked) < 1e9 else 1)


def _refused(answer: Answer) -> YamchiError:
    match answer.status:
        case HTTPStatus.TOO_MANY_REQUESTS:
            return Outage(f"Telegram asks to wait: {answer.says}", retry_after=_retry_after(answer))
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.NOT_FOUND:
            return Outage(
                f"Telegram does not know TELEGRAM_BOT_TOKEN ({answer.says}): copy it from @BotFather."
            )
        case HTTPStatus.FORBIDDEN:
            return Unreachable(answer.says)
        case status if status >= 500:
            return Outage(f"Telegram is in trouble: {answer.says}")
    # Telegram fetches pictures and documents by their address itself; what it could not get now, it may get later.
    is_about_fetching = "HTTP URL" in answer.says
    return Retryable(answer.says) if is_about_fetching else Unrecoverable(answer.says)
