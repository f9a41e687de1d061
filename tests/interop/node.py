"""Node programs that the tests talk to: each ends with the test that started it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from tests.services.missing import required, unavailable

HERE = Path(__file__).parent
LONGEST_LINE = 16 * 1024 * 1024


class Peer:
    """A Node program that answers requests about the same Redis: see peer.mjs for what can be asked."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._turn = asyncio.Lock()

    async def ask(self, command: str, **args: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._turn:
            self._process.stdin.write(orjson.dumps({"command": command, **args}) + b"\n")
            line = await asyncio.wait_for(self._process.stdout.readline(), 30)
        reply = orjson.loads(line or b'{"error": "Node ended; its last words are in the log above"}')
        assert "error" not in reply, reply["error"]
        return reply["answer"]


@asynccontextmanager
async def running(script: str, *args: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Node program, ended by its process id."""
    node = required("node")
    if not (HERE / "node_modules" / "bullmq").exists():
        unavailable("Node's packages are not here: run python -m tests.services install")
    process = await asyncio.create_subprocess_exec(
        node, str(HERE / script), *args,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=LONGEST_LINE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def peer(url: str, prefix: str = "bull") -> AsyncIterator[Peer]:
    async with running("peer.mjs", url, prefix) as process:
        yield Peer(process)


@asynccontextmanager
async def board(url: str, *queues: str) -> AsyncIterator[str]:
    """Bull Board; the address of its API."""
    async with running("board.mjs", url, *queues) as process:
        assert process.stdout is not None
        port = await asyncio.wait_for(process.stdout.readline(), 30)
        yield f"http://127.0.0.1:{port.decode().strip()}/api"
