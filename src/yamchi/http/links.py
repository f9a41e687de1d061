"""Signed links: what they say can be read but not changed, each is good for one purpose, for a while, and if wanted only once.

<what it says, as base64url>.<when it ends, in milliseconds, or ->.<a number for one that is good once, or ->.<signature>
"""

import secrets

from yamchi.clock import Clock, Millis, Span, to_millis
from yamchi.errors import TokenRefused
from yamchi.http.base64url import as_base64url, from_base64url
from yamchi.http.signing import Signer
from yamchi.storage.keys import Keys

LONGEST = 4_000
NONE = "-"


class Links:
    """Makes the tokens of links and reads them. `base` is where people reach this server, if that is known."""

    def __init__(self, signer: Signer, keys: Keys, clock: Clock, base: str | None) -> None:
        self._signer = signer
        self._keys = keys
        self._clock = clock
        self.base = base

    async def make(self, purpose: str, content: str, *, ttl: Span | None = None, once: bool = False) -> str:
        """A token with `content`, for use in a link. Without a `ttl` it never expires; a token for one use needs a `ttl`."""
        if once and ttl is None:
            raise ValueError("A link that is good once needs a lifetime: who has used it is kept that long.")
        ends = NONE if ttl is None else str(self._clock.now() + to_millis(ttl))
        number = secrets.token_hex(8) if once else NONE
        said = f"{as_base64url(content.encode())}.{ends}.{number}"
        return f"{said}.{await self._signer.sign(_purpose(purpose), said)}"

    async def read(self, purpose: str, token: str, *, use: bool = True) -> str:
        """The content of a token. Reading a token for one use spends it, unless `use` is false: mail scanners open links too."""
        said, _, signature = token.rpartition(".")
        if len(token) > LONGEST or not await self._signer.is_genuine(_purpose(purpose), said, signature):
            raise TokenRefused("This link was not made here.")
        content, ends, number = said.split(".")
        if ends != NONE and int(ends) <= self._clock.now():
            raise TokenRefused("This link has expired.")
        if number != NONE:
            await self._spend(f"link:{number}", int(ends), use)
        return from_base64url(content).decode()

    async def _spend(self, key: str, ends: Millis, use: bool) -> None:
        if use:
            left = (ends - self._clock.now()) / 1000
            is_used = await self._keys.incr(key, max(left, 0.001)) > 1
        else:
            is_used = await self._keys.get(key) is not None
        if is_used:
            raise TokenRefused("This link was used already.")


def _purpose(purpose: str) -> str:
    """Apart from what else is signed here."""
    return f"link: {purpose}"
