"""Where a push endpoint may be: at a public address, over https. Anybody can tell us an endpoint, and we connect to it.

The name is looked up when a browser subscribes, and again for every connection, to the very address that was checked: a
name that points elsewhere a moment later gains nothing. Names are looked up in threads, which can't be interrupted, so that those
of who subscribes and of what is sent are apart, and each person has one of them at a time: a slow name server delays only
who chose it.
"""

import asyncio
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from yamchi.errors import InvalidJob

MAX_URL_LENGTH = 2_000
WRITABLE = r"^[!-~]*$"
"""What an HTTP request can carry as it is: no spaces, no control characters, nothing beyond ASCII."""

LOOKUP_SECONDS = 5.0
MOST_ADDRESSES = 4
"""Of one host: trying one after another must not take long."""

_HOST = re.compile(
    r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_]([a-z0-9_-]{0,62}))*\.?", re.IGNORECASE
)


class NotPublic(InvalidJob):
    """An endpoint that points into somebody's own network, or is no endpoint at all."""


class NotFound(NotPublic):
    """A host whose address is not known, at least now."""


class Lookups:
    """Asks the name server, in threads of its own, one name at a time for each person."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._under_way: dict[str, asyncio.Future[list[str]]] = {}

    async def find(self, host: str, port: int, person: str) -> list[str]:
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                while before := self._under_way.get(person):
                    await asyncio.wait([before])
                found = await asyncio.shield(self._begin(host, port, person))
        except TimeoutError:
            raise NotFound(f"The name server of {host[:200]!r} does not answer.") from None
        except (socket.gaierror, UnicodeError):
            raise NotFound(f"The endpoint's host {host[:200]!r} can't be found.") from None
        return list(dict.fromkeys(found))

    def _begin(self, host: str, port: int, person: str) -> asyncio.Future[list[str]]:
        """Under way until the thread is free again, however long somebody waits for it."""
        loop = asyncio.get_running_loop()
        asked = loop.run_in_executor(self._threads, _ask_name_server, host, port)
        self._under_way[person] = asked

        def end(done: asyncio.Future[list[str]]) -> None:
            del self._under_way[person]
            if not done.cancelled():
                done.exception()  # whoever waited has been told, or has gone

        asked.add_done_callback(end)
        return asked

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


async def check_endpoint(
    endpoint: str, person: str, lookups: Lookups, *, allows_private: bool = False
) -> None:
    """Refuse an endpoint that can't be written to, is not https, or leads to an address that is not public."""
    address = _read(endpoint)
    if address.scheme != "https" and not (allows_private and address.scheme == "http"):
        raise NotPublic("The endpoint must be an https address, as the browser gives it.")
    if not allows_private:
        await public_addresses(address.hostname or "", address.port or 443, person, lookups)


def _read(endpoint: str) -> SplitResult:
    if len(endpoint) > MAX_URL_LENGTH or not re.fullmatch(WRITABLE, endpoint):
        raise NotPublic(
            f"The endpoint must be an address of up to {MAX_URL_LENGTH} characters, without spaces, as the browser gives it."
        )
    try:
        address = urlsplit(endpoint)
        host, port = address.hostname or "", address.port
    except ValueError:
        raise NotPublic(f"{endpoint[:200]!r} is not an address.") from None
    if not (_HOST.fullmatch(host) or ":" in host) or port == 0:
        raise NotPublic("The endpoint must be an https address, as the browser gives it.")
    if address.username is not None or address.password is not None:
        raise NotPublic("The endpoint must have no user or password in it.")
    return address


async def public_addresses(host: str, port: int, person: str, lookups: Lookups) -> list[str]:
    """The addresses of a host that this person chose, each of them public."""
    addresses = await lookups.find(host, port, person)
    for address in addresses:
        if not is_public(address):
            raise NotPublic(
                f"The endpoint's host {host[:200]!r} is not public: push services are on the internet. "
                "PUSH_ALLOW_PRIVATE=true allows one of your own."
            )
    return addresses[:MOST_ADDRESSES]


def _ask_name_server(host: str, port: int) -> list[str]:
    return [str(place[4][0]) for place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


# ── Which addresses are public ────────────────────────────────────────────────────────────────────────────────────

# What IANA has set apart. `ipaddress.is_global` is not asked: it knows what its Python knew, and takes some of these for public.
_RESERVED_V4 = tuple(map(ip_network, (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
    "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
    "224.0.0.0/4", "240.0.0.0/4",
)))  # fmt: skip
_UNICAST_V6 = ip_network("2000::/3")
"""The only part of IPv6 that is given out; site-local, unique local, link-local and loopback addresses are outside of it."""

_RESERVED_V6 = tuple(map(ip_network, ("2001::/23", "2001:db8::/32", "3fff::/20")))
_NAT64 = ip_network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Whether an address is on the internet, and nobody's own network: the one place where that is decided."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv4Address):
        return not any(ip in reserved for reserved in _RESERVED_V4)
    if (inner := _inner(ip)) is not None:
        return is_public(str(inner))
    return ip in _UNICAST_V6 and not any(ip in reserved for reserved in _RESERVED_V6)


def _inner(ip: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that is reached, where one is wrapped in another: as such, by NAT64, by 6to4."""
    return IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else ip.ipv4_mapped or ip.sixtofour
