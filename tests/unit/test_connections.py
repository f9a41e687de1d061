"""What one connection asks for, request behind request, on a server of uvicorn."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from yamchi.http import connections
from yamchi.http.connections import LARGEST_PART, LimitedConfig
from yamchi.testing import eventually

HEADERS_WITHIN = 0.3


class Application:
    """Answers at once, under `/slow` when told to, and under `/last` for the last time."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(scope["path"])
        if scope["path"] == "/slow":
            await self.may_answer.wait()
        headers = [
            (b"content-length", b"0"),
            *([(b"connection", b"close")] if scope["path"] == "/last" else []),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def application() -> Application:
    return Application()


@pytest.fixture
async def server(application: Application, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[uvicorn.Server]:
    monkeypatch.setattr(connections, "HEADERS_WITHIN", HEADERS_WITHIN)
    monkeypatch.setattr(connections, "LOOK_EVERY", 0.05)
    server = uvicorn.Server(LimitedConfig(application, port=0, lifespan="off", log_config=None))
    serving = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    yield server
    server.should_exit = True
    await serving


async def connect(server: uvicorn.Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())


def get(path: str, headers: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n".encode()


async def test_a_request_behind_another_takes_as_long_as_it_takes(
    server: uvicorn.Server, application: Application
) -> None:
    loop = asyncio.get_running_loop()
    reader, writer = await connect(server)
    writer.write(get("/") + get("/slow"))
    await eventually(lambda: application.asked == ["/", "/slow"])
    began = loop.time()
    await eventually(lambda: loop.time() > began + 3 * HEADERS_WITHIN)
    application.may_answer.set()
    for _ in range(2):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    writer.close()
    await eventually(lambda: not server.server_state.connections)
    assert not server.config.connections._of_address


async def test_nothing_is_done_that_came_behind_the_last_answer(
    server: uvicorn.Server, application: Application
) -> None:
    reader, writer = await connect(server)
    body = "x" * (LARGEST_PART + 10)
    writer.write(get("/last", f"content-length: {len(body)}\r\n") + body.encode() + get("/behind"))
    assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    await eventually(lambda: not server.server_state.connections)
    assert application.asked == ["/last"]
    writer.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("x-long: " + "y" * 9_000 + "\r\n", b"431"),
        ("".join(f"x-{n}: y\r\n" for n in range(150)), b"431"),
        ("content-length: 1\r\n", b"400"),
    ],
    ids=["a long header", "many headers", "a body"],
)
async def test_a_page_that_is_refused_is_answered(
    server: uvicorn.Server, headers: str, status: bytes
) -> None:
    reader, writer = await connect(server)
    page = "upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n"
    writer.write(get("/ws", page + headers))
    async with asyncio.timeout(10):
        assert (await reader.read()).startswith(b"HTTP/1.1 " + status)
    await eventually(lambda: not server.server_state.connections)
    writer.close()
