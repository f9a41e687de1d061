"""Calls to others: a deadline for all of it, and a largest answer."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from unittest.mock import patch

import httpx2
import pytest

from yamchi import outgoing
from yamchi.outgoing import Client, NoAnswer, NotAsked, TooMuch

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[tuple[Client, str]]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = Client("payments", "A test", timeout=30)
    yield client, f"http://127.0.0.1:{port}/"
    await client.close()
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
            await client.ask("GET", url, seconds=30, most=100_000)


async def test_an_answer_that_drips_has_a_deadline() -> None:
    async with serving(drip) as (client, url):
        with pytest.raises(NoAnswer, match=r"longer than 0\.5 s"):
            await client.ask("GET", url, seconds=0.5, most=10_000_000)


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.close()


async def test_a_connection_that_ends_before_the_answer() -> None:
    async with serving(hang_up) as (client, url):
        with pytest.raises(NoAnswer, match="disconnected"):
            await client.ask("POST", url, seconds=30, most=10_000)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/", "http://[half/", "gopher://127.0.0.1/", "http:///path"]
)
async def test_nobody_to_ask(url: str) -> None:
    client = Client("payments", "A test", timeout=30)
    with pytest.raises(NotAsked, match=r"."):
        await client.ask("POST", url, seconds=30, most=10_000)
    await client.close()


async def test_the_first_call_does_not_hold_the_event_loop_while_certificates_are_read() -> None:
    outgoing._trusted.cache_clear()
    loop_thread, threads = threading.get_ident(), []
    with (
        patch.object(httpx2, "create_ssl_context", side_effect=lambda: threads.append(threading.get_ident())),
        patch.object(httpx2, "AsyncClient"),
    ):
        client = Client("payments", "A test", timeout=30)
        await asyncio.gather(client._make(), client._make())
        assert httpx2.AsyncClient.call_count == 1
    outgoing._trusted.cache_clear()
    assert threads
    assert loop_thread not in threads


async def test_an_ordinary_answer() -> None:
    async with serving(echo) as (client, url):
        answer = await client.ask("POST", url, seconds=30, most=10_000, headers={"X-Own": "1"}, json={})
    assert (answer.status, answer.reason, answer.is_success) == (418, "Teapot", False)
    said = answer.content.lower()
    assert b"x-own: 1" in said
    assert b"accept-encoding: identity" in said
