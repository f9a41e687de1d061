"""Asking others over HTTP: for so long, and for so much, whoever they are and however they answer.

A client's own timeouts are for each read and write: an answer that comes a byte at a time keeps within them for ever, and
one that never ends fills the memory. Here the whole call has a deadline, and the answer a largest size.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

AS_IT_IS = {"Accept-Encoding": "identity"}
"""A small answer that unpacks to a huge one is asked of nobody."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said, whole."""

    status: int
    reason: str
    headers: Mapping[str, str]
    content: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class TooMuch(Exception):
    """The answer is larger than asked for; the rest of it was not read."""


async def ask(
    client: "httpx2.AsyncClient",
    method: str,
    url: str,
    *,
    seconds: float,
    most: int,
    headers: Mapping[str, str] | None = None,
    **request: Any,
) -> Answer:
    """The answer; a `ReadTimeout` of httpx2 when it is not all there in time, as with any other answer that does not come."""
    import httpx2

    try:
        async with (
            asyncio.timeout(seconds),
            client.stream(method, url, headers={**(headers or {}), **AS_IT_IS}, **request) as response,
        ):
            content = await _read(response, most)
    except TimeoutError as error:
        raise httpx2.ReadTimeout(f"it took longer than {seconds:g} s") from error
    return Answer(response.status_code, response.reason_phrase, response.headers, content)


async def _read(response: "httpx2.Response", most: int) -> bytes:
    content = bytearray()
    async for part in response.aiter_raw():
        content += part
        if len(content) > most:
            raise TooMuch(f"the answer is larger than {most:,} bytes")
    return bytes(content)
