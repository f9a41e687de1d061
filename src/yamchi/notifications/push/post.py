"""Posting to push services: connections kept open, redirects never followed, and only public addresses connected to.

httpcore2 is the ground that httpx2 stands on; it is used as it is because it lets us choose the address of a connection.
"""

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import httpcore2
from httpcore2 import AnyIOBackend, AsyncNetworkBackend, AsyncNetworkStream

from yamchi.clock import Clock, to_moment
from yamchi.errors import Outage
from yamchi.notifications.channels.base import AnswerLost
from yamchi.notifications.push.addresses import NotPublic, public_addresses

CONNECTIONS = 50
KEPT_OPEN = 30.0
TIMEOUT = {"connect": 10.0, "read": 30.0, "write": 30.0, "pool": 60.0}
LONGEST_ANSWER = 300


@dataclass(frozen=True, slots=True)
class Reply:
    """What a push service said."""

    status: int
    text: str
    location: str | None = None
    retry_after: timedelta | None = None

    @property
    def says(self) -> str:
        return f"{self.status} {self.text}".strip()


class Post:
    """One pool of connections for all push services."""

    def __init__(self, clock: Clock, *, allows_private: bool = False) -> None:
        self._clock = clock
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl.create_default_context(),
            max_connections=CONNECTIONS,
            keepalive_expiry=KEPT_OPEN,
            network_backend=None if allows_private else PublicNetwork(),
        )

    async def send(self, url: str, headers: Mapping[str, str], body: bytes, service: str) -> Reply:
        """The service's answer, whatever it is; an `Outage` of the service when there is none."""
        try:
            answer = await self._pool.request(
                "POST", url, headers=list(headers.items()), content=body, extensions={"timeout": TIMEOUT}
            )
        except (httpcore2.ReadError, httpcore2.ReadTimeout, httpcore2.RemoteProtocolError) as error:
            said = f"{service} took the message, but its answer was lost: {_why(error)}"
            raise AnswerLost(said, outage=None) from error
        except (
            httpcore2.NetworkError,
            httpcore2.TimeoutException,
            httpcore2.ProtocolError,
            ssl.SSLError,
        ) as error:
            raise Outage(
                f"The push service {service} can't be reached: {_why(error)}", provider=service
            ) from error
        return self._read(answer)

    async def close(self) -> None:
        await self._pool.aclose()

    def _read(self, answer: httpcore2.Response) -> Reply:
        headers = {name.lower(): value.decode("latin-1") for name, value in answer.headers}
        text = " ".join(answer.content[:LONGEST_ANSWER].decode("utf-8", "replace").split())
        retry_after = self._span(headers.get(b"retry-after"))
        return Reply(answer.status, text, headers.get(b"location"), retry_after)

    def _span(self, wish: str | None) -> timedelta | None:
        """Seconds, or a date."""
        if wish is None:
            return None
        if wish.strip().isdecimal():
            return timedelta(seconds=int(wish))
        try:
            until = to_moment(parsedate_to_datetime(wish))
        except ValueError:
            return None
        return timedelta(milliseconds=max(until - self._clock.now(), 0))


class PublicNetwork(AsyncNetworkBackend):
    """Looks a name up and connects to the address it found, if that is public. Certificates are still the name's."""

    def __init__(self) -> None:
        self._network = AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> AsyncNetworkStream:
        addresses = await public_addresses(host, port)
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
