"""Answers to what people write, by any endpoint that speaks OpenAI's chat API. What it says is text, never markup.

A person may ask so often in an hour (`ai_rate:{tgId}`); what was said is remembered for a day (`ai_history:{tgId}`).
"""

from typing import Any

import orjson
import structlog

from yamchi.errors import YamchiError
from yamchi.leads.outside import OutsideApi
from yamchi.leads.updates import Person
from yamchi.storage.keys import Keys

log = structlog.get_logger("yamchi.leads")

TIMEOUT = 90.0
LONGEST_QUESTION = 2_000
LONGEST_ANSWER = 8_000
MOST_REMEMBERED = 20
MOST_TOKENS = 800


class Conversation:
    """Asks the model, with what was said before."""

    def __init__(
        self, keys: Keys, *, url: str, key: str | None, model: str, prompt: str, hourly: int
    ) -> None:
        self._keys = keys
        self._api = OutsideApi("The AI endpoint", TIMEOUT)
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._model = model
        self._prompt = prompt
        self._hourly = hourly

    async def answer(self, person: Person, text: str) -> str | None:
        """Plain words; None if the endpoint has none, "" if the person has asked too often."""
        if await self._keys.incr(f"ai_rate:{person.id}", "1h") > self._hourly:
            return ""
        name = f"ai_history:{person.id}"
        history = _read(await self._keys.get(name))
        asked = [*history, {"role": "user", "content": text[:LONGEST_QUESTION]}]
        try:
            said = await self._ask(asked)
        except YamchiError as error:
            log.warning(f"the AI did not answer a question: {error}")
            return None
        if said is None:
            return None
        told = [*asked, {"role": "assistant", "content": said}][-MOST_REMEMBERED:]
        await self._keys.set(name, orjson.dumps(told).decode(), "24h")
        return said

    async def close(self) -> None:
        await self._api.close()

    async def _ask(self, messages: list[dict[str, str]]) -> str | None:
        system = [{"role": "system", "content": self._prompt}] if self._prompt else []
        body = {"model": self._model, "messages": [*system, *messages], "max_tokens": MOST_TOKENS}
        reply = await self._api.call("POST", self._url, headers=self._headers, json=body)
        if reply.status != 200:
            error = reply.body.get("error")
            why = error.get("message") if isinstance(error, dict) else reply.body.get("message")
            raise self._api.failure(reply, str(why or ""))
        try:
            content = reply.body["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            return None
        clean = content.replace("\0", "").strip() if isinstance(content, str) else ""
        return clean.encode("utf-8", "replace").decode()[:LONGEST_ANSWER] or None


def _read(kept: str | None) -> list[dict[str, str]]:
    if kept is None:
        return []
    try:
        found: Any = orjson.loads(kept)
    except orjson.JSONDecodeError:
        return []
    return found[-MOST_REMEMBERED:] if isinstance(found, list) else []
