"""`/ws`: the open pages of a person.

The page says hello, `{"type": "hello", "token": "…", "since": 41}`, so that the token is in no address and no log; `since`
is the last number it has seen. We answer `welcome` and what it missed, then whatever happens. `ping` shows that we live.
Before its token expires, the page sends another: `{"type": "token", "token": "…"}`.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from yamchi.clock import Millis
from yamchi.errors import TokenRefused
from yamchi.http.auth import hostname_of, is_loopback, is_same_origin
from yamchi.http.failures import Failures, TooManyWrong, address_of
from yamchi.http.problems import problem
from yamchi.notifications.inbox.hub import Hub
from yamchi.notifications.people.tokens import Person, PersonTokens
from yamchi.notifications.plugin import Notifications
from yamchi.plugins import of_request
from yamchi.settings import Settings

HELLO_TIMEOUT_SECONDS = 10.0
"""Seconds a page has for its hello."""

MAX_MESSAGE_BYTES = 8 * 1024
"""Bytes of the largest message a page may send; a hello has a few hundred."""

BAD_MESSAGE, BAD_TOKEN, BAD_ORIGIN, NO_HELLO, TOO_MANY = 4400, 4401, 4403, 4408, 4429
TOO_LARGE, TRY_AGAIN = 1009, 1013


class End(Exception):
    """How a connection ends, and why."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class OpenPage:
    """One connection. What it can't take at once waits in a queue of limited length, and nobody waits for it."""

    def __init__(self, websocket: WebSocket, hub: Hub, person: Person, since: int | None) -> None:
        self.user_id = person.user_id
        self.since = since
        self.minted_at, self.expires_at = person.minted_at, person.expires_at
        self._websocket = websocket
        self._hub = hub
        self._pending: deque[str | End] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._is_over = False

    def admit(self, frames: Sequence[str]) -> None:
        for frame in frames:
            self._put(frame)

    def offer(self, frame: str) -> None:
        if len(self._pending) >= self._hub.limits.most_pending:
            self.end(End(TRY_AGAIN, "This page reads too slowly: come back with since to catch up."))
        elif not self._is_over:
            self._put(frame)

    def beat(self, frame: str, now: Millis) -> None:
        if self.expires_at <= now:
            self.refuse("This token has expired: let your backend mint another.")
        else:
            self.offer(frame)

    def renew(self, person: Person) -> None:
        if person.user_id != self.user_id:
            raise End(BAD_TOKEN, "This token is another person's.")
        self.minted_at, self.expires_at = person.minted_at, person.expires_at

    def refuse(self, why: str) -> None:
        self.end(End(BAD_TOKEN, why))

    def end(self, end: End) -> None:
        """Say why and close; what was waiting is dropped, and told again when the page comes back."""
        if not self._is_over:
            self._is_over = True
            self._hub.leave(self)
            self._pending.clear()
            self._put(end)

    def stop(self) -> None:
        """The connection is gone."""
        self._is_over = True
        self._hub.leave(self)
        if self._sending:
            self._sending.cancel()

    def _put(self, frame: str | End) -> None:
        self._pending.append(frame)
        if (
            self._sending is None
        ):  # an idle page has no task of its own: with thousands of them that is memory
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        with suppress(WebSocketDisconnect):  # gone already: the one who listens learns it too
            while self._pending:
                frame = self._pending.popleft()
                if isinstance(frame, End):
                    await self._websocket.close(frame.code, frame.reason)
                else:
                    await self._websocket.send_text(frame)
        self._sending = None


async def serve_page(websocket: WebSocket) -> None:
    """The life of one connection."""
    notifications = await find_notifications(websocket)
    await websocket.accept()
    try:
        _check_origin(websocket, notifications.app.settings)
        page = await _introduce(websocket, notifications.hub, notifications.persons)
    except End as end:
        await websocket.close(end.code, end.reason)
        return
    except WebSocketDisconnect:
        return
    try:
        await _listen(websocket, page, notifications.persons)
    finally:
        page.stop()


async def _explain(_request: Request) -> Response:
    sentence = (
        'This is a WebSocket: connect with ws:// or wss://, and begin with {"type": "hello", "token": …}.'
    )
    return problem(HTTPStatus.UPGRADE_REQUIRED, sentence, headers={"Upgrade": "websocket"})


find_notifications = of_request(Notifications)
pages = APIRouter(routes=[WebSocketRoute("/ws", serve_page), Route("/ws", _explain)])


def _check_origin(websocket: WebSocket, settings: Settings) -> None:
    """A page of another site needs to be named in CORS_ORIGINS; without ADMIN_TOKEN, only this machine is served."""
    headers = websocket.headers
    is_open = settings.admin_token is None
    if is_open and not is_loopback(hostname_of(headers.get("host", ""))):
        raise End(BAD_ORIGIN, "This server serves its own machine only: open it as localhost.")
    is_named = headers.get("origin", "").lower() in settings.cors_origins
    if "origin" in headers and not is_named and not is_same_origin(headers):
        raise End(BAD_ORIGIN, "Pages of this origin may not connect: name it in CORS_ORIGINS.")


async def _introduce(websocket: WebSocket, hub: Hub, persons: PersonTokens) -> OpenPage:
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_SECONDS):
            hello = await _receive(websocket)
    except TimeoutError:
        raise End(NO_HELLO, f"No hello came within {HELLO_TIMEOUT_SECONDS:g} s.") from None
    since = hello.get("since")
    if hello.get("type") != "hello" or not isinstance(since, int | None) or isinstance(since, bool):
        raise End(
            BAD_MESSAGE, 'Begin with {"type": "hello", "token": …, "since": the last seq seen or null}.'
        )
    page = OpenPage(websocket, hub, await _check(websocket, hello, persons), since)
    if not hub.join(page):
        raise End(TOO_MANY, "This person has too many pages open: close one.")
    return page


async def _listen(websocket: WebSocket, page: OpenPage, persons: PersonTokens) -> None:
    """Until the page goes away. It has little to say."""
    while True:
        try:
            message = await _receive(websocket)
            match message.get("type"):
                case "token":
                    page.renew(await _check(websocket, message, persons))
                case "pong":
                    continue
                case kind:
                    raise End(BAD_MESSAGE, f"There is no message of type {str(kind)[:40]!r}.")
        except End as end:
            page.end(end)
        except WebSocketDisconnect:
            return


async def _check(websocket: WebSocket, message: dict[str, Any], persons: PersonTokens) -> Person:
    """Wrong tokens count here as they do over HTTP."""
    try:
        return await persons.check(str(message.get("token", "")))
    except TokenRefused as refused:
        if refused.is_forged:
            _count_forged(websocket)
        raise End(BAD_TOKEN, str(refused)) from refused


def _count_forged(websocket: WebSocket) -> None:
    failures: Failures = websocket.app.state.access.failures
    try:
        failures.forged(address_of(websocket.scope), websocket.scope["path"])
    except TooManyWrong as error:
        raise End(TOO_MANY, str(error)) from None


async def _receive(websocket: WebSocket) -> dict[str, Any]:
    event = await websocket.receive()
    if event["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(event.get("code", 1005))
    content = event.get("text") or event.get("bytes") or ""
    if len(content) > MAX_MESSAGE_BYTES:
        raise End(TOO_LARGE, f"A message may have {MAX_MESSAGE_BYTES:,} bytes.")
    try:
        message = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise End(BAD_MESSAGE, "The message is not JSON.") from None
    if not isinstance(message, dict):
        raise End(BAD_MESSAGE, "The message is not a JSON object.")
    return message
