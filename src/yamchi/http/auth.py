"""Who calls over HTTP.

Without ADMIN_TOKEN the server listens on a loopback address only, and everybody on this machine may do everything;
the Host and Origin of each request are checked, so that no web page can act in their name. With ADMIN_TOKEN, `/api` and
`/metrics` want a bearer token or the board's session cookie: ADMIN_TOKEN may do everything, a named key what its scopes
say, API_TOKENS may send. The token of a person's page opens what is that person's own, below `/api/v1/users/{user_id}/`,
and nothing else but what is open to everybody.
"""

import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from yamchi.clock import Clock
from yamchi.errors import ConfigurationError, EngineError, TokenRefused
from yamchi.http import apikeys
from yamchi.http.access import SAFE_METHODS, WHO_ARE_YOU, is_guarded
from yamchi.http.apikeys import ApiKeys
from yamchi.http.audit import AuditLog, Entry
from yamchi.http.callerlocks import CallerLocks
from yamchi.http.failures import Failures, TooManyWrong, address_of
from yamchi.http.problems import problem
from yamchi.http.ratelimits import RateLimits
from yamchi.http.scopes import ADMIN, LOCAL, SEND, STRANGER, Caller, PageToken
from yamchi.http.sessions import Sessions
from yamchi.settings import Settings
from yamchi.storage.database import Database

COOKIE = "yamchi_session"
PEOPLE = "/api/v1/users/"
SHORTEST_ADMIN_TOKEN = 16
_KEY = apikeys.PREFIX.encode()
_COUNT = re.compile(rb'\{"count":(\d{1,18})\}')


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a request that is refused."""

    status: HTTPStatus
    why: str
    headers: Mapping[str, str] = field(default_factory=dict)


def check_address(settings: Settings, host: str) -> None:
    """Refuse to listen on an address that others can reach, unless they need a token that can't be guessed."""
    token = settings.admin_token
    if token is None and settings.api_tokens:
        raise ConfigurationError(
            "API_TOKENS is set but ADMIN_TOKEN is not, so that everybody could do everything: set ADMIN_TOKEN too."
        )
    if is_loopback(host):
        return
    if token is None:
        raise ConfigurationError(
            f"ADMIN_TOKEN must be set to listen on {host}, where others can reach it: "
            "set it in the environment or .env, or listen on 127.0.0.1."
        )
    if len(token.get_secret_value()) < SHORTEST_ADMIN_TOKEN:
        raise ConfigurationError(
            f"ADMIN_TOKEN has fewer than {SHORTEST_ADMIN_TOKEN} characters, too few to listen on {host}, where others can "
            "guess it: make one with openssl rand -hex 24."
        )


@lru_cache(maxsize=64)  # few hosts are this machine, and a caller may name one of 64 KiB
def is_loopback(host: str) -> bool:
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class AccessControl:
    """Everything that access depends on: the tokens of the settings, keys, sessions, limits, and the audit."""

    def __init__(self, settings: Settings, database: Database, clock: Clock) -> None:
        admin = settings.admin_token
        self._admin = admin.get_secret_value().encode() if admin else None
        self._senders = [token.get_secret_value().encode() for token in settings.api_tokens]
        self.keys = ApiKeys(database, clock)
        self.sessions = Sessions(database, clock, self._admin)
        self.failures = Failures(clock)
        self.limits = RateLimits(settings, clock)
        self.locks = CallerLocks()
        self.audit = AuditLog(database, clock, settings.audit_keep)

    @property
    def is_open(self) -> bool:
        """Whether no token is set, so that every caller may do everything."""
        return self._admin is None

    def is_admin(self, token: bytes) -> bool:
        return self._admin is not None and hmac.compare_digest(self._admin, token)

    async def holder_of(self, token: bytes, address: str) -> tuple[Caller, str | None] | None:
        """The caller with this token, and the id of the key if it is one; None if it is unknown.

        A key can't be guessed, and is looked up even after many wrong tokens: else a stranger could shut out all new keys.
        Tokens that a person chose are compared only after few wrong ones. Raises TooManyWrong otherwise.
        """
        if token.startswith(_KEY):
            key = await self.keys.find(token.decode("utf-8", "replace"))
            if key is not None:
                return key.caller, key.key_id
        self.failures.check(address, token)
        if self.is_admin(token):
            caller = Caller("admin", "admin", frozenset({ADMIN}))
        elif number := _which(self._senders, token):
            caller = Caller("key", f"API_TOKENS {number}", frozenset({SEND}))
        else:
            return None
        self.failures.right(address, token)
        return caller, None

    async def signed_in(self, cookie: str) -> Caller | None:
        """The caller of a session."""
        if self.is_open or not cookie or (session := await self.sessions.find(cookie)) is None:
            return None
        if session.key_id is None:
            return Caller("admin", "admin", frozenset({ADMIN}), is_session=True)
        key = await self.keys.get(session.key_id)
        return None if key is None else replace(key.caller, is_session=True)


