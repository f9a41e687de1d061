"""Who asks for more than they ever read: on a server of uvicorn with an application that has much to say."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from yamchi.http import connections
from yamchi.http.connections import LimitedConfig
from yamchi.testing import eventually

LARGE = b"x" * 4_000_000
GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
OPEN = (
    b"GET / HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
)


async def talk(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        with suppress(OSError):
            while True:
                await send({"type": "websocket.send", "bytes": b"x" * 10_000})
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": LARGE, "more_body": scope["path"] == "/slow"})
    if scope["path"] == "/slow":
        await send({"type": "http.response.body", "body": b"end"})


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADERS_WITHIN", 0.3)
    monkeypatch.setattr(connections, "READ_WITHIN", 1.0)
    monkeypatch.setattr(connections, "LOOK_EVERY", 0.1)
    monkeypatch.setattr(connections, "LOOK_FOR_UNREAD_EVERY", 0.1)


@pytest.fixture
async def server(impatient: None) -> AsyncIterator[uvicorn.Server]:
    server = uvicorn.Server(LimitedConfig(talk, port=0, lifespan="off", log_config=None))
    serving = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    yield server
    server.should_exit = True
    await serving


@pytest.fixture
def unsaid(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.ERROR, "uvicorn.error")
    yield
    said = [record for record in caplog.records if record.name.startswith("uvicorn")]
    assert [record.getMessage() for record in said if record.levelno >= logging.ERROR] == []


async def connect(server: uvicorn.Server, said: bytes) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, server.servers[0].sockets[0].getsockname())
    await loop.sock_sendall(client, said)
    return client


async def is_empty(server: uvicorn.Server) -> None:
    await eventually(lambda: not server.server_state.connections, within=10)


@pytest.mark.parametrize(
    "said",
    [GET, GET * 20, GET.replace(b"GET /", b"GET /slow"), GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"), OPEN],
    ids=["an answer", "twenty answers", "an answer that goes on", "the last answer", "frames"],
)  # fmt: skip
async def test_what_is_not_read_is_not_kept(server: uvicorn.Server, unsaid: None, said: bytes) -> None:
    clients = [await connect(server, said) for _ in range(3)]
    await eventually(lambda: len(server.server_state.connections) == 3)
    await is_empty(server)
    for client in clients:
        client.close()


async def test_who_leaves_before_the_answers_is_no_error(server: uvicorn.Server, unsaid: None) -> None:
    client = await connect(server, GET * 20)
    await eventually(lambda: len(server.server_state.connections) == 1)
    client.close()
    await is_empty(server)


async def test_who_reads_slowly_gets_all_of_it(server: uvicorn.Server, unsaid: None) -> None:
    """It takes longer than a connection may wait, and than one may be unread."""
    client, loop, got = await connect(server, GET), asyncio.get_running_loop(), 0
    began = loop.time()
    while part := await loop.sock_recv(client, 100_000):
        got += len(part)
        await asyncio.sleep(0.002)
    assert got > len(LARGE)
    assert loop.time() - began > 1
    client.close()


async def test_the_unread_make_room(server: uvicorn.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READ_WITHIN", 60)
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 5)
    clients: list[Any] = [await connect(server, GET * 20) for _ in range(5)]
    await eventually(lambda: len(server.config.connections._unread) == 5)
    for _ in range(3):
        client = await connect(server, GET)
        assert (await asyncio.get_running_loop().sock_recv(client, 100)).startswith(b"HTTP/1.1 200")
        clients.append(client)
    for client in clients:
        client.close()


# ── Who opens many, or says much ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("limit", ["MOST_WAITING", "MOST_WAITING_OF_ADDRESS"])
async def test_of_those_that_wait_the_longest_make_room(
    server: uvicorn.Server, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """However many are opened, so many stay, and the newest is served."""
    monkeypatch.setattr(connections, "HEADERS_WITHIN", 60)
    monkeypatch.setattr(connections, limit, 3)
    clients = [await connect(server, b"GET / HTTP/1.1\r\n") for _ in range(9)]
    loop = asyncio.get_running_loop()
    for client in clients[:6]:
        assert await is_closed(client)
    assert len(server.server_state.connections) == 3
    await loop.sock_sendall(clients[-1], b"host: localhost\r\n\r\n")
    assert (await loop.sock_recv(clients[-1], 100)).startswith(b"HTTP/1.1 200")
    for client in clients:
        client.close()


async def is_closed(client: socket.socket) -> bool:
    try:
        return not await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 100), 10)
    except ConnectionResetError:
        return True


async def listen(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect":
        pass


async def test_who_says_much_is_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of ten frames has a second: the fourth comes after three."""
    monkeypatch.setattr(connections, "FRAMES_A_SECOND", 5)
    monkeypatch.setattr(connections.OpenWebSocket, "LARGEST_PART", 60)
    server = uvicorn.Server(LimitedConfig(listen, port=0, lifespan="off", log_config=None))
    serving, loop = asyncio.create_task(server.serve()), asyncio.get_running_loop()
    await eventually(lambda: server.started)
    client = await connect(server, OPEN)
    while b"\r\n\r\n" not in (said := await loop.sock_recv(client, 4_096)):
        assert said
    began, pongs = loop.time(), b""
    await loop.sock_sendall(client, b"\x89\x80\0\0\0\0" * 40)
    while len(pongs) < 80:
        pongs += await loop.sock_recv(client, 4_096)
    assert pongs == b"\x8a\0" * 40
    assert loop.time() - began > 1.5
    client.close()
    server.should_exit = True
    await serving
