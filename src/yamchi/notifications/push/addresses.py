"""Where a push endpoint may be: at a public address, over https. Anybody can tell us an endpoint, and we connect to it.

The name is looked up when a browser subscribes, and again for every connection, to the very address that was checked: a
name that points elsewhere a moment later gains nothing.
"""

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from yamchi.errors import InvalidJob

LONGEST = 2_000
_TRANSLATED = ip_network("64:ff9b::/96")


class NotPublic(InvalidJob):
    """An endpoint that points into somebody's own network, or is no endpoint at all."""


async def check_endpoint(endpoint: str) -> None:
    """Refuse an endpoint that is not https, or leads to an address that is not public."""
    try:
        address = urlsplit(endpoint)
        host, port = address.hostname, address.port or 443
    except ValueError:
        raise NotPublic(f"{endpoint[:200]!r} is not an address.") from None
    if address.scheme != "https" or not host or len(endpoint) > LONGEST:
        raise NotPublic("The endpoint must be an https address, as the browser gives it.")
    if address.username is not None or address.password is not None:
        raise NotPublic("The endpoint must have no user or password in it.")
    await public_addresses(host, port)


async def public_addresses(host: str, port: int) -> list[str]:
    """The addresses of a host, each of them public."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        raise NotPublic(f"The endpoint's host {host[:200]!r} can't be found.") from None
    addresses = list(dict.fromkeys(str(place[4][0]) for place in found))
    for address in addresses:
        if not is_public(address):
            raise NotPublic(
                f"The endpoint's host {host[:200]!r} is not public: push services are on the internet. "
                "PUSH_ALLOW_PRIVATE=true allows one of your own."
            )
    return addresses


def is_public(address: str) -> bool:
    ip = ip_address(address.partition("%")[0])
    inner = _inner(ip) if isinstance(ip, IPv6Address) else None
    if inner is not None:
        return is_public(str(inner))
    return ip.is_global and not ip.is_multicast


def _inner(ip: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that is meant, where one is wrapped in another."""
    if ip in _TRANSLATED:
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
