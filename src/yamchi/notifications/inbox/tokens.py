"""The token of a person's page: signed, short-lived, minted by the product's backend, and good for that person only.

person.<expiry in milliseconds>.<user id>.<signature>
"""

from dataclasses import dataclass

from yamchi.clock import Clock, Millis
from yamchi.errors import TokenRefused
from yamchi.http.signing import Signer

PREFIX = "person."
PURPOSE = "token of a person"
LIFE: Millis = 15 * 60_000
LONGEST_LIFE: Millis = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Person:
    """Whose token it is, and until when."""

    user_id: str
    expires_at: Millis


class PersonTokens:
    """Mints tokens and checks them."""

    def __init__(self, signer: Signer, clock: Clock) -> None:
        self._signer = signer
        self._clock = clock

    async def mint(self, user_id: str, life: Millis = LIFE) -> tuple[str, Millis]:
        """A token for this person's pages, and when it ends."""
        expires_at = self._clock.now() + life
        content = f"{expires_at}.{user_id}"
        return f"{PREFIX}{content}.{await self._signer.sign(PURPOSE, content)}", expires_at

    async def check(self, token: str) -> Person:
        """Whose token this is. Only a token of ours is told that it has expired."""
        content, _, signature = token.removeprefix(PREFIX).rpartition(".")
        expiry, _, user_id = content.partition(".")
        is_ours = await self._signer.is_genuine(PURPOSE, content, signature)
        if not (token.startswith(PREFIX) and user_id and is_ours):
            raise TokenRefused("This token was not made here: let your backend mint one.")
        if int(expiry) <= self._clock.now():
            raise TokenRefused("This token has expired: let your backend mint another.", is_forged=False)
        return Person(user_id, int(expiry))
