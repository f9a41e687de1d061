"""Sessions of the board. The cookie is signed, so that a made-up one costs nothing; the table says which of ours still last.

Signing out ends a session in every process: at once here, after `FRESH` elsewhere. Another text of a key ends the sessions of
that key, another ADMIN_TOKEN all.
"""

import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256

from sqlalchemy import Connection, delete, insert, select

from yamchi.clock import Clock, Millis
from yamchi.storage.database import Database
from yamchi.storage.tables import api_keys
from yamchi.storage.tables import sessions as table

LIFE: Millis = 7 * 86_400_000
FRESH: Millis = 2_000
MOST_REMEMBERED = 1_000


@dataclass(frozen=True, slots=True)
class Session:
    """A session: its key's id, or None for the admin, and its end."""

    key_id: str | None
    expires_at: Millis


class Sessions:
    """The table `sessions`, with what was seen of it a moment ago."""

    def __init__(self, database: Database, clock: Clock, secret: bytes | None) -> None:
        self._database = database
        self._clock = clock
        self._key = hmac.digest(secret or b"", b"yamchi board session", sha256)
        self._seen: OrderedDict[str, tuple[Session, Millis]] = OrderedDict()

    async def begin(
        self, key_id: str | None, address: str | None, *, digest: str | None = None
    ) -> str | None:
        """A new session; what its cookie says. None if `digest`, of the text that was given, is not its key's any more."""
        now, number = self._clock.now(), secrets.token_urlsafe(24)
        row = {
            "session_id": _digest(number),
            "key_id": key_id,
            "address": address,
            "created_at": now,
            "expires_at": now + LIFE,
        }

        # Locked: a key that is rotated at this moment ends this session with the others.
        same = (api_keys.c.key_id == key_id) & (api_keys.c.digest == digest)
        its_key = select(api_keys.c.key_id).where(same).with_for_update()

        def write(connection: Connection) -> bool:
            connection.execute(delete(table).where(table.c.expires_at <= now))
            if key_id is not None and connection.execute(its_key).first() is None:
                return False
            connection.execute(insert(table), row)
            return True

        return f"{number}.{self._sign(number)}" if await self._database.write(write) else None

    async def find(self, cookie: str) -> Session | None:
        """The session of this cookie, if it has not ended."""
        number = self._number(cookie)
        if number is None:
            return None
        now, session_id = self._clock.now(), _digest(number)
        session, seen_at = self._seen.get(session_id, (None, 0))
        if session is None or not 0 <= now - seen_at < FRESH:
            session = await self._read(session_id, now)
        return session if session is not None and session.expires_at > now else None

    async def end(self, cookie: str) -> None:
        if (number := self._number(cookie)) is not None:
            self._seen.pop(_digest(number), None)
            gone = delete(table).where(table.c.session_id == _digest(number))
            await self._database.execute(gone)

    async def _read(self, session_id: str, now: Millis) -> Session | None:
        query = select(table.c.key_id, table.c.expires_at).where(table.c.session_id == session_id)
        row = await self._database.first(query)
        self._seen.pop(session_id, None)
        if row is None:
            return None
        session = Session(row.key_id, row.expires_at)
        self._seen[session_id] = session, now
        while len(self._seen) > MOST_REMEMBERED:
            self._seen.popitem(last=False)
        return session

    def _number(self, cookie: str) -> str | None:
        number, _, signature = cookie.partition(".")
        is_ours = hmac.compare_digest(self._sign(number).encode(), signature.encode("utf-8", "replace"))
        return number if number and is_ours else None

    def _sign(self, number: str) -> str:
        return hmac.new(self._key, number.encode("utf-8", "replace"), sha256).hexdigest()


def _digest(number: str) -> str:
    return sha256(number.encode()).hexdigest()
