"""Calls to others: a deadline for all of it, and a largest answer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2
import pytest

from yamchi.outgoing import TooMuch, ask

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[tuple[httpx2.AsyncClient, str]]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with httpx2.AsyncClient(timeout=30) as client:
        yield client, f"http://127.0.0.1:{port}/"
    server.close()


async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    with suppress(ConnectionError):
        while True:
            writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
            await writer.drain()


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    with suppress(ConnectionError):
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 418 Teapot\r\nContent-Length: %d\r\n\r\n%b" % (len(head), head))


async def test_an_answer_without_an_end_is_not_read_to_it() -> None:
    async with serving(pour) as (client, url):
        with pytest.raises(TooMuch, match="larger than 100,000 bytes"):
            await ask(client, "GET", url, seconds=30, most=100_000)


async def test_an_answer_that_drips_has_a_deadline() -> None:
    async with serving(drip) as (client, url):
        with pytest.raises(httpx2.ReadTimeout, match=r"longer than 0\.5 s"):
            await ask(client, "GET", url, seconds=0.5, most=10_000_000)


async def test_an_ordinary_answer() -> None:
    async with serving(echo) as (client, url):
        answer = await ask(client, "POST", url, seconds=30, most=10_000, headers={"X-Own": "1"}, json={})
    assert (answer.status, answer.reason, answer.is_success) == (418, "Teapot", False)
    said = answer.content.lower()
    assert b"x-own: 1" in said
    assert b"accept-encoding: identity" in said
