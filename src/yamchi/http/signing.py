"""Signatures on texts that strangers bring back: the token of a page, the link in a letter.

The key is SECRET_KEY, or one that the first process to need it makes and keeps in the database, so that all have the same.
What was signed with a key of SECRET_KEY_PREVIOUS is still good, so that a key can be changed without breaking old links.
"""

import hmac
import secrets
from collections.abc import Sequence
from hashlib import sha256

from pydantic import SecretStr
from sqlalchemy import Connection, select

from yamchi.settingtypes import KEPT
from yamchi.storage.database import Database
from yamchi.storage.tables import secrets as kept

NAME = "signing"
LENGTH = 32


class Signer:
    """`sign(purpose, text)`: a signature for one purpose is not valid for another."""

    def __init__(
        self, database: Database, secret: SecretStr | None, previous: Sequence[SecretStr] = ()
    ) -> None:
        self._database = database
        self._key = None if secret is None else secret.get_secret_value().encode()
        self._kept: bytes | None = None
        self._previous = [key.get_secret_value() for key in previous]

    async def sign(self, purpose: str, text: str) -> str:
        return _signature(await self._key_of_all(), purpose, text)

    async def is_genuine(self, purpose: str, text: str, signature: str) -> bool:
        """Whether this was signed here, with the present key or a previous one."""
        if _is_equal(await self.sign(purpose, text), signature):
            return True
        for key in self._previous:
            old = await self._key_kept() if key == KEPT else key.encode()
            if _is_equal(_signature(old, purpose, text), signature):
                return True
        return False

    async def _key_of_all(self) -> bytes:
        if self._key is None:
            self._key = await self._key_kept()
        return self._key

    async def _key_kept(self) -> bytes:
        """Read the key once: a forged signature must not cost a transaction."""
        if self._kept is None:
            self._kept = await self._database.write(self._make_or_read)
        return self._kept

    def _make_or_read(self, connection: Connection) -> bytes:
        new = {"name": NAME, "value": secrets.token_bytes(LENGTH)}
        connection.execute(self._database.insert(kept).on_conflict_do_nothing(), new)
        key: bytes = connection.execute(select(kept.c.value).where(kept.c.name == NAME)).scalar_one()
        return key


def _signature(key: bytes, purpose: str, text: str) -> str:
    return hmac.new(hmac.digest(key, purpose.encode(), sha256), text.encode(), sha256).hexdigest()


def _is_equal(ours: str, theirs: str) -> bool:
    return hmac.compare_digest(ours.encode(), theirs.encode())
