"""The board's page, its files, and signing in to it."""

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from yamchi.http.auth import COOKIE, SESSION, Keys

BOARD = Path(__file__).parents[1] / "board"
WRONG_TOKEN_PAUSE = 0.5
"""Seconds that a wrong token costs, so that guessing is slow."""

router = APIRouter(include_in_schema=False)


def keys_of(request: Request) -> Keys:
    keys: Keys = request.app.state.keys
    return keys


TheKeys = Annotated[Keys, Depends(keys_of)]


@router.get("/")
async def board(request: Request) -> Response:
    if request.state.caller != "admin":
        return RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER)
    return page("index.html")


@router.get("/docs")
async def docs() -> Response:
    return page("docs.html")


@router.get("/sign-in")
async def sign_inpage(request: Request) -> Response:
    if request.state.caller == "admin":
        return RedirectResponse("/", HTTPStatus.SEE_OTHER)
    return page("sign-in.html")


@router.post("/sign-in")
async def sign_in(request: Request, keys: TheKeys) -> Response:
    form = parse_qs((await request.body()).decode("utf-8", "replace"))
    if not keys.is_admin(form.get("token", [""])[0].encode()):
        await asyncio.sleep(WRONG_TOKEN_PAUSE)
        return page(
            "sign-in.html", HTTPStatus.UNAUTHORIZED, {"<!-- error -->": "That is not the admin token."}
        )
    answer = RedirectResponse("/", HTTPStatus.SEE_OTHER)
    answer.set_cookie(
        COOKIE,
        keys.new_session(),
        max_age=SESSION // 1000,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post("/sign-out")
async def sign_out() -> Response:
    answer = RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def page(name: str, status: int = HTTPStatus.OK, replaced: dict[str, str] | None = None) -> Response:
    html = (BOARD / name).read_text(encoding="utf-8")
    for mark, text in (replaced or {}).items():
        html = html.replace(mark, text)
    return HTMLResponse(html, status, {"cache-control": "no-cache"})
