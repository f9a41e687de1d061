"""What a route asks of its caller: `Requires("admin")` is a dependency that every route below `/api` has exactly one of.
One that forgot it answers nothing but 500, so that it can't be overlooked.

admin           whoever has `read` may look (GET), whoever has `admin` may do the rest
read            whoever has `read`, whatever the method: for what changes nothing
send            `send`, or `send:<queue>` where the path has a queue
send:<queue>    that
people:token    that
person          the person in the path; also whoever may read (GET) or is admin
anyone          every caller that is known
public          everybody

With `+test`, a test key may come too, and the route keeps what it sends from leaving. A route that changes something as the
admin is written to the audit, and every caller is counted against the rate limits, because all of it happens here.
"""

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated, Protocol, TypeVar
from uuid import UUID

from fastapi import Depends, Request, params
from starlette.exceptions import HTTPException
from starlette.routing import Route

from yamchi.errors import ConfigurationError
from yamchi.http.audit import AuditLog, Entry
from yamchi.http.callerlocks import CallerLocks
from yamchi.http.failures import address_of
from yamchi.http.ratelimits import Kind, RateLimits
from yamchi.http.scopes import ADMIN, PEOPLE_TOKEN, READ, SCOPE, SEND, Caller
from yamchi.observe.logging import mask

T = TypeVar("T")


class Controls(Protocol):
    """What a guarded route asks of the access control."""

    limits: RateLimits
    audit: AuditLog
    locks: CallerLocks


SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
GUARDED = ("/api", "/metrics")
_BELOW_GUARDED = tuple(f"{prefix}/" for prefix in GUARDED)
WITHOUT_SCOPE = ("public", "anyone", "person")
WHO_ARE_YOU = (
    "A token is needed: send Authorization: Bearer with ADMIN_TOKEN or a key, or sign in to the board."
)


class Requires:
    """A dependency: lets only those through who may use the route."""

    def __init__(self, access: str) -> None:
        self.access, _, extra = access.partition("+")
        self.takes_tests = extra == "test"
        if extra not in ("", "test") or (
            self.access not in WITHOUT_SCOPE and not SCOPE.fullmatch(self.access)
        ):
            raise ConfigurationError(f"There is no access {access!r}: a scope, person, anyone or public.")

    def __repr__(self) -> str:
        return f"Requires({self.access!r})"

    async def __call__(self, request: Request) -> None:
        state = request.scope["state"]  # a dictionary: the same as request.state, and quicker
        state["is_checked"] = True
        if self.access == "public":
            return
        caller: Caller = state["caller"]
        if caller.kind == "stranger":
            raise HTTPException(HTTPStatus.UNAUTHORIZED, WHO_ARE_YOU, {"www-authenticate": "Bearer"})
        self._check(caller, request)
        access: Controls = request.app.state.access
        state["limits"] = access.limits.take(self._kind(caller, request), caller)
        if self._is_audited(caller, request):
            state["audit"] = entry = _entry(caller, request)
            await access.audit.begin(entry)

    def _check(self, caller: Caller, request: Request) -> None:
        needed = self._needed(request)
        if caller.kind == "person" and self.access != "person":
            why = "The token of a page may not do this; let your backend do it."
        elif needed and not caller.may(needed) and not self._is_own(caller, request):
            has = ", ".join(sorted(caller.scopes)) or "none"
            why = f"This needs the scope {needed}, and {caller.name} has {has}."
        elif caller.is_test and not self.takes_tests and self.access != "anyone":
            why = "A test key can't do this, because what comes of it could not be kept from leaving."
        else:
            return
        raise HTTPException(HTTPStatus.FORBIDDEN, why)

    def _needed(self, request: Request) -> str | None:
        match self.access:
            case "admin" | "person":
                return READ if request.method in SAFE_METHODS else ADMIN
            case "anyone":
                return None
            case "send" if queue := request.path_params.get("queue"):
                return f"{SEND}:{queue}"
        return self.access

    def _is_own(self, caller: Caller, request: Request) -> bool:
        given = str(request.path_params.get("user_id", ""))
        return self.access == "person" and caller.user_id is not None and _is_same(given, caller.user_id)

    def _kind(self, caller: Caller, request: Request) -> Kind:
        if caller.kind == "person":
            return "person"
        if self.access.startswith(SEND):
            return "send"
        return "read" if request.method in SAFE_METHODS else "change"

    def _is_audited(self, caller: Caller, request: Request) -> bool:
        """Whoever sends is not: that is what deliveries and jobs are for. Nor people in their own inbox."""
        if request.method in SAFE_METHODS or caller.kind == "person":
            return False
        return self.access in (ADMIN, PEOPLE_TOKEN, "person")


def requires(access: str) -> list[params.Depends]:
    """For the `dependencies=` of a router."""
    return [Depends(Requires(access))]


async def their_id(user_id: UUID) -> str:
    """The person in the path of a route with the access `person`."""
    return str(user_id)


TheirId = Annotated[str, Depends(their_id)]


async def caller_of(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


async def seen_by(caller: Caller, value: T) -> T:
    """What is shown: all of it to the admin, to others without what looks like a secret.

    In a thread, because a sender may have put a hundred thousand texts into a job.
    """
    return value if caller.may(ADMIN) else await asyncio.to_thread(mask, value)


TheCaller = Annotated[Caller, Depends(caller_of)]


async def _hold_lock(caller: TheCaller, request: Request) -> AsyncIterator[None]:
    if caller.kind != "person" or request.method in SAFE_METHODS:
        yield
        return
    access: Controls = request.app.state.access
    async with access.locks.hold(caller.name):
        yield


ONE_AT_A_TIME: list[params.Depends] = [Depends(_hold_lock)]
"""For the `dependencies=` of a router: what a person's pages change, one after another. What is written at the same time is
written together, so that a hundred large changes of one person would be waited for by everybody.
"""


def is_guarded(path: str) -> bool:
    return path.startswith(_BELOW_GUARDED) or path in GUARDED


def _entry(caller: Caller, request: Request) -> Entry:
    query = f"?{request.url.query}" if request.url.query else ""
    return Entry(
        who=caller.name,
        action=f"{request.method} {_template(request)}",
        target=f"{request.url.path}{query}",
        address=address_of(request.scope),
        after=getattr(request, "_body", None),
    )


def _template(request: Request) -> str:
    """The path as it was declared: `/api/queues/{queue}/pause`. The route itself knows it without its prefix."""
    path, route = request.scope["path"], request.scope.get("route")
    if not isinstance(route, Route):
        return str(path)
    starts = (place for place, letter in enumerate(path) if letter == "/")
    prefix = next((path[:start] for start in starts if route.path_regex.match(path[start:])), "")
    return f"{prefix}{route.path_format}"


def _is_same(given: str, user_id: str) -> bool:
    try:
        return UUID(given) == UUID(user_id)
    except ValueError:
        return False
