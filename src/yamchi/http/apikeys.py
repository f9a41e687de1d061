"""Named keys: made here, shown once, kept as a digest. What a key may do is its scopes.

    yk_<id>_<secret>        yk_test_<id>_<secret>

All keys are kept in memory for a moment, so that a request costs no look at the database and a guess even less; a key that
is revoked in any process is refused in all of them after `FRESH`. While the database can't be reached, nobody can revoke a
key either: what was known goes on being so.
"""

import asyncio
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import structlog
from sqlalchemy import Connection, Delete, Row, Update, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from yamchi.clock import Clock, Millis, Span, isoformat_or_none, to_millis
from yamchi.errors import ConfigurationError, EngineError, UnknownJob
from yamchi.http.scopes import Caller, check_scopes
from yamchi.perloop import PerLoop
from yamchi.storage.database import Database
from yamchi.storage.tables import api_keys as table
from yamchi.storage.tables import sessions

log = structlog.get_logger("yamchi.access")

PREFIX = "yk_"
TEST_PREFIX = "yk_test_"

FRESH: Millis = 2_000
"""How long what was read of the keys is believed."""

FRESH_FOR_STRANGERS: Millis = 250
"""The same when somebody comes with a key that is not among them: it may have been made a moment ago."""

USES_NOTED_EVERY: Millis = 60_000
MOST = 10_000
LONGEST_NAME = 100

_NO_PART = re.compile(r"/|^\.\.?$")
"""What can't be a part of an address: browsers and libraries go up a step where they read `..`, so that it could not be revoked."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key, without its secret."""

    key_id: str
    name: str
    scopes: tuple[str, ...]
    is_test: bool
    created_by: str
    created_at: Millis
    expires_at: Millis | None
    last_used_at: Millis | None
    revoked_at: Millis | None
    digest: str
    old_digest: str | None
    old_until: Millis | None

    @classmethod
    def of(cls, row: Row[Any]) -> "ApiKey":
        fields = {name: getattr(row, name) for name in cls.__slots__}
        return cls(**fields | {"scopes": tuple(row.scopes)})

    def state(self, now: Millis) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "in use"

    def fits(self, secret: str, now: Millis) -> bool:
        """Whether this is its secret, or the one before in the time it still has."""
        given = digest_of(secret)
        is_current = hmac.compare_digest(self.digest, given)
        is_old = hmac.compare_digest(self.old_digest or "", given)
        return is_current or (is_old and self.old_until is not None and self.old_until > now)

    def to_dict(self, now: Millis) -> dict[str, Any]:
        """As JSON can carry it, without anything of its secret."""
        moments = ("created_at", "expires_at", "last_used_at", "revoked_at")
        return {
            "id": self.key_id,
            "name": self.name,
            "scopes": list(self.scopes),
            "test": self.is_test,
            "state": self.state(now),
            "created_by": self.created_by,
            **{name: isoformat_or_none(getattr(self, name)) for name in moments},
        }

    @property
    def caller(self) -> Caller:
        return Caller("key", f"key {self.name}", frozenset(self.scopes), is_test=self.is_test)


