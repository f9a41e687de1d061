"""The six functions of `pgmq_public` over PostgREST, and their errors as sentences."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import orjson

from yamchi.errors import EngineError, EngineUnavailable, InvalidJob
from yamchi.outgoing import Answer, Client, NoAnswer, NotAsked, TooMuch
from yamchi.queues.engines.names import pgmq_name
from yamchi.queues.engines.supabase.reading import Message, read_messages

T = TypeVar("T")

REQUEST_SECONDS = 30.0
CALL_SECONDS = 60.0
"""For a whole call; a batch of large jobs takes its time."""

LARGEST_ANSWER_BYTES = 64 * 1_048_576


class TooLarge(EngineError):
    """What was asked for is more than anybody would send; less of it may be asked for."""


class NoSuchQueue(EngineError):
    """The project answers and takes the key, but has no queue of this name."""


class Uncountable(EngineError):
    """Among the messages asked for is one whose count of reads is the largest there is: nothing can be read with it."""


class Rest:
    """One Supabase project."""

    def __init__(self, project: str, key: str) -> None:
        self.project = project.rstrip("/")
        headers = {
            **_credentials(key),
            "Content-Profile": "pgmq_public",
            "Content-Type": "application/json",
        }
        self._client = Client("supabase", "Supabase", headers=headers, timeout=REQUEST_SECONDS)
        self._took_the_key = False

    async def send(self, queue: str, bodies: Sequence[bytes], *, suffix: str = "") -> list[int]:
        """Messages at once; their numbers, in the same order."""
        body = {"queue_name": pgmq_name(queue) + suffix, "messages": [orjson.Fragment(one) for one in bodies]}
        numbers = self._understand(await self._call("send_batch", body), _read_numbers)
        if len(numbers) != len(bodies):
            raise EngineUnavailable(
                f"Supabase was sent {len(bodies)} messages for {queue} and answered with {len(numbers)} numbers."
            )
        return numbers

    async def read(self, queue: str, hold: int, limit: int) -> list[Message]:
        """Up to so many messages, hidden from other readers for `hold` seconds."""
        body = {"queue_name": pgmq_name(queue), "sleep_seconds": hold, "n": limit}
        return self._understand(await self._call("read", body), read_messages)

    async def pop(self, queue: str) -> list[Message]:
        """Take the first message off without counting that it was read."""
        return self._understand(await self._call("pop", {"queue_name": pgmq_name(queue)}), read_messages)

    async def delete(self, queue: str, number: int) -> None:
        """Take a message off; one that is gone already, or with its queue, is fine."""
        with suppress(NoSuchQueue):
            await self._call("delete", {"queue_name": pgmq_name(queue), "message_id": number})

    async def ping(self) -> None:
        """Raise unless the project answers, takes the key and exposes its queues."""
        await self.has("yamchi")

    async def has(self, name: str) -> bool:
        """Whether there is a queue of this name, as pgmq calls it. Nothing is read."""
        try:
            content = await self._call("read", {"queue_name": name, "sleep_seconds": 0, "n": 0})
        except NoSuchQueue:
            return False
        self._understand(content, read_messages)
        return True

    async def close(self) -> None:
        await self._client.close()

    async def _call(self, function: str, body: dict[str, Any]) -> bytes:
        """What the function gives, as JSON."""
        url, content = f"{self.project}/rest/v1/rpc/{function}", orjson.dumps(body)
        try:
            answer = await self._client.ask(
                "POST", url, seconds=CALL_SECONDS, most=LARGEST_ANSWER_BYTES, content=content
            )
        except TooMuch as error:
            raise TooLarge(f"Supabase answered, but {error}.") from error
        except (NotAsked, NoAnswer) as error:
            raise EngineUnavailable(
                f"Supabase at {self.project} can't be reached ({error}): check SUPABASE_URL and the network."
            ) from error
        if answer.is_success:
            self._took_the_key = True
            return answer.content or b"null"
        raise self._explain(answer, function, str(body["queue_name"]))

    def _understand(self, content: bytes, read: Callable[[bytes], T]) -> T:
        """What an answer says. What is no answer of a queue comes from something else: a proxy, or a page for people."""
        try:
            if content.lstrip()[:1] not in (b"[", b"n"):
                raise ValueError("neither a list nor null")
            return read(content)
        except (LookupError, TypeError, ValueError) as error:
            raise EngineUnavailable(
                f"What answers at {self.project} does not answer as Supabase does ({error}): check SUPABASE_URL."
            ) from error

    def _explain(self, answer: Answer, function: str, queue: str) -> EngineError | InvalidJob:
        code, said = _read_error(answer)
        if answer.status in (401, 403):
            # At the start this is a mistake in the settings; later on it may be a key that is being changed.
            kind = EngineUnavailable if self._took_the_key else EngineError
            return kind(f"Supabase at {self.project} refused the key: correct SUPABASE_SERVICE_ROLE_KEY.")
        if code in ("PGRST106", "PGRST202"):
            return EngineError(
                f"Supabase at {self.project} does not expose pgmq_public: "
                "switch on 'Expose Queues via PostgREST' under Integrations, Queues, Settings."
            )
        if code == "42P01":
            self._took_the_key = True
            return NoSuchQueue(
                f"Supabase has no queue {queue}: create it under Queues, or run SELECT pgmq.create('{queue}');"
            )
        if code == "22003" and function == "read":
            return Uncountable(
                f"Supabase can't read {queue} ({said}): a message's read_ct can't grow any more."
            )
        if code.startswith("22"):
            return InvalidJob(f"Supabase can't keep this data as JSON ({said}): nothing was written.")
        kind = EngineUnavailable if answer.status >= 500 or answer.status == 429 else EngineError
        return kind(f"Supabase answered {answer.status} ({said}).")


def _credentials(key: str) -> dict[str, str]:
    """A service_role key is a JWT that PostgREST reads as well; the new ones, `sb_secret_…`, are only for the gateway before it."""
    own = {"apikey": key}
    return own if key.startswith("sb_") else {**own, "Authorization": f"Bearer {key}"}


def _read_numbers(content: bytes) -> list[int]:
    return [int(number) for number in orjson.loads(content)]


def _read_error(answer: Answer) -> tuple[str, str]:
    try:
        body = orjson.loads(answer.content)
        return str(body.get("code") or "")[:20], str(body.get("message") or answer.reason)[:1_000]
    except (orjson.JSONDecodeError, AttributeError):
        return "", answer.reason
