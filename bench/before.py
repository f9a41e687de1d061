"""What an event, a letter and a start cost in CPU, here and in another checkout with its own .venv, in turns.

`python -m bench.before ../yamchi-before --turns 9`: CPU of our own process, not time, so that a busy machine matters little;
the ratio is the median of those of the turns.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import psutil
from tests.services.server import free_port

from bench.measure import ROOT
from bench.notifications.events import await_answer
from bench.notifications.letters import user_of

EVENTS, CONNECTIONS = 3_000, 16
LETTERS = 1_500
ALLOWED = 1.03
TIMEOUT_SECONDS = 120.0


def main() -> None:
    options = _options()
    checkouts = {"before": options.checkout.resolve(), "now": ROOT}
    for name in options.what.split(","):
        samples: dict[str, list[float]] = defaultdict(list)
        for turn in range(options.turns):
            for which in sorted(checkouts, reverse=turn % 2 == 1):
                with tempfile.TemporaryDirectory(prefix="yamchi-before-") as folder:
                    samples[which].append(MEASURES[name](checkouts[which], Path(folder)))
        pairs = zip(samples["now"], samples["before"], strict=True)
        ratio = statistics.median(now / before for now, before in pairs)
        before, now = (statistics.median(samples[which]) for which in ("before", "now"))
        verdict = "ok" if ratio <= ALLOWED else f"more than {ALLOWED:g}"
        print(
            f"{name:10} before {before:10,.1f}   now {now:10,.1f}   {UNITS[name]}   ratio {ratio:.3f}   {verdict}",
            flush=True,
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench.before", description=__doc__)
    parser.add_argument(
        "checkout", type=Path, help="a folder with another version, after `make install` there"
    )
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--what", default="events,letters,start", help="some of them, by name")
    return parser.parse_args()


def _run(checkout: Path, home: Path, *command: str, **settings: str) -> "subprocess.Popen[bytes]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"YAMCHI_HOME": str(home), "LOG_LEVEL": "error", "QUEUE_URL": "sqlite:///var/jobs.db"}
    environment |= {"PYTHONPATH": str(checkout), **settings}
    python = checkout / ".venv/bin/python"
    return subprocess.Popen([python, *command], cwd=checkout, env=environment, stdout=subprocess.DEVNULL)


def _cpu(process: "subprocess.Popen[bytes]") -> float:
    return sum(psutil.Process(process.pid).cpu_times()[:2])


# ── Events ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _events(checkout: Path, home: Path) -> float:
    """Microseconds of the server for an event, one a call."""
    port = free_port()
    server = _run(checkout, home, "-m", "yamchi", "api", "--port", str(port))
    try:
        await_answer(server, f"http://127.0.0.1:{port}")
        asyncio.run(_post(port, EVENTS // 5))
        began = _cpu(server)
        asyncio.run(_post(port, EVENTS))
        return (_cpu(server) - began) / EVENTS * 1e6
    finally:
        server.terminate()
        server.wait()


async def _post(port: int, events: int) -> None:
    numbers = iter(range(events))
    run = time.monotonic_ns()

    async def post_on() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            body = (
                f'{{"event_type":"user_registered","event_id":"{run}-{number}","user_id":"{user_of(1)}",'
                '"data":{"first_name":"Nurzhan","plan":"pro"}}'
            )
            writer.write(
                f"POST /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            if " 20" not in head.partition("\r\n")[0]:
                raise SystemExit(head)
            await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
        writer.close()

    await asyncio.gather(*(post_on() for _ in range(CONNECTIONS)))


# ── Letters ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _letters(checkout: Path, home: Path) -> float:
    """Microseconds of the worker for a letter."""
    return asyncio.run(_send(checkout, home))


async def _send(checkout: Path, home: Path) -> float:
    taken, arrived = 0, asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        writer.write(b"220 sink\r\n")
        while line := await reader.readline():
            match line[:4].upper().strip():
                case b"EHLO":
                    writer.write(b"250-sink\r\n250 PIPELINING\r\n")
                case b"DATA":
                    writer.write(b"354 go on\r\n")
                    await reader.readuntil(b"\r\n.\r\n")
                    taken += 1
                    arrived.set()
                    writer.write(b"250 taken\r\n")
                case b"QUIT":
                    writer.write(b"221 bye\r\n")
                    break
                case _:
                    writer.write(b"250 ok\r\n")
        writer.close()

    async def reached(letters: int) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while taken < letters:
                arrived.clear()
                await arrived.wait()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as sink:
        port = str(sink.sockets[0].getsockname()[1])
        settings = {
            "SMTP_HOST": "127.0.0.1",
            "SMTP_PORT": port,
            "SMTP_SECURITY": "none",
            "CONCURRENCY_NOTIFICATIONS": "100",
        }
        module = "bench.notifications.yamchi_letters"
        if await asyncio.to_thread(_run(checkout, home, "-m", module, "add", str(LETTERS), **settings).wait):
            raise SystemExit(f"no letters could be added in {checkout}")
        worker = _run(checkout, home, "-m", module, "work", **settings)
        try:
            await reached(LETTERS // 5)
            began, seen = _cpu(worker), taken
            await reached(LETTERS)
            return (_cpu(worker) - began) / (LETTERS - seen) * 1e6
        finally:
            worker.terminate()
            await asyncio.to_thread(worker.wait)


# ── A start ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _start(checkout: Path, home: Path) -> float:
    """Milliseconds for an application that does nothing."""
    began = getrusage(RUSAGE_CHILDREN)
    _run(checkout, home, "-c", "from yamchi import Yamchi; Yamchi()").wait()
    ended = getrusage(RUSAGE_CHILDREN)
    return (ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime) * 1e3


MEASURES: dict[str, Callable[[Path, Path], float]] = {"events": _events, "letters": _letters, "start": _start}
UNITS = {"events": "µs an event", "letters": "µs a letter", "start": "ms a start"}


if __name__ == "__main__":
    main()
