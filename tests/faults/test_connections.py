"""Before anybody has signed in: headers without end, requests that never finish, forms of a million fields, on a running server.

Whatever is done to it, somebody who asks a plain question gets a plain answer.
"""

import asyncio
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.processes import Process
from yamchi.http.connections import LARGEST_HEADERS, MOST_HEADERS, MOST_WAITING_OF_ADDRESS
from yamchi.http.limits import BODY_LIMIT, BODY_WITHIN, MOST_HELD, MOST_READING

TIMEOUT_SECONDS = 60.0
HALF_OPEN = 1_500
LONGEST_BUSY_MS = 250
TOKEN = "x" * 32


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    process = Process(tmp_path_factory.mktemp("connections"), "up", "--port", "0", ADMIN_TOKEN=TOKEN)
    yield process
    assert process.process.poll() is None, process.said
    process.end(signal.SIGTERM)


class Connection:
    """A connection that is used as no library would."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, server: Process) -> "Connection":
        address = urlsplit(server.url)
        return cls(*await asyncio.open_connection("127.0.0.1", address.port))

    async def send(self, data: bytes) -> bool:
        """Whether the other side still takes it."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except OSError:
            return False
        return not self.writer.is_closing()

    async def rest(self) -> bytes:
        """Everything that comes until the end."""
        with suppress(OSError):
            return await asyncio.wait_for(self.reader.read(), TIMEOUT_SECONDS)
        return b""

    def close(self) -> None:
        self.writer.transport.abort()


async def is_served(server: Process) -> bool:
    """The board's page and the health check, on connections of their own."""
    async with httpx2.AsyncClient(base_url=server.url, timeout=TIMEOUT_SECONDS) as client:
        health, board = await client.get("/healthz"), await client.get("/sign-in")
        return health.status_code == board.status_code == 200


def memory(server: Process) -> int:
    return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{server.process.pid}/status").read_text())[0])


@pytest.mark.parametrize(
    "request_line", [b"GET /healthz", b"POST /sign-in"], ids=["before a body", "behind a body"]
)
async def test_a_header_of_a_hundred_megabytes_is_cut_off(server: Process, request_line: bytes) -> None:
    assert await is_served(server)
    before = memory(server)
    connection = await Connection.to(server)
    chunked = b"" if request_line.startswith(b"GET") else b"transfer-encoding: chunked\r\n\r\n0\r\n"
    await connection.send(request_line + b" HTTP/1.1\r\nhost: localhost\r\n" + chunked + b"x-long: ")
    sent, piece = 0, b"x" * 65_536
    while sent < 100_000_000 and await connection.send(piece):
        sent += len(piece)
    connection.close()
    assert sent < 50_000_000  # what the system's own buffers took before it noticed
    assert memory(server) < before + 20_000
    assert await is_served(server)


