"""Callers and their scopes: one model for the admin's token, named keys, sessions of the board and people's pages.

send            add jobs to the queues of the application but its own (cron, scenarios), tell of events, queue notifications
send:<queue>    the same for one queue; events and notifications are those of `notifications`
people:token    mint tokens for people's pages
read            see everything, change nothing
admin           everything
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from yamchi.errors import ConfigurationError

SEND, READ, ADMIN, PEOPLE_TOKEN = "send", "read", "admin", "people:token"
OF_QUEUE = "send:"

SCOPE = re.compile(r"send(:[A-Za-z0-9._-]{1,200})?|people:token|read|admin")
KNOWN = "send, send:<queue>, people:token, read or admin"

LONGEST_ID = 255
DIGEST_OF_TEST = 16

Kind = Literal["stranger", "local", "admin", "key", "person"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever sent a request."""

    kind: Kind
    name: str
    """Their name for the audit and the limits: `admin`, `key shop`, `person 0b5e…`."""
    scopes: frozenset[str] = frozenset()
    user_id: str | None = None
    """Whose page it is, for a person's token."""
    is_test: bool = False
    """What they send stays in the mailbox."""
    is_session: bool = False
    """They are signed in to the board."""

    def may(self, scope: str) -> bool:
        if ADMIN in self.scopes:
            return True
        return scope in self.scopes or (scope.startswith(OF_QUEUE) and SEND in self.scopes)

    def names(self, scope: str) -> bool:
        """Whether this scope itself was given, or `admin`."""
        return scope in self.scopes or ADMIN in self.scopes

    @property
    def may_look(self) -> bool:
        """Whether they may see the board."""
        return self.may(READ)


STRANGER = Caller("stranger", "stranger")
LOCAL = Caller("local", "this machine", frozenset({ADMIN}))
"""Whoever reaches a server without ADMIN_TOKEN, which listens on a loopback address only."""


@dataclass(frozen=True, slots=True)
class PageToken:
    """A kind of token that a feature makes for people's pages: how it begins, and whose it is (or TokenRefused).

    It is checked however many wrong ones came before it, so it must be too long to be guessed.
    """

    prefix: str
    check: Callable[[str], Awaitable[str]]


def check_scopes(given: Iterable[str], *, is_test: bool = False) -> tuple[str, ...]:
    """These scopes without duplicates. Raises if there are none or one is unknown."""
    scopes = tuple(dict.fromkeys(scope.strip() for scope in given))
    if not scopes:
        raise ConfigurationError(f"A key needs a scope: {KNOWN}.")
    for scope in scopes:
        if not SCOPE.fullmatch(scope):
            raise ConfigurationError(f"There is no scope {scope[:60]!r}: use {KNOWN}.")
        if is_test and not (scope == SEND or scope.startswith(OF_QUEUE)):
            raise ConfigurationError(f"A test key can only send, so it can't have the scope {scope}.")
    return scopes


def id_of_test(given: str, separator: str) -> str:
    """The id of what a test key sends: by its digest no other that somebody gives, such as `test-42` for the real thing."""
    end = f"{separator}{sha256(given.encode()).hexdigest()[:DIGEST_OF_TEST]}"
    return f"{f'test{separator}{given}'[: LONGEST_ID - len(end)]}{end}"
