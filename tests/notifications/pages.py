"""A server with `/ws` in the test's own event loop, and pages that open it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from yamchi import Yamchi
from yamchi.cli.serving import listen, make_server
from yamchi.notifications.inbox.hub import Limits
from yamchi.notifications.people.tokens import LIFE
from yamchi.testing import eventually
from yamchi.web import create_app

TIMEOUT_SECONDS = 100.0


@asynccontextmanager
async def serving(app: Yamchi, limits: Limits | None = None, **options: Any) -> AsyncIterator[str]:
    """The address of this application's server, as long as this lasts. `options` are uvicorn's."""
    app.notifications.hub.limits = limits or Limits()
    listener = listen("127.0.0.1", 0)
    server = make_server(create_app(app), app.settings)
    for name, value in options.items():
        setattr(server.config, name, value)
    task = asyncio.create_task(server.serve([listener]))
    try:
        await eventually(lambda: server.started)
        yield f"http://localhost:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


class OpenedPage:
    """A page as a browser has it: it remembers the last number seen, and what it heard."""

    def __init__(self, url: str, token: str | None, since: int | None = None, **options: Any) -> None:
        self.address = url.replace("http", "ws", 1) + "/ws"
        self.token, self.since, self.options = token, since, options
        self.heard: list[dict[str, Any]] = []
        self.code: int | None = None
        self.reason = ""

    async def __aenter__(self) -> Self:
        self.connection: ClientConnection = await connect(self.address, proxy=None, **self.options)
        if self.token is not None:
            with suppress(ConnectionClosed):  # some are sent away before they have said it
                await self.say({"type": "hello", "token": self.token, "since": self.since})
        self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.connection.close()
        await self._listening

    async def say(self, message: object) -> None:
        await self.connection.send(message if isinstance(message, str) else orjson.dumps(message).decode())

    async def cut(self) -> None:
        """The network goes away in the middle of whatever was under way."""
        self.connection.transport.abort()
        await self._listening

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [frame for frame in self.heard if frame["type"] == kind]

    async def hears(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until it has heard so many of this type."""
        await eventually(lambda: len(self.of_type(kind)) >= count, TIMEOUT_SECONDS)
        return self.of_type(kind)

    async def is_closed(self) -> tuple[int | None, str]:
        await asyncio.wait_for(self._listening, TIMEOUT_SECONDS)
        return self.code, self.reason

    async def _listen(self) -> None:
        with suppress(ConnectionClosed):
            async for frame in self.connection:
                message = orjson.loads(frame)
                self.heard.append(message)
                self.since = message.get("seq", self.since)
        self.code, self.reason = self.connection.close_code, self.connection.close_reason or ""


async def token_of(app: Yamchi, user_id: str, life: int = LIFE) -> str:
    return (await app.notifications.persons.mint(user_id, life))[0]
