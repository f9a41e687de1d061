"""How much one caller may ask for, by kind of request. Answers say what is left, with the fields of
draft-ietf-httpapi-ratelimit-headers (RateLimit-Policy, RateLimit); too much is 429 with Retry-After.

The counts are this process's own. Whoever reaches a server without ADMIN_TOKEN is on the same machine, and is not counted.
"""

import math
from http import HTTPStatus
from typing import Literal

from starlette.exceptions import HTTPException

from yamchi.clock import Clock
from yamchi.http.buckets import Buckets
from yamchi.http.scopes import Caller
from yamchi.settings import Settings

Kind = Literal["send", "read", "change", "person"]
Fields = tuple[tuple[bytes, bytes], ...]
"""Fields of a response, as they go over the wire."""


class RateLimits:
    """RATE_LIMIT_SEND, _READ, _CHANGE and _PERSON."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        quotas = {
            "send": settings.rate_limit_send,
            "read": settings.rate_limit_read,
            "change": settings.rate_limit_change,
            "person": settings.rate_limit_person,
        }
        self._buckets = {kind: Buckets(quota, clock) for kind, quota in quotas.items() if quota}
        self._policies = {
            kind: f'"{kind}";q={buckets.quota.count};w={math.ceil(buckets.quota.period / 1000)}'.encode()
            for kind, buckets in self._buckets.items()
        }

    def take(self, kind: Kind, caller: Caller) -> Fields:
        """Count a request; the headers of its answer that say what is left."""
        buckets = self._buckets.get(kind)
        if buckets is None or caller.kind in ("local", "stranger"):
            return ()
        taken, quota = buckets.take(caller.name), buckets.quota
        left = b'"%b";r=%d;t=%d' % (kind.encode(), taken.remaining, taken.seconds)
        fields = ((b"ratelimit-policy", self._policies[kind]), (b"ratelimit", left))
        if taken.is_allowed:
            return fields
        raise HTTPException(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"That is more than the {quota.count:,} requests of this kind that a caller may make in "
            f"{quota.period / 1000:g} s: come back in {taken.wait} s.",
            headers={
                **{name.decode(): value.decode() for name, value in fields},
                "retry-after": str(taken.wait),
            },
        )
