"""The board's page, its files, and signing in to it."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

import orjson
from fastapi import APIRouter, Depends, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from yamchi.http.access import is_guarded, requires
from yamchi.http.apikeys import digest_of, parts_of
from yamchi.http.audit import Entry
from yamchi.http.auth import COOKIE, AccessControl
from yamchi.http.failures import TooManyWrong, address_of
from yamchi.http.limits import read_form
from yamchi.http.problems import on_http_error
from yamchi.http.scopes import Caller
from yamchi.http.sessions import LIFE
from yamchi.observe.logging import mask
from yamchi.plugins import BoardPage

BOARD = Path(__file__).parents[1] / "board"
OWN_PAGES = (
    BoardPage("Queues", "/queues", "/board/overview.js"),
    BoardPage("Workers", "/workers", "/board/workers.js"),
    BoardPage("Access", "/access", "/board/access.js"),
)

LONGEST_SHOWN = 120  # characters of an address

router = APIRouter(include_in_schema=False)


def access_of(request: Request) -> AccessControl:
    access: AccessControl = request.app.state.access
    return access


TheAccess = Annotated[AccessControl, Depends(access_of)]


@router.get("/")
async def board(request: Request) -> Response:
    if not request.state.caller.may_look:
        return RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER)
    return page("index.html")


def typed_addresses(pages: Iterable[BoardPage]) -> list[Route]:
    """The board's own pages are at `/#/leads`; who types `/leads`, or a page's title, is led there."""
    within = [page for page in (*OWN_PAGES, *pages) if page.module]
    names = {f"/{page.title.lower()}": page.path for page in within} | {
        page.path: page.path for page in within
    }
    whole = [Route(name, _TypedAddress(path)) for name, path in names.items()]
    return [*whole, *(Route(f"{page.path}/{{below:path}}", _TypedAddress(page.path)) for page in within)]


@dataclass(frozen=True, slots=True)
class _TypedAddress:
    """Leads a browser to a page of the board; for programs there is nothing."""

    path: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if not _is_from_a_browser(request):
            raise HTTPException(HTTPStatus.NOT_FOUND)
        typed = scope.get("raw_path", scope["path"].encode()).decode("latin-1").rstrip("/")
        place = typed if "below" in request.path_params else self.path
        search = f"?{request.url.query}" if request.url.query else ""
        await RedirectResponse(f"/#{place}{search}", HTTPStatus.SEE_OTHER)(scope, receive, send)


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """Written once, and not on the event loop: it takes a third of a second."""
    kept = request.app.state
    if not hasattr(kept, "openapi"):
        kept.openapi = await asyncio.to_thread(lambda: orjson.dumps(request.app.openapi()))
    return Response(kept.openapi, media_type="application/json")


@router.get("/docs")
async def docs() -> Response:
    return page("docs.html")


@router.get("/api", dependencies=requires("anyone"))
async def api() -> Response:
    return RedirectResponse("/docs", HTTPStatus.SEE_OTHER)


@router.get("/sign-in")
async def sign_in_page(request: Request) -> Response:
    if request.state.caller.may_look:
        return RedirectResponse("/", HTTPStatus.SEE_OTHER)
    return page("sign-in.html")


@router.post("/sign-in")
async def sign_in(request: Request, access: TheAccess) -> Response:
    form = await read_form(request)
    token, address = form.get("token", "").strip(), address_of(request.scope)
    try:
        held = await access.holder_of(token.encode(), address)
    except TooManyWrong as error:
        return _refused(HTTPStatus.TOO_MANY_REQUESTS, str(error), error.headers)
    if held is None:
        access.failures.wrong(address, "a sign-in", request.url.path)
        return _refused(HTTPStatus.UNAUTHORIZED, "That is neither the admin token nor a key.")
    caller, key_id = held
    if not caller.may_look:
        return _refused(
            HTTPStatus.FORBIDDEN, "This key may not see the board: it needs the scope read or admin."
        )
    cookie = await access.sessions.begin(key_id, address, digest=digest_of(parts_of(token)[1]))
    if cookie is None:
        return _refused(HTTPStatus.UNAUTHORIZED, "This key has been rotated: sign in with its new text.")
    await _note(access, caller, "sign in", address)
    answer = RedirectResponse("/", HTTPStatus.SEE_OTHER)
    answer.set_cookie(
        COOKIE,
        cookie,
        max_age=LIFE // 1000,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post("/sign-out")
async def sign_out(request: Request, access: TheAccess) -> Response:
    await access.sessions.end(request.cookies.get(COOKIE, ""))
    if request.state.caller.is_session:
        await _note(access, request.state.caller, "sign out", address_of(request.scope))
    answer = RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


async def _note(access: AccessControl, caller: Caller, action: str, address: str) -> None:
    entry = Entry(caller.name, action, address=address)
    await access.audit.begin(entry)
    await access.audit.finish(entry, "done")


async def no_such_page(request: Request, error: Exception) -> Response:
    """What is typed and leads nowhere is answered with a page; a program, and whoever asks the API, gets the problem."""
    is_unknown = isinstance(error, HTTPException) and error.detail == HTTPStatus.NOT_FOUND.phrase
    path: str = request.scope["path"]
    if not is_unknown or is_guarded(path) or not _is_from_a_browser(request):
        return await on_http_error(request, error)
    shown = path if len(path) <= LONGEST_SHOWN else f"{path[:LONGEST_SHOWN]}…"
    return page("nothing.html", HTTPStatus.NOT_FOUND, {"<!-- path -->": escape(mask(shown))})


def _is_from_a_browser(request: Request) -> bool:
    return request.method in ("GET", "HEAD") and "text/html" in request.headers.get("accept", "")


def _refused(status: HTTPStatus, why: str, headers: Mapping[str, str] | None = None) -> Response:
    answer = page("sign-in.html", status, {"<!-- error -->": why})
    answer.headers.update(headers or {})
    return answer


def page(name: str, status: int = HTTPStatus.OK, replaced: dict[str, str] | None = None) -> Response:
    html = (BOARD / name).read_text(encoding="utf-8")
    for mark, text in (replaced or {}).items():
        html = html.replace(mark, text)
    return HTMLResponse(html, status, {"cache-control": "no-cache"})
