"""A TCP proxy that misbehaves on command: put it between a client and a server to see what a bad network does.

    with ChaosProxy(redis.url) as proxy:
        queue = connect(proxy.through(redis.url))
        proxy.cut()       # connections are reset, new ones refused
        proxy.stall()     # connections are taken, but nothing passes
        proxy.delay(0.2)  # everything arrives this much later
        proxy.heal()      # all is well again

It runs in a thread of its own, so it serves async tests, blocking tests and child processes alike. Every command
returns when it is in force.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any, Self
from urllib.parse import urlsplit

from tests.services.server import free_port

CHUNK_BYTES = 64 * 1024
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class ChaosProxy:
    """Stands at a loopback port before `target`, a URL or host:port; the port stays the same through `cut` and `heal`."""

    def __init__(self, target: str, port: int | None = None) -> None:
        address = urlsplit(target if "//" in target else f"//{target}")
        self._host, self._target_port = address.hostname, address.port
        self.port = port or free_port()
        self.accepted = 0
        self._delay = 0.0
        self._flowing = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"chaos-proxy-{self.port}", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        self.heal()
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def through(self, url: str) -> str:
        """The same URL, by way of this proxy."""
        if "//" not in url:
            return f"127.0.0.1:{self.port}"
        parts = urlsplit(url)
        login = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{login[0]}{login[1]}127.0.0.1:{self.port}").geturl()

    def cut(self) -> None:
        """Reset every connection and refuse new ones."""
        self._do(self._cut())

    def stall(self) -> None:
        """Take connections and keep those there are, but let nothing pass until `heal`."""
        self._do(self._set(flowing=False, delay=0))

    def delay(self, seconds: float) -> None:
        """Let everything pass in both directions, this much later."""
        self._do(self._set(flowing=True, delay=seconds))

    def heal(self) -> None:
        """Pass everything at once, whatever was wrong before."""
        self._do(self._set(flowing=True, delay=0))

    def _do(self, command: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(command, self._loop).result()

    async def _set(self, *, flowing: bool, delay: float) -> None:
        self._delay = delay
        if flowing:
            self._flowing.set()
        else:
            self._flowing.clear()
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _cut(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for writer in list(self._open):
            _reset(writer)

    async def _close(self) -> None:
        await self._cut()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.accepted += 1
        ends = {to_client}
        self._open |= ends
        try:
            from_server, to_server = await asyncio.open_connection(self._host, self._target_port)
            ends.add(to_server)
            self._open.add(to_server)
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._pump(from_client, to_server))
                directions.create_task(self._pump(from_server, to_client))
        except* OSError:
            for end in ends:
                _reset(end)
        finally:
            self._open -= ends
            for end in ends:
                end.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(CHUNK_BYTES):
            await self._flowing.wait()
            if self._delay:
                await asyncio.sleep(self._delay)
            sink.write(data)
            await sink.drain()
        sink.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST, as a firewall or a crashed machine would, instead of a polite FIN."""
    if not writer.is_closing():
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    writer.transport.abort()
