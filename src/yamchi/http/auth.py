"""Who may do what over HTTP.

Without ADMIN_TOKEN the server listens on a loopback address only, and everybody on this machine may do everything;
the Host and Origin of each request are checked, so that no web page can act in their name. With ADMIN_TOKEN,
`/api` and `/metrics` want it as a bearer token or as the board's session cookie; API_TOKENS may only send. The token of
a person's page opens what is that person's own, below `/api/v1/users/{user_id}/`, and nothing else.
"""

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from typing import Literal
from uuid import UUID

from fastapi import Request
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from yamchi.clock import Clock, Millis
from yamchi.errors import ConfigurationError, TokenRefused
from yamchi.http.problems import problem
from yamchi.settings import Settings

Caller = Literal["admin", "sender", "person"]

COOKIE = "yamchi_session"
SESSION: Millis = 7 * 86_400_000
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
GUARDED = ("/api", "/metrics")
PEOPLE = "/api/v1/users/"
NOT_ENOUGH = {
    "sender": "This token may only send; use ADMIN_TOKEN for this.",
    "person": "The token of a page may not do this; let your backend do it.",
}

Refusal = tuple[HTTPStatus, str]


@dataclass(frozen=True, slots=True)
class PageToken:
    """A kind of token that a feature makes for people's pages: how it begins, and whose it is (or TokenRefused)."""

    prefix: str
    check: Callable[[str], Awaitable[str]]


def check_address(settings: Settings, host: str) -> None:
    """Refuse to listen where others can reach us unless they need a token."""
    if not settings.admin_token and not is_loopback(host):
        raise ConfigurationError(
            f"ADMIN_TOKEN must be set to listen on {host}, where others can reach it: "
            "set it in the environment or .env, or listen on 127.0.0.1."
        )


def is_loopback(host: str) -> bool:
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Keys:
    """The tokens, and the sessions signed with a key derived from the admin's."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        admin = settings.admin_token
        self._admin = admin.get_secret_value().encode() if admin else None
        self._senders = [token.get_secret_value().encode() for token in settings.api_tokens]
        self._clock = clock

    @property
    def is_open(self) -> bool:
        """No token is set, so whoever reaches the server may do everything."""
        return self._admin is None

    def caller_of(self, headers: Headers) -> Caller | None:
        """Whom these headers belong to; None for a stranger."""
        if self.is_open:
            return "admin"
        if token := bearer_of(headers):
            return self._holder_of(token.encode("latin-1"))
        return "admin" if self._is_session(_cookie(headers)) else None

    def is_admin(self, token: bytes) -> bool:
        return self._admin is not None and hmac.compare_digest(self._admin, token)

    def new_session(self) -> str:
        expiry = str(self._clock.now() + SESSION)
        return f"{expiry}.{self._sign(expiry)}"

    def _holder_of(self, token: bytes) -> Caller | None:
        if self.is_admin(token):
            return "admin"
        return "sender" if _any_equal(self._senders, token) else None

    def _is_session(self, session: str) -> bool:
        expiry, _, signature = session.partition(".")
        if not expiry.isdecimal() or not expiry.isascii():
            return False
        is_ours = hmac.compare_digest(self._sign(expiry).encode(), signature.encode())
        return is_ours and int(expiry) > self._clock.now()

    def _sign(self, expiry: str) -> str:
        key = hmac.digest(self._admin or b"", b"yamchi board session", sha256)
        return hmac.new(key, expiry.encode(), sha256).hexdigest()


class Guard:
    """Stands before everything else: checks Host and Origin, finds out who calls."""

    def __init__(
        self, app: ASGIApp, keys: Keys, pages: Iterable[PageToken] = (), origins: Iterable[str] = ()
    ) -> None:
        self.app, self.keys, self.pages = app, keys, tuple(pages)
        self.origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = await self._identify(scope, headers) or self._refuse(scope, headers)
        if refusal:
            status, why = refusal
            wants = {"www-authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {}
            await problem(status, why, headers=wants)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _identify(self, scope: Scope, headers: Headers) -> Refusal | None:
        """Note who calls. A page is told what is wrong with its token even where nobody needs one."""
        state = scope.setdefault("state", {})
        state["caller"], state["person"] = self.keys.caller_of(headers), None
        token = bearer_of(headers)
        kind = next((kind for kind in self.pages if token.startswith(kind.prefix)), None)
        if kind is None or self.keys.is_admin(token.encode("latin-1")):
            return None
        try:
            user_id = await kind.check(token)
        except TokenRefused as refused:
            return HTTPStatus.UNAUTHORIZED, str(refused)
        state["caller"], state["person"] = "person", user_id
        if not scope["path"].startswith(f"{PEOPLE}{user_id}/"):
            return HTTPStatus.FORBIDDEN, "This token opens only what belongs to its own person."
        return None

    def _refuse(self, scope: Scope, headers: Headers) -> Refusal | None:
        host, caller = headers.get("host", ""), scope["state"]["caller"]
        if self.keys.is_open and not is_loopback(hostname_of(host)):
            return HTTPStatus.FORBIDDEN, f"Host {host!r} is not this machine: open http://localhost instead."
        is_page_of_ours = caller == "person" and headers.get("origin", "").lower() in self.origins
        if scope["method"] not in SAFE_METHODS and not is_page_of_ours and not is_same_origin(headers):
            return HTTPStatus.FORBIDDEN, "A page of another site may not act here."
        if caller is None and _is_guarded(scope["path"]):
            return (
                HTTPStatus.UNAUTHORIZED,
                "A token is needed: send Authorization: Bearer with ADMIN_TOKEN, or sign in to the board.",
            )
        return None


async def require_admin(request: Request) -> None:
    """A dependency of routes that only the admin may use."""
    if request.state.caller != "admin":
        raise HTTPException(HTTPStatus.FORBIDDEN, NOT_ENOUGH[request.state.caller])


async def require_backend(request: Request) -> None:
    """A dependency of routes for the product's backend: any token but a person's."""
    if request.state.caller == "person":
        raise HTTPException(HTTPStatus.FORBIDDEN, NOT_ENOUGH["person"])


async def require_oneself(request: Request, user_id: UUID) -> str:
    """A dependency of what belongs to a person: the person's own pages may use it, and the admin. Gives the person's id."""
    if request.state.caller == "sender":
        raise HTTPException(HTTPStatus.FORBIDDEN, NOT_ENOUGH["sender"])
    return str(user_id)


def _is_guarded(path: str) -> bool:
    return any(path == room or path.startswith(f"{room}/") for room in GUARDED)


def bearer_of(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
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


def _any_equal(known: Iterable[bytes], given: bytes) -> bool:
    """Looks at all of them, so that the time it takes tells nothing."""
    return sum(hmac.compare_digest(one, given) for one in known) > 0
