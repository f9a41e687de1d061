"""The token of a person's page: signed, short-lived, minted by the product's backend, and good for that person only.

person.<expiry in milliseconds>.<user id>.<when it was minted, in 12 hexadecimal digits><signature>
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

from yamchi.clock import Clock, Millis
from yamchi.errors import TokenRefused
from yamchi.http.signing import Signer
from yamchi.storage.keys import TableKeys

PREFIX = "person."
PURPOSE = "token of a person"
MINTED_DIGITS = 12
LIFE: Millis = 15 * 60_000
LONGEST_LIFE: Millis = 24 * 3_600_000
ERASED = "The person of this token has been erased."


@dataclass(frozen=True, slots=True)
class Person:
    """Whose token it is, since when, and until when."""

    user_id: str
    minted_at: Millis
    expires_at: Millis


class PersonTokens:
    """Mints tokens and checks them, which is a look for one key in the table where erasures are noted."""

    def __init__(self, signer: Signer, keys: TableKeys, clock: Clock) -> None:
        self._signer = signer
        self._keys = keys
        self._clock = clock

    async def mint(self, user_id: str, life: Millis = LIFE) -> tuple[str, Millis]:
        """A token for this person's pages, and when it ends."""
        now = self._clock.now()
        expires_at, minted = now + life, f"{now:0{MINTED_DIGITS}x}"
        content = f"{expires_at}.{user_id}"
        signature = await self._signer.sign(PURPOSE, f"{content}.{minted}")
        return f"{PREFIX}{content}.{minted}{signature}", expires_at

    async def check(self, token: str) -> Person:
        """Whose token this is. Only a token of ours is told that it has expired."""
        content, _, end = token.removeprefix(PREFIX).rpartition(".")
        minted, signature = end[:MINTED_DIGITS], end[MINTED_DIGITS:]
        expiry, _, user_id = content.partition(".")
        is_ours = await self._signer.is_genuine(PURPOSE, f"{content}.{minted}", signature)
        if not (token.startswith(PREFIX) and user_id and is_ours):
            raise TokenRefused("This token was not made here: let your backend mint one.")
        if int(expiry) <= self._clock.now():
            raise TokenRefused("This token has expired: let your backend mint another.", is_forged=False)
        erased_at = await self._keys.get(_erased(user_id))
        minted_at = int(minted, 16)
        if erased_at is not None and minted_at < int(erased_at):
            raise TokenRefused(ERASED, is_forged=False)
        return Person(user_id, minted_at, int(expiry))

    async def erased(self, user_ids: Collection[str]) -> Mapping[str, Millis]:
        """Which of them were erased as long ago as a token may last, and when. One may be somebody again since."""
        names = {_erased(user_id): user_id for user_id in user_ids}
        found = await self._keys.get_some(names)
        return {names[name]: int(erased_at) for name, erased_at in found.items()}

    async def revoke(self, user_id: str) -> None:
        """The person is erased: refuse every token that was minted before."""
        life = timedelta(milliseconds=LONGEST_LIFE)
        await self._keys.set(_erased(user_id), str(self._clock.now()), life)


def _erased(user_id: str) -> str:
    """Nothing of the person: their id can't be worked out of its digest."""
    return f"erased:{sha256(user_id.encode()).hexdigest()}"
