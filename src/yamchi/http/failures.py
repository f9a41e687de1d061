"""Wrong tokens are few or somebody is guessing: they are counted for each address and for all together, and logged.

Once there were too many, a token that somebody chose (ADMIN_TOKEN, API_TOKENS) is compared only if it was right before from
the same address, so that guessing over many connections is no faster than over one, and nobody at work is shut out. Keys and
tokens of pages can't be guessed: right ones are let in all the same.
"""

import ipaddress
from collections import OrderedDict
from functools import lru_cache

import structlog
from starlette.types import Scope

from yamchi.clock import Clock
from yamchi.http.buckets import Buckets
from yamchi.settingtypes import Quota

log = structlog.get_logger("yamchi.access")

OF_AN_ADDRESS = Quota(10, 60_000)
OF_ALL = Quota(300, 60_000)
MOST_KNOWN = 10_000
EVERYBODY = "all"
LONGEST_ADDRESS = 64
"""Characters: behind a proxy that passes on what it was given, a caller chooses the text."""


class TooManyWrong(Exception):
    """A token is not compared because too many were wrong."""

    def __init__(self, wait: int) -> None:
        super().__init__(f"There were too many wrong tokens: come back in {wait} s.")
        self.headers = {"retry-after": str(wait)}


class Failures:
    """How often which address was wrong of late."""

    def __init__(self, clock: Clock) -> None:
        self._each = Buckets(OF_AN_ADDRESS, clock)
        self._all = Buckets(OF_ALL, clock)
        self._right: OrderedDict[tuple[str, int], None] = OrderedDict()

    def check(self, address: str, token: bytes) -> None:
        """Whether this token may be compared now; TooManyWrong otherwise."""
        if self._each.is_untouched:  # nobody has been wrong: the usual case, on the hottest way in
            return
        if (wait := self._wait(address)) and (address, hash(token)) not in self._right:
            raise TooManyWrong(wait)

    def right(self, address: str, token: bytes) -> None:
        key = (address, hash(token))
        self._right[key] = None
        self._right.move_to_end(key)
        if len(self._right) > MOST_KNOWN:
            self._right.popitem(last=False)

    def forged(self, address: str, path: str) -> None:
        """Count the token of a page that was not made here; TooManyWrong if there were too many before it."""
        if wait := self._wait(address):
            raise TooManyWrong(wait)
        self.wrong(address, "the token of a page", path)

    def wrong(self, address: str, what: str, path: str) -> None:
        """Count it and say so; once there were too many, it is said no more."""
        self._each.take(address)
        self._all.take(EVERYBODY)
        log.warning(f"refused {what}", address=address, path=path[:200])
        if wait := self._wait(address):
            log.warning(
                "too many wrong tokens: ADMIN_TOKEN and API_TOKENS are not compared for now",
                address=address,
                wait=f"{wait} s",
            )

    def _wait(self, address: str) -> int:
        """Seconds before one more may be wrong."""
        return max(self._each.look(address).wait, self._all.look(EVERYBODY).wait)


def address_of(scope: Scope) -> str:
    """Where a request comes from; of IPv6 the network, because one customer of a provider has all the addresses in it."""
    client = scope.get("client")
    return _network_of(str(client[0])[:LONGEST_ADDRESS] if client else "unknown")


@lru_cache(maxsize=10_000)
def _network_of(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 6 and not address.ipv4_mapped:
        return str(ipaddress.ip_network(f"{address}/64", strict=False))
    return host