class ApiKeys:
    """The table `api_keys`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._known: Mapping[str, ApiKey] = {}
        self._read_at: Millis | None = None
        self._reading = PerLoop(asyncio.Lock)
        self._noted: dict[str, Millis] = {}

    # ── Who comes with a key ──────────────────────────────────────────────────────────────────────────────────────

    async def find(self, text: str) -> ApiKey | None:
        """The key that this is, if it is one and good for anything now."""
        key_id, secret = parts_of(text)
        key = await self.get(key_id)
        now = self._clock.now()
        if key is None or key.is_test != text.startswith(TEST_PREFIX) or not key.fits(secret, now):
            return None
        await self._note_use(key, now)
        return key

    async def get(self, key_id: str) -> ApiKey | None:
        """The key of this id, if it is neither revoked nor expired."""
        known = await self._all(FRESH)
        if key_id not in known:
            known = await self._all(FRESH_FOR_STRANGERS)
        key = known.get(key_id)
        return key if key is not None and key.state(self._clock.now()) == "in use" else None

    async def _all(self, fresh: Millis) -> Mapping[str, ApiKey]:
        if self._is_read(fresh):
            return self._known
        async with self._reading.get():  # a thousand strangers at once are one look at the database
            return self._known if self._is_read(fresh) else await self._read()

    def _is_read(self, fresh: Millis) -> bool:
        return self._read_at is not None and 0 <= self._clock.now() - self._read_at < fresh

    async def _read(self) -> Mapping[str, ApiKey]:
        now = self._clock.now()
        query = select(table).where(table.c.revoked_at.is_(None)).limit(MOST)
        try:
            rows = await self._database.rows(query)
        except EngineError as error:
            if self._read_at is None:
                raise
            log.warning(
                "the database can't be read for API keys; the keys that were read before stay good",
                error=str(error),
            )
            rows = None
        if rows is not None:
            self._known = {row.key_id: ApiKey.of(row) for row in rows}
        self._read_at = now
        return self._known

    async def _note_use(self, key: ApiKey, now: Millis) -> None:
        last = max(self._noted.get(key.key_id, 0), key.last_used_at or 0)
        if now - last < USES_NOTED_EVERY:
            return
        self._noted[key.key_id] = now
        change = update(table).where(table.c.key_id == key.key_id).values(last_used_at=now)
        try:
            await self._database.execute(change)
        except EngineError as error:
            log.debug("the use of a key could not be noted", key=key.name, error=str(error))

    # ── Who looks after them ──────────────────────────────────────────────────────────────────────────────────────

    async def create(
        self,
        name: str,
        scopes: Iterable[str],
        *,
        by: str,
        is_test: bool = False,
        expires_in: Span | None = None,
    ) -> tuple[ApiKey, str]:
        """A new key, and the text of it, which nobody can see again."""
        now = self._clock.now()
        key_id, secret = secrets.token_hex(5), secrets.token_hex(24)
        row = {
            "key_id": key_id,
            "name": check_name(name),
            "digest": digest_of(secret),
            "scopes": list(check_scopes(scopes, is_test=is_test)),
            "is_test": is_test,
            "created_by": by[:160],
            "created_at": now,
            "expires_at": None if expires_in is None else now + _positive("expires_in", expires_in),
        }
        await self._database.write(lambda connection: _add(connection, row))
        self._read_at = None
        return await self.named(name), text_of(key_id, secret, is_test=is_test)

    async def rotate(self, name: str, *, grace: Span = 0) -> tuple[ApiKey, str]:
        """Another secret for the same key. The one before is good for `grace` longer; sessions of the board end with it now."""
        key = await self.named(name)
        secret, now, length = secrets.token_hex(24), self._clock.now(), to_millis(grace)
        values = {
            "digest": digest_of(secret),
            "old_digest": key.digest if length > 0 else None,
            "old_until": now + length if length > 0 else None,
        }
        is_it = (table.c.key_id == key.key_id) & (table.c.digest == key.digest) & table.c.revoked_at.is_(None)
        sessions_of_it = delete(sessions).where(sessions.c.key_id == key.key_id)
        await self._change(update(table).where(is_it).values(**values), name, then=sessions_of_it)
        return await self.named(name), text_of(key.key_id, secret, is_test=key.is_test)

    async def revoke(self, name: str) -> ApiKey:
        """Nobody can use this key from now on; its name is free for another."""
        key = await self.named(name)
        is_it = (table.c.key_id == key.key_id) & table.c.revoked_at.is_(None)
        now = self._clock.now()
        await self._change(update(table).where(is_it).values(revoked_at=now), name)
        return replace(key, revoked_at=now)

    async def named(self, name: str) -> ApiKey:
        query = select(table).where((table.c.name == name) & table.c.revoked_at.is_(None))
        row = await self._database.first(query)
        if row is None:
            raise UnknownJob(f"There is no key named {name[:LONGEST_NAME]!r}; yamchi keys list shows them.")
        return ApiKey.of(row)

    async def list(self, *, offset: int = 0, limit: int = 200) -> Sequence[ApiKey]:
        """All that there are and were, newest first."""
        query = select(table).order_by(table.c.created_at.desc(), table.c.key_id).offset(offset).limit(limit)
        rows = await self._database.rows(query)
        return [ApiKey.of(row) for row in rows]

    async def _change(self, change: Update, name: str, *, then: Delete | None = None) -> None:
        def write(connection: Connection) -> int:
            changed: int = connection.execute(change).rowcount
            if changed and then is not None:
                connection.execute(then)
            return changed

        changed = await self._database.write(write)
        self._read_at = None
        if not changed:
            raise UnknownJob(f"The key {name!r} was changed by somebody else at this moment: look again.")


def _add(connection: Connection, row: Mapping[str, Any]) -> None:
    in_use = select(func.count()).select_from(table).where(table.c.revoked_at.is_(None))
    if connection.execute(in_use).scalar_one() >= MOST:
        raise ConfigurationError(f"There are {MOST:,} keys in use already: revoke some.")
    try:
        with connection.begin_nested():
            connection.execute(insert(table), row)
    except IntegrityError:
        raise ConfigurationError(
            f"There is a key named {row['name']!r} already: choose another name, or rotate or revoke that one."
        ) from None


def check_name(name: str) -> str:
    if (
        not 0 < len(name) <= LONGEST_NAME
        or not name.isprintable()
        or name != name.strip()
        or _NO_PART.search(name)
    ):
        raise ConfigurationError(
            f"A key's name is a short text without slashes, of at most {LONGEST_NAME} characters, such as shop; not . or .."
        )
    return name


def digest_of(secret: str) -> str:
    """The secret is long and random, so that one round of a fast hash is enough."""
    return sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def parts_of(text: str) -> tuple[str, str]:
    """The id of a key, and its secret."""
    key_id, _, secret = text.removeprefix(TEST_PREFIX).removeprefix(PREFIX).partition("_")
    return key_id, secret


def text_of(key_id: str, secret: str, *, is_test: bool) -> str:
    return f"{TEST_PREFIX if is_test else PREFIX}{key_id}_{secret}"


def _positive(what: str, span: Span) -> Millis:
    length = to_millis(span)
    if length <= 0:
        raise ConfigurationError(f"{what} must be longer than nothing, not {span!r}.")
    return length
