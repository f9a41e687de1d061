"""What things cost here and in another checkout with its own .venv, in turns: what is measured is ours, servers are shared.

`python -m bench.before ../yamchi-before --turns 9`: events, letters and a start on the embedded default. With
`--what drain,adds,letters --engines memory,sqlite,redis,pgmq,kafka` the same on every engine. The ratio is the median of those of
the turns, of the CPU of our own process (a busy machine matters little) and, for drain and adds, of time; that of the best turns
says more where the machine's own speed changes.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import psutil
from tests.services.server import free_port

from bench.measure import ROOT, Target
from bench.notifications.events import await_answer
from bench.notifications.letters import user_of
from bench.stores import Fresh, store_of

EVENTS, CONNECTIONS = 3_000, 16
LETTERS = 1_500
JOBS = 40_000  # so many that a worker's start, which is measured by itself, does not matter
ALLOWED = 1.03
TIMEOUT_SECONDS = 120.0
STORES = {"sqlite": "embedded", "redis": "redis", "pgmq": "postgres", "kafka": "kafka"}
ON_ENGINES = ("drain", "adds", "letters")

Cost = dict[str, float]
"""For one event, letter, job or start: of CPU, and of time where that says something."""


def main() -> None:
    options = _options()
    checkouts = {"before": options.checkout.resolve(), "now": ROOT}
    names = options.what.split(",")
    for engine in options.engines.split(","):
        with _store(engine) as fresh:
            for name in names:
                if name in ON_ENGINES and (name, engine) != ("letters", "memory"):
                    _compare(f"{name} {engine}", UNITS[name], MEASURES[name], checkouts, options.turns, fresh)
    with _store("sqlite") as fresh:
        for name in names:
            if name not in ON_ENGINES:
                _compare(name, UNITS[name], MEASURES[name], checkouts, options.turns, fresh)


def _compare(
    name: str, unit: str, measure: "Measure", checkouts: dict[str, Path], turns: int, fresh: Fresh
) -> None:
    samples: dict[str, list[Cost]] = defaultdict(list)
    for turn in range(turns):
        for which in sorted(checkouts, reverse=turn % 2 == 1):
            with tempfile.TemporaryDirectory(prefix="yamchi-before-") as folder:
                samples[which].append(measure(checkouts[which], Path(folder), fresh()))
    for kind in samples["now"][0]:
        before, now = ([one[kind] for one in samples[which]] for which in ("before", "now"))
        ratio = statistics.median(later / earlier for later, earlier in zip(now, before, strict=True))
        best = min(now) / min(before)
        verdict = "ok" if ratio <= ALLOWED else f"more than {ALLOWED:g}"
        print(
            f"{name:16} {kind:5} before {statistics.median(before):10,.1f}   now {statistics.median(now):10,.1f}   "
            f"{unit}   ratio {ratio:.3f}   of the best turns {best:.3f}   {verdict}",
            flush=True,
        )


@contextmanager
def _store(engine: str) -> Iterator[Fresh]:
    if engine == "memory":
        yield lambda: Target("memory://", "bench")
    else:
        with store_of(STORES[engine]) as fresh:
            yield fresh


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench.before", description=__doc__)
    parser.add_argument(
        "checkout", type=Path, help="a folder with another version, after `make install` there"
    )
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--what", default="events,letters,start", help=f"some of {', '.join(MEASURES)}")
    parser.add_argument(
        "--engines",
        default="sqlite",
        help="for drain, adds and letters: some of memory, sqlite, redis, pgmq, kafka",
    )
    return parser.parse_args()


def _run(
    checkout: Path, home: Path, url: str, *command: str, stdout: int = subprocess.DEVNULL, **settings: str
) -> "subprocess.Popen[bytes]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"YAMCHI_HOME": str(home), "LOG_LEVEL": "error", "QUEUE_URL": url, "QUEUE_FALLBACK": "off"}
    environment |= {"PYTHONPATH": str(checkout), **settings}
    python = checkout / ".venv/bin/python"
    return subprocess.Popen([python, *command], cwd=checkout, env=environment, stdout=stdout)


def _cpu(process: "subprocess.Popen[bytes]") -> float:
    return sum(psutil.Process(process.pid).cpu_times()[:2])


# ── Jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _drain(checkout: Path, home: Path, store: Target) -> Cost:
    return _work(checkout, home, store, "drain")


def _adds(checkout: Path, home: Path, store: Target) -> Cost:
    return _work(checkout, home, store, "adds")


def _work(checkout: Path, home: Path, store: Target, what: str) -> Cost:
    """Microseconds of a process that adds jobs, or of its worker, for each of them."""
    script = str(Path(__file__).with_name("workload.py"))
    arguments = ("-P", script, what, str(JOBS), store.queue)
    with _run(checkout, home, store.url, *arguments, stdout=subprocess.PIPE) as process:
        said, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    if process.returncode:
        raise SystemExit(f"{what} failed in {checkout}")
    figures: Cost = json.loads(said.splitlines()[-1])  # log lines come first
    return figures


# ── Events ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _events(checkout: Path, home: Path, store: Target) -> Cost:
    """Microseconds of the server for an event, one a call."""
    port = free_port()
    server = _run(checkout, home, store.url, "-m", "yamchi", "api", "--port", str(port))
    try:
        await_answer(server, f"http://127.0.0.1:{port}")
        asyncio.run(_post(port, EVENTS // 5))
        began = _cpu(server)
        asyncio.run(_post(port, EVENTS))
        return {"cpu": (_cpu(server) - began) / EVENTS * 1e6}
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


def _letters(checkout: Path, home: Path, store: Target) -> Cost:
    """Microseconds of the worker for a letter."""
    return {"cpu": asyncio.run(_send(checkout, home, store.url))}


async def _send(checkout: Path, home: Path, url: str) -> float:
    taken, arrived = 0, asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # a worker that is stopped hangs up
            await talk(reader, writer)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
            "PLUGINS": "notifications",  # starting what another version lacks is no cost of a letter
        }
        module = "bench.notifications.yamchi_letters"
        if await asyncio.to_thread(
            _run(checkout, home, url, "-m", module, "add", str(LETTERS), **settings).wait
        ):
            raise SystemExit(f"no letters could be added in {checkout}")
        worker = _run(checkout, home, url, "-m", module, "work", **settings)
        try:
            await reached(LETTERS // 5)
            began, seen = _cpu(worker), taken
            await reached(LETTERS)
            return (_cpu(worker) - began) / (LETTERS - seen) * 1e6
        finally:
            worker.terminate()
            await asyncio.to_thread(worker.wait)


# ── A start ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _start(checkout: Path, home: Path, store: Target) -> Cost:
    """Milliseconds for an application that does nothing."""
    began = getrusage(RUSAGE_CHILDREN)
    _run(checkout, home, store.url, "-c", "from yamchi import Yamchi; Yamchi()").wait()
    ended = getrusage(RUSAGE_CHILDREN)
    return {"cpu": (ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime) * 1e3}


Measure = Callable[[Path, Path, Target], Cost]
MEASURES: dict[str, Measure] = {
    "drain": _drain,
    "adds": _adds,
    "letters": _letters,
    "events": _events,
    "start": _start,
}
UNITS = {
    "drain": "µs a job",
    "adds": "µs a job",
    "letters": "µs a letter",
    "events": "µs an event",
    "start": "ms a start",
}


if __name__ == "__main__":
    main()