@pytest.mark.parametrize(
    "headers",
    [b"x: " + b"y" * LARGEST_HEADERS, b"\r\n".join(b"x%d: y" % n for n in range(MOST_HEADERS + 1))],
    ids=["large", "many"],
)
async def test_too_large_headers_are_answered_431(server: Process, headers: bytes) -> None:
    connection = await Connection.to(server)
    await connection.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + headers + b"\r\n\r\n")
    answer = await connection.rest()
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"connection: close" in answer
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("before", [b"", b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" * 3])
async def test_a_trailer_is_no_header(server: Process, before: bytes) -> None:
    """A proxy that sets X-Forwarded-For, or takes Authorization away, looks at headers only."""
    connection = await Connection.to(server)
    await connection.send(
        before + b"POST /api/v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
        b"authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
    )
    assert b"HTTP/1.1 401 " in await connection.rest()


async def test_an_address_without_end_is_refused(server: Process) -> None:
    connection = await Connection.to(server)
    await connection.send(b"GET /" + b"a" * (LARGEST_HEADERS * 2) + b" HTTP/1.1\r\nhost: localhost\r\n\r\n")
    answer = await connection.rest()  # which is lost where the system had more of the address to deliver
    assert answer[9:12] in (b"431", b"")
    assert await is_served(server)


async def test_fifteen_hundred_half_open_requests_keep_nobody_out(server: Process) -> None:
    """The ones that have waited longest give way, so a new one with something to ask is always let in."""
    connections = [await Connection.to(server) for _ in range(HALF_OPEN)]
    for connection in connections:
        await connection.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-slow: ")
    try:
        for _ in range(5):
            assert await is_served(server)
        closed = await asyncio.gather(
            *(asyncio.wait_for(one.rest(), TIMEOUT_SECONDS) for one in connections[:200])
        )
        assert len(closed) == 200
        assert MOST_WAITING_OF_ADDRESS < HALF_OPEN
    finally:
        for connection in connections:
            connection.close()


async def test_headers_that_drip_are_not_waited_for(server: Process) -> None:
    """Each byte is news, but the headers as a whole have a deadline."""
    connection = await Connection.to(server)
    await connection.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-slow: ")
    loop = asyncio.get_running_loop()
    began = loop.time()
    while (
        not connection.reader.at_eof()
        and await connection.send(b"x")
        and loop.time() - began < TIMEOUT_SECONDS
    ):
        with suppress(TimeoutError, OSError):
            await asyncio.wait_for(connection.reader.read(1), 0.2)
    assert loop.time() - began < TIMEOUT_SECONDS
    connection.close()


async def test_a_body_that_never_comes_is_answered_408(server: Process) -> None:
    connection = await Connection.to(server)
    await connection.send(b"POST /sign-in HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\na")
    assert BODY_WITHIN < TIMEOUT_SECONDS
    answer = await connection.rest()
    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_bodies_that_never_come_keep_no_other_out(server: Process) -> None:
    """The one that has been silent longest gives way, so a body that is there is always read."""
    announced = b"POST /sign-in HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n"
    connections = []
    try:
        for _ in range(MOST_READING + 50):
            connections.append(await Connection.to(server))
            await connections[-1].send(announced)
        async with httpx2.AsyncClient(base_url=server.url, timeout=TIMEOUT_SECONDS) as client:
            assert (await client.post("/sign-in", data={"token": TOKEN})).status_code in (200, 303)
        first = await asyncio.wait_for(connections[0].reader.readline(), BODY_WITHIN / 2)
        assert first.startswith(b"HTTP/1.1 408 ")
    finally:
        for connection in connections:
            connection.close()


async def test_large_bodies_that_never_end_have_one_memory_in_common(server: Process) -> None:
    """A key may send 4 MiB at a time, and as often as it likes: what all of them keep waiting has a limit."""
    head = b"POST /api/v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %b\r\n" % TOKEN.encode()
    head += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % BODY_LIMIT
    before, most = memory(server), MOST_HELD // BODY_LIMIT
    connections = []
    try:
        for _ in range(2 * most):
            connections.append(await Connection.to(server))
            await connections[-1].send(head + b" " * (BODY_LIMIT - 1))
        assert memory(server) - before < 1.5 * MOST_HELD / 1024
        first = await asyncio.wait_for(connections[0].reader.readline(), BODY_WITHIN / 2)
        assert first.startswith(b"HTTP/1.1 408 ")
        async with httpx2.AsyncClient(base_url=server.url, timeout=TIMEOUT_SECONDS) as client:
            body, sender = b" " * (BODY_LIMIT - 2) + b"{}", {"authorization": f"Bearer {TOKEN}"}
            sender |= {"content-type": "application/json"}
            assert (await client.post("/api/v1/events", content=body, headers=sender)).status_code == 422
    finally:
        for connection in connections:
            connection.close()
    assert await is_served(server)


async def test_a_form_of_a_million_fields_costs_nothing(server: Process) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    async with httpx2.AsyncClient(base_url=server.url, timeout=TIMEOUT_SECONDS) as client:
        for body, status in ((b"a=b&" * 1_000_000, 413), (b"a=b&" * 10_000, 422)):
            with suppress(httpx2.WriteError, httpx2.ReadError):  # it answers, and does not wait for the rest
                assert (await client.post("/sign-in", content=body, headers=form)).status_code == status
    assert await is_served(server)


async def test_websockets_that_say_nothing_keep_nobody_out(server: Process) -> None:
    hello = (
        b"GET /ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
    )
    connections = [await Connection.to(server) for _ in range(300)]
    try:
        for connection in connections:
            await connection.send(hello)
        assert await is_served(server)
        frames = await asyncio.gather(*(connection.rest() for connection in connections[:20]))
        assert all(b"101 Switching" in frame for frame in frames)
    finally:
        for connection in connections:
            connection.close()


HEALTH = b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n"
PAGE = (
    b"GET /ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
)
UPLOAD = (
    b"POST /api/webhooks/payments/yookassa HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n"
    b"content-type: application/json\r\n\r\n"
)


@pytest.mark.parametrize(
    ("opening", "small"),
    [(b"", HEALTH), (UPLOAD, b"1\r\na\r\n"), (PAGE, b"\x89\x80\0\0\0\0"), (PAGE, b"\x81\x80\0\0\0\0")],
    ids=["requests behind requests", "chunks of a byte", "pings", "empty messages"],
)
async def test_small_things_in_great_numbers_stop_nobody(
    server: Process, opening: bytes, small: bytes
) -> None:
    """A megabyte of any of them was seconds of work in one callback, or a gigabyte of requests that wait."""
    assert await is_served(server)
    before, began = memory(server), len(server.said)
    connection = await Connection.to(server)
    await connection.send(opening)
    if opening == PAGE:
        await connection.reader.readuntil(b"\r\n\r\n")
    flood = asyncio.create_task(_send_much(connection, small * (1_000_000 // len(small))))
    for _ in range(20):
        assert await is_served(server)
    flood.cancel()
    connection.close()
    assert memory(server) < before + 20_000
    assert await is_served(server)
    busy = re.findall(r"stood still for [\d,]+ ms, ([\d,]+) ms of them working", server.said[began:])
    assert [one for one in busy if int(one.replace(",", "")) >= LONGEST_BUSY_MS] == []


async def _send_much(connection: Connection, much: bytes) -> None:
    for _ in range(30):
        await connection.send(much)


async def test_requests_behind_requests_are_all_answered_in_turn(server: Process) -> None:
    """Those of one part, of several parts, and one that is cut between two."""
    count = 10_000
    connection = await Connection.to(server)
    sending = asyncio.create_task(
        connection.send(HEALTH * (count - 1) + HEALTH.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
    )
    answers = await connection.rest()
    assert await sending
    assert answers.count(b"HTTP/1.1 200 ") == count
