"""Calling other services over HTTP, with a limit of time and of size, however they answer.

A client's own timeouts are for each read and write: an answer that comes a byte at a time keeps within them for ever, and
one that never ends fills the memory. Here the whole call has a deadline, and the answer a largest size. What fails is
`NotAsked`, which may be repeated at once, or `NoAnswer`, after which it may have been done all the same.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson

from yamchi.errors import MissingExtra
from yamchi.perloop import PerLoop

if TYPE_CHECKING:
    import httpx2

AS_IT_IS = {"Accept-Encoding": "identity"}
"""Ask for uncompressed answers: a small one could unpack to a huge one."""

IDLE_SECONDS = 5.0
LONGEST_WAIT = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    reason: str
    headers: Mapping[str, str]
    content: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def body(self) -> Mapping[str, Any]:
        """The answer as a JSON object; an empty one if it is none."""
        try:
            body = orjson.loads(self.content)
        except orjson.JSONDecodeError:
            return {}
        return body if isinstance(body, dict) else {}

    @property
    def retry_after(self) -> timedelta | None:
        """The Retry-After if it is a number of seconds, at most an hour; else None."""
        said = self.headers.get("retry-after", "")
        is_number = said.isascii() and said.isdecimal()
        return min(timedelta(seconds=int(said[:9])), LONGEST_WAIT) if is_number else None


class NotAsked(Exception):
    """The request did not get through: there is no such address, no connection, or it broke before all was written."""


class NoAnswer(Exception):
    """The request was written, but no answer came, or not in time."""


class TooMuch(NoAnswer):
    """The answer is larger than asked for; the rest of it was not read."""


class Client:
    """A pool of connections for each event loop, made by its first call. Each call is one request, repeated by nobody here."""

    def __init__(
        self,
        extra: str,
        purpose: str,
        *,
        timeout: float,
        connections: int = 100,
        idle_seconds: float = IDLE_SECONDS,
        **options: Any,
    ) -> None:
        """The extra installs httpx2 for this purpose. The timeout, in seconds, is for each read and write; options are httpx2's."""
        self._extra, self._purpose = extra, purpose
        self._timeout, self._connections, self._idle_seconds = timeout, connections, idle_seconds
        self._options = options
        self._pools: PerLoop[_Pool] = PerLoop(_Pool)

    async def ask(
        self,
        method: str,
        url: str,
        *,
        seconds: float,
        most: int,
        headers: Mapping[str, str] | None = None,
        **request: Any,
    ) -> Answer:
        """The answer, whatever it is, if it is all there in so many seconds and has no more than `most` bytes."""
        client = self._pools.get().client or await self._make()
        import httpx2

        try:
            async with (
                asyncio.timeout(seconds),
                client.stream(method, url, headers={**(headers or {}), **AS_IT_IS}, **request) as response,
            ):
                content = await _read(response, most)
        except TimeoutError as error:
            raise NoAnswer(f"it took longer than {seconds:g} s") from error
        except (httpx2.ReadError, httpx2.ReadTimeout, httpx2.RemoteProtocolError, httpx2.CloseError) as error:
            raise NoAnswer(_why(error)) from error
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            raise NotAsked(_why(error)) from error
        return Answer(response.status_code, response.reason_phrase, response.headers, content)

    async def close(self) -> None:
        here, _ = self._pools.take_all()  # one of another event loop can't be closed from this one
        if here and here.client:
            await here.client.aclose()

    async def _make(self) -> "httpx2.AsyncClient":
        try:
            trusted = await asyncio.to_thread(_trusted)
            import httpx2
        except ImportError as error:
            raise MissingExtra(self._extra, self._purpose) from error
        pool = self._pools.get()
        if pool.client is None:  # by another call meanwhile
            limits = httpx2.Limits(max_connections=self._connections, keepalive_expiry=self._idle_seconds)
            pool.client = httpx2.AsyncClient(
                verify=trusted, timeout=self._timeout, limits=limits, **self._options
            )
        return pool.client


@dataclass(slots=True)
class _Pool:
    """The pool of one event loop."""

    client: "httpx2.AsyncClient | None" = None


@cache
def _trusted() -> ssl.SSLContext:
    """Whose certificates are trusted: reading them takes a tenth of a second, which is too long for an event loop."""
    import httpx2

    return httpx2.create_ssl_context()


async def _read(response: "httpx2.Response", most: int) -> bytes:
    content = bytearray()
    async for part in response.aiter_raw():
        content += part
        if len(content) > most:
            raise TooMuch(f"the answer is larger than {most:,} bytes")
    return bytes(content)


def _why(error: Exception) -> str:
    """Without the address, which may hold a token."""
    return str(error) or type(error).__name__
