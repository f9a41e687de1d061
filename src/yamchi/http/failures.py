"""Wrong tokens are few or somebody is guessing: they are counted for each address and for all together, and logged.

Once there were too many, only a token that was right before from the same address is looked at; every other is refused without
being compared, so that guessing over many connections is no faster than over one, and nobody at work is shut out.
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


class Failures:
    """How often which address was wrong of late."""

    def __init__(self, clock: Clock) -> None:
        self._each = Buckets(OF_AN_ADDRESS, clock)
        self._all = Buckets(OF_ALL, clock)
        self._right: OrderedDict[tuple[str, int], None] = OrderedDict()

    def wait(self, address: str, token: str) -> int:
        """Seconds before this token is looked at; 0: now."""
        if self._each.is_untouched:  # nobody has been wrong: the usual case, on the hottest way in
            return 0
        wait = max(self._each.look(address).wait, self._all.look(EVERYBODY).wait)
        return 0 if wait and (address, hash(token)) in self._right else wait

    def right(self, address: str, token: str) -> None:
        key = (address, hash(token))
        self._right[key] = None
        self._right.move_to_end(key)
        if len(self._right) > MOST_KNOWN:
            self._right.popitem(last=False)

    def wrong(self, address: str, what: str, path: str) -> None:
        """Count it and say so; once there were too many, it is said no more."""
        self._each.take(address)
        self._all.take(EVERYBODY)
        log.warning(f"refused {what}", address=address, path=path[:200])
        if wait := max(self._each.look(address).wait, self._all.look(EVERYBODY).wait):
            log.warning(
                "too many wrong tokens: new ones are not looked at for now", address=address, wait=f"{wait} s"
            )


def address_of(scope: Scope) -> str:
    """Where a request comes from; of IPv6 the network, because one customer of a provider has all the addresses in it."""
    client = scope.get("client")
    return _network_of(str(client[0]) if client else "unknown")


@lru_cache(maxsize=10_000)
def _network_of(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 6 and not address.ipv4_mapped:
        return str(ipaddress.ip_network(f"{address}/64", strict=False))
    return host
