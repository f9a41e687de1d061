"""Thousands of open pages at one process: what each costs, and that each hears what is its own, once.

    FAULTS=full pytest -s tests/notifications/test_many_pages.py

opens 5,000 of them; an everyday run opens a few hundred.
"""

import asyncio
import os
import re
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import orjson
import pytest

from tests.processes import Process
from yamchi import Yamchi
from yamchi.notifications.channels.base import Message
from yamchi.notifications.schemas.notification_job import derived_id
from yamchi.notifications.templates.model import Rendered
from yamchi.settings import Settings
from yamchi.testing import eventually

PAGES = 5_000 if os.environ.get("FAULTS") == "full" else 300
MOST_PER_PAGE = 64 * 1024
"""Bytes of the server's memory that an open page may cost."""
TIMEOUT_SECONDS = 120.0
AT_ONCE = 200

HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class BarePage(asyncio.Protocol):
    """As little as a page can be, so that the test measures the server and not itself."""

    def __init__(self, token: str, since: int | None) -> None:
        self.hello = orjson.dumps({"type": "hello", "token": token, "since": since})
        self.since = since
        self.heard: list[dict[str, Any]] = []
        self._bytes, self._is_open = b"", False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(HANDSHAKE)

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        if not self._is_open and b"\r\n\r\n" in self._bytes:
            answer, _, self._bytes = self._bytes.partition(b"\r\n\r\n")
            assert b" 101 " in answer
            self._is_open = True
            self.transport.write(b"\x81\xfe" + len(self.hello).to_bytes(2, "big") + bytes(4) + self.hello)
        while self._is_open and (frame := self._next_frame()):
            kind, content = frame
            if kind == 0x1:
                self._hear(orjson.loads(content))
            elif kind == 0x9:  # a ping wants its pong
                self.transport.write(b"\x8a" + bytes([0x80 | len(content)]) + bytes(4) + content)

    def _hear(self, frame: dict[str, Any]) -> None:
        self.heard.append(frame)
        self.since = frame.get("seq", self.since)

    def _next_frame(self) -> tuple[int, bytes] | None:
        if len(self._bytes) < 4:
            return None
        length, start = self._bytes[1] & 0x7F, 2
        if length == 126:
            length, start = int.from_bytes(self._bytes[2:4], "big"), 4
        if len(self._bytes) < start + length:
            return None
        kind, content = self._bytes[0] & 0xF, self._bytes[start : start + length]
        self._bytes = self._bytes[start + length :]
        return kind, content

    @property
    def items(self) -> list[str]:
        return [frame["item"]["title"] for frame in self.heard if frame["type"] == "item"]

    @property
    def is_welcome(self) -> bool:
        return any(frame["type"] == "welcome" for frame in self.heard)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, PAGES + 5_000)), hard))
    process = Process(tmp_path, "api", "--port", "0", LOG_LEVEL="info")
    try:
        yield process
    finally:
        process.end(signal.SIGTERM)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def memory_of(process: Process) -> int:
    """The server's resident memory, in bytes."""
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


def person(number: int) -> str:
    return str(derived_id("page", str(number)))


async def open_pages(port: int, tokens: list[str], since: list[int | None]) -> list[BarePage]:
    loop, pages = asyncio.get_running_loop(), []
    for start in range(0, len(tokens), AT_ONCE):
        some = range(start, min(start + AT_ONCE, len(tokens)))
        opening = [
            loop.create_connection(lambda n=n: BarePage(tokens[n], since[n]), "127.0.0.1", port) for n in some
        ]
        pages += [page for _, page in await asyncio.gather(*opening)]
    await eventually(lambda: all(page.is_welcome for page in pages), TIMEOUT_SECONDS)
    return pages


async def tell_everybody(app: Yamchi, title: str) -> None:
    messages = (
        Message(str(derived_id(title, str(n))), person(n), Rendered("text", title=title), template_code="t")
        for n in range(PAGES)
    )
    await asyncio.gather(*(app.notifications.channels["database"].send(one) for one in messages))


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
async def test_many_pages_at_one_process(
    server: Process, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = int(server.url.rpartition(":")[2])
    async with Yamchi(Settings(home=tmp_path)) as app:
        tokens = [(await app.notifications.persons.mint(person(n)))[0] for n in range(PAGES)]
        first = await open_pages(port, tokens[:1], [None])  # what is loaded once is not counted
        before = memory_of(server)
        pages = await open_pages(port, tokens, [None] * PAGES)
        each = (memory_of(server) - before) / PAGES
        began = monotonic()
        await tell_everybody(app, "one")
        await eventually(lambda: all(page.items for page in pages), TIMEOUT_SECONDS)
        took = monotonic() - began

        for page in pages:
            page.transport.abort()
        await tell_everybody(app, "two")  # while nobody is there
        returned = monotonic()
        back = await open_pages(port, tokens, [page.since for page in pages])
        await eventually(lambda: all(page.items for page in back), TIMEOUT_SECONDS)
        returned = monotonic() - returned
        after = memory_of(server)

    assert {tuple(page.items) for page in pages} == {("one",)}
    assert {tuple(page.items) for page in back} == {("two",)}
    assert not any(page.heard[0]["reset"] for page in back)
    for page in (*first, *back):
        page.transport.abort()
    with capsys.disabled():
        print(
            f"\n{PAGES:,} pages: {each / 1024:.1f} KiB of the server's memory each; all of them told in {took:.1f} s; "
            f"gone, back and told what they missed in {returned:.1f} s; {after / 2**20:.0f} MiB in all then"
        )
    assert each < MOST_PER_PAGE
