"""Posting to push services: connections kept open, redirects never followed, and only public addresses connected to.

End users choose the services. So an answer is read up to a limit of bytes and seconds: one that never ends, or comes a byte
at a time, costs little and delays nobody.

httpcore2, on which httpx2 is built, is used directly because it lets us choose the address of a connection.
"""

import asyncio
import ssl
from collections.abc import Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import httpcore2
from httpcore2 import AnyIOBackend, AsyncNetworkBackend, AsyncNetworkStream

from yamchi.clock import Clock, to_moment
from yamchi.errors import Outage, Snooze
from yamchi.notifications.channels.base import AnswerLost
from yamchi.notifications.channels.push.endpoints import Lookups, NotFound, NotPublic, public_addresses
from yamchi.perloop import PerLoop

MAX_CONNECTIONS = 250
"""As many as ten messages at once need, each to the twenty browsers that one person may have, and some."""

IDLE_SECONDS = 30.0
TIMEOUTS_SECONDS = {"connect": 5.0, "read": 15.0, "write": 15.0, "pool": 15.0}
DEADLINE_SECONDS = 20.0
"""For the whole request, from the look-up of the name to the end of the answer."""

BODY_DEADLINE_SECONDS = 2.0
"""For what comes after the status; the status alone counts."""

MAX_ANSWER_BYTES = 1_024
MAX_SHOWN_CHARACTERS = 300
LONGEST_RETRY_AFTER = timedelta(minutes=15)
"""The longest `Retry-After` that is followed."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a push service said."""

    status: int
    text: str
    retry_after: timedelta | None = None

    @property
    def says(self) -> str:
        return f"{self.status} {self.text}".strip()


class BadEndpoint(Exception):
    """Nothing can be written to this endpoint, now or later: it is no address, or leads where it must not."""


LOOKUP_THREADS = 8
_person: ContextVar[str] = ContextVar("push_person")
"""For whom a connection is made."""


class PushClient:
    """One pool of connections for all push services, in each event loop."""

    def __init__(self, clock: Clock, *, allows_private: bool = False) -> None:
        self._clock = clock
        self._lookups = Lookups(LOOKUP_THREADS, "push-send")
        self._trusted = ssl.create_default_context()
        self._allows_private = allows_private
        self._pools = PerLoop(self._make_pool)

    def _make_pool(self) -> httpcore2.AsyncConnectionPool:
        return httpcore2.AsyncConnectionPool(
            ssl_context=self._trusted,
            max_connections=MAX_CONNECTIONS,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=None if self._allows_private else PublicNetwork(self._lookups),
        )

    async def send(
        self,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        service: str,
        source: str | None = None,
        person: str = "",
    ) -> Reply:
        """The service's answer, whatever it is; an `Outage` of the service, as seen by this source, when there is none."""
        _person.set(person or url)
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                return await self._exchange(url, headers, body)
        except TimeoutError as error:
            said = f"{service} took longer than {DEADLINE_SECONDS:g} s to answer"
            raise AnswerLost(said, outage=None) from error
        except (httpcore2.ReadError, httpcore2.ReadTimeout, httpcore2.RemoteProtocolError) as error:
            said = f"{service} took the message, but its answer was lost: {_why(error)}"
            raise AnswerLost(said, outage=None) from error
        except httpcore2.PoolTimeout as error:
            raise Snooze(timedelta(seconds=5), "all connections to push services are in use") from error
        except (httpcore2.LocalProtocolError, httpcore2.UnsupportedProtocol, UnicodeError) as error:
            raise BadEndpoint(f"{service} can't be written to: {_why(error)}") from error
        except (httpcore2.NetworkError, httpcore2.TimeoutException, ssl.SSLError, NotFound) as error:
            raise Outage(
                f"The push service {service} can't be reached: {_why(error)}", provider=service, source=source
            ) from error
        except NotPublic as error:
            raise BadEndpoint(str(error)) from error

    async def close(self) -> None:
        here, _ = self._pools.take_all()  # one of another event loop can't be closed from this one
        if here:
            await here.aclose()
        self._lookups.close()

    async def _exchange(self, url: str, headers: Mapping[str, str], body: bytes) -> Reply:
        extensions = {"timeout": TIMEOUTS_SECONDS}
        async with self._pools.get().stream(
            "POST", url, headers=list(headers.items()), content=body, extensions=extensions
        ) as answer:
            content = await _beginning(answer)
        return self._read(answer, content)

    def _read(self, answer: httpcore2.Response, content: bytes) -> Reply:
        headers = {name.lower(): value.decode("latin-1") for name, value in answer.headers}
        text = " ".join(content.decode("utf-8", "replace").split())[:MAX_SHOWN_CHARACTERS]
        retry_after = self._span(headers.get(b"retry-after"))
        return Reply(answer.status, text, retry_after)

    def _span(self, asked: str | None) -> timedelta | None:
        """Seconds, or a date."""
        if asked is None:
            return None
        asked = asked.strip()
        if asked.isdecimal():
            seconds = int(asked) if len(asked) < 10 else LONGEST_RETRY_AFTER.total_seconds()
            return min(timedelta(seconds=seconds), LONGEST_RETRY_AFTER)
        try:
            until = to_moment(parsedate_to_datetime(asked[:100]))
        except (ValueError, TypeError, OverflowError):
            return None
        return min(timedelta(milliseconds=max(until - self._clock.now(), 0)), LONGEST_RETRY_AFTER)


async def _beginning(answer: httpcore2.Response) -> bytes:
    """The beginning of the body, up to the limits. The status counts even if the body does not come."""
    content = b""
    with suppress(TimeoutError, httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError):
        async with asyncio.timeout(BODY_DEADLINE_SECONDS):
            async for chunk in answer.aiter_stream():
                content += chunk[:MAX_ANSWER_BYTES]
                if len(content) >= MAX_ANSWER_BYTES:
                    break
    return content[:MAX_ANSWER_BYTES]


class PublicNetwork(AsyncNetworkBackend):
    """Looks a name up and connects to the address it found, if that is public. Certificates are still the name's."""

    def __init__(self, lookups: Lookups) -> None:
        self._network = AnyIOBackend()
        self._lookups = lookups

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> AsyncNetworkStream:
        addresses = await public_addresses(host, port, _person.get(), self._lookups)
        failure: Exception = NotPublic(f"{host} has no address.")
        for address in addresses:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