class Guard:
    """Middleware before all routes: checks Host and Origin, and identifies the caller."""

    def __init__(
        self,
        app: ASGIApp,
        access: AccessControl,
        pages: Iterable[PageToken] = (),
        origins: Iterable[str] = (),
        public: Iterable[str] = (),
    ) -> None:
        self.app, self.access, self.pages = app, access, tuple(pages)
        self.origins = frozenset(origins)
        self.public = tuple(f"{prefix}/" for prefix in public)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            refusal = await self._identify(scope, headers) or self._refuse(scope, headers)
        except TooManyWrong as error:
            refusal = Refusal(HTTPStatus.TOO_MANY_REQUESTS, str(error), error.headers)
        except EngineError as error:
            refusal = Refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        if refusal:
            await problem(refusal.status, refusal.why, headers=refusal.headers)(scope, receive, send)
            return
        try:
            await self.app(scope, receive, self._noting(scope, send))
        except BaseException as error:
            await self._finish(scope, type(error).__name__)
            raise

    def _noting(self, scope: Scope, send: Send) -> Send:
        """Add the limit's headers to the answer, and finish the audit entry: the route's dependency left both in the state."""
        state, status = scope["state"], 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                if _is_unchecked(scope, message["status"]):
                    raise RuntimeError(
                        f"{scope['method']} {scope['path']} says nothing of who may call it: give its router Requires(…)."
                    )
                if limits := state.get("limits"):
                    message["headers"] = [*message["headers"], *limits]
                status = message["status"]
            elif message["type"] == "http.response.body" and "audit" in state:
                await self._finish(scope, f"{status}{_how_many(message.get('body', b''))}")
            await send(message)

        return noting

    async def _finish(self, scope: Scope, outcome: str) -> None:
        entry: Entry | None = scope["state"].pop("audit", None)
        if entry is not None:
            await self.access.audit.finish(entry, outcome)

    async def _identify(self, scope: Scope, headers: Headers) -> Refusal | None:
        """Note the caller in the state. A wrong token is refused at once only where no token is needed."""
        state, access = scope.setdefault("state", {}), self.access
        state["caller"] = anybody = LOCAL if access.is_open else STRANGER
        token = bearer_of(headers)
        if not token:
            if not access.is_open and (cookie := _cookie(headers)):
                state["caller"] = await access.signed_in(cookie) or anybody
            return None
        page = next((kind for kind in self.pages if token.startswith(kind.prefix)), None)
        if access.is_open and page is None and not token.startswith(apikeys.PREFIX):
            return None
        state["caller"] = STRANGER
        address = address_of(scope)
        if page is not None:
            return await self._identify_page(scope, page, token, address)
        held = await access.holder_of(token.encode("latin-1"), address)
        if held is None:
            access.failures.wrong(address, "a token", scope["path"])
            return _unknown() if access.is_open else None
        state["caller"] = held[0]
        return None

    async def _identify_page(self, scope: Scope, page: PageToken, token: str, address: str) -> Refusal | None:
        """Identify a person's page. A wrong token is refused even where none is needed."""
        try:
            user_id = await page.check(token)
        except TokenRefused as refused:
            if refused.is_forged:
                self.access.failures.forged(address, scope["path"])
            return Refusal(HTTPStatus.UNAUTHORIZED, str(refused), {"www-authenticate": "Bearer"})
        scope["state"]["caller"] = Caller("person", f"person {user_id}", user_id=user_id)
        if self._is_closed(scope["path"]) and not scope["path"].startswith(f"{PEOPLE}{user_id}/"):
            return Refusal(HTTPStatus.FORBIDDEN, "This token opens only what belongs to its own person.")
        return None

    def _refuse(self, scope: Scope, headers: Headers) -> Refusal | None:
        host, caller = headers.get("host", ""), scope["state"]["caller"]
        if self.access.is_open and not is_loopback(hostname_of(host)):
            return Refusal(
                HTTPStatus.FORBIDDEN, f"Host {host!r} is not this machine: open http://localhost instead."
            )
        is_page_of_ours = caller.kind == "person" and headers.get("origin", "").lower() in self.origins
        if scope["method"] not in SAFE_METHODS and not is_page_of_ours and not is_same_origin(headers):
            return Refusal(HTTPStatus.FORBIDDEN, "A page of another site may not act here.")
        return _unknown() if caller is STRANGER and self._is_closed(scope["path"]) else None

    def _is_closed(self, path: str) -> bool:
        """Whether strangers are refused."""
        return is_guarded(path) and not path.startswith(self.public)


def _how_many(body: bytes) -> str:
    """How many things were changed, if the answer says so."""
    found = _COUNT.fullmatch(body)
    return f", {int(found[1]):,} changed" if found else ""


def _is_unchecked(scope: Scope, status: int) -> bool:
    """Whether a route answered without checking its caller."""
    is_answer = "route" in scope and status < HTTPStatus.BAD_REQUEST
    return is_answer and is_guarded(scope["path"]) and not scope["state"].get("is_checked")


def _unknown() -> Refusal:
    return Refusal(HTTPStatus.UNAUTHORIZED, WHO_ARE_YOU, {"www-authenticate": "Bearer"})


def bearer_of(headers: Headers) -> str:
    given = headers.get("authorization")
    if given is None:
        return ""
    scheme, _, token = given.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def is_same_origin(headers: Headers) -> bool:
    """Programs send no Origin; a browser always does when a page acts on another site."""
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    return origin.partition("://")[2].lower() == headers.get("host", "").lower()


def hostname_of(host: str) -> str:
    """Without its port: localhost:3030, [::1]:3030."""
    return host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]


def _cookie(headers: Headers) -> str:
    pairs = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
    return next((value for name, _, value in pairs if name == COOKIE), "")


def _which(known: Iterable[bytes], given: bytes) -> int:
    """The place of a token among the known ones, from 1; 0 for none. Compares all of them, so that the time reveals nothing."""
    return sum(number for number, one in enumerate(known, 1) if hmac.compare_digest(one, given))
