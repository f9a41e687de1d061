"""What things cost here and in another checkout with its own .venv, in turns: what is measured is ours, servers are shared.

`python -m bench.before ../yamchi-before --turns 9`: events, letters and a start on the embedded default. With
`--what drain,adds,letters --engines memory,sqlite,redis,pgmq,kafka` the same on every engine. The ratio is the median of those of
the turns, of the CPU of our own process (a busy machine matters little) and, for drain and adds, of time; that of the best turns
says more where the machine's own speed changes. `--instructions` counts those of drain, adds and letters by valgrind instead: slow,
but one turn is enough on any machine.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Self

import psutil
from tests.services.server import free_port

from bench import instructions
from bench.measure import ROOT, Target
from bench.notifications.events import await_answer
from bench.notifications.letters import user_of
from bench.stores import Fresh, store_of

EVENTS, CONNECTIONS = 3_000, 16
LETTERS = 6_000  # a process is told its CPU by hundredths of a second
JOBS = 40_000  # so many that a worker's start, which is measured by itself, does not matter
COUNTED_JOBS, COUNTED_LETTERS = (1_000, 6_000), (300, 1_500)
ALLOWED = 1.03
TIMEOUT_SECONDS = 120.0
SLOW_TIMEOUT_SECONDS = 1_200.0
"""Under valgrind."""
STORES = {"sqlite": "embedded", "redis": "redis", "pgmq": "postgres", "kafka": "kafka"}
ON_ENGINES = ("drain", "adds", "letters")

Cost = dict[str, float]
"""For one event, letter, job or start, by unit: of CPU, and of time where that says something."""


def main() -> None:
    options = _options()
    checkouts = {"before": options.checkout.resolve(), "now": ROOT}
    measures = COUNTED if options.instructions else MEASURES
    names = options.what.split(",")
    if unknown := [name for name in names if name not in measures]:
        raise SystemExit(f"Not measured: {', '.join(unknown)}. Give some of {', '.join(measures)} as --what.")
    for engine in options.engines.split(","):
        with _store(engine) as fresh:
            for name in names:
                if name in ON_ENGINES and (name, engine) != ("letters", "memory"):
                    _compare(f"{name} {engine}", UNITS[name], measures[name], checkouts, options.turns, fresh)
    with _store("sqlite") as fresh:
        for name in names:
            if name not in ON_ENGINES:
                _compare(name, UNITS[name], measures[name], checkouts, options.turns, fresh)


def _compare(
    name: str, unit: str, measure: "Measure", checkouts: dict[str, Path], turns: int, fresh: Fresh
) -> None:
    samples: dict[str, list[Cost]] = defaultdict(list)
    for turn in range(turns):
        for which in sorted(checkouts, reverse=turn % 2 == 1):
            with tempfile.TemporaryDirectory(prefix="yamchi-before-") as folder:
                samples[which].append(measure(checkouts[which], Path(folder), fresh))
    for kind in samples["now"][0]:
        before, now = ([one[kind] for one in samples[which]] for which in ("before", "now"))
        ratio = statistics.median(later / earlier for later, earlier in zip(now, before, strict=True))
        best = min(now) / min(before)
        verdict = "ok" if ratio <= ALLOWED else f"more than {ALLOWED:g}"
        print(
            f"{name:16} {kind:12} before {statistics.median(before):10,.1f}   now {statistics.median(now):10,.1f}   "
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
    parser.add_argument(
        "--instructions",
        action="store_true",
        help="count instructions by valgrind, of drain, adds and letters",
    )
    return parser.parse_args()


def _run(
    checkout: Path,
    home: Path,
    url: str,
    *command: str,
    stdout: int = subprocess.DEVNULL,
    within: Sequence[str] = (),
    **settings: str,
) -> "subprocess.Popen[bytes]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"YAMCHI_HOME": str(home), "LOG_LEVEL": "error", "QUEUE_URL": url, "QUEUE_FALLBACK": "off"}
    environment |= {"PYTHONPATH": str(checkout), **settings}
    python = checkout / ".venv/bin/python"
    return subprocess.Popen([*within, python, *command], cwd=checkout, env=environment, stdout=stdout)


def _cpu(process: "subprocess.Popen[bytes]") -> float:
    return sum(psutil.Process(process.pid).cpu_times()[:2])


# ── Jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _work(what: str, checkout: Path, home: Path, fresh: Fresh) -> Cost:
    """Microseconds of a process that adds jobs, or of its worker, for each of them."""
    figures: Cost = json.loads(
        _told(what, checkout, home, fresh(), JOBS).splitlines()[-1]
    )  # log lines come first
    return figures


def _told(
    what: str, checkout: Path, home: Path, store: Target, jobs: int, within: Sequence[str] = ()
) -> bytes:
    arguments = ("-P", str(Path(__file__).with_name("workload.py")), what, str(jobs), store.queue)
    with _run(checkout, home, store.url, *arguments, stdout=subprocess.PIPE, within=within) as process:
        said, _ = process.communicate(timeout=SLOW_TIMEOUT_SECONDS if within else TIMEOUT_SECONDS)
    if process.returncode:
        raise SystemExit(f"{what} failed in {checkout}")
    return said


def _counted_work(what: str, checkout: Path, home: Path, fresh: Fresh) -> Cost:
    """Instructions for a job, the adding of those that a worker drains included."""

    _told(what, checkout, home, fresh(), COUNTED_JOBS[0])  # what is compiled once is not counted

    def count(jobs: int) -> int:
        log = home / "instructions"
        _told(what, checkout, home, fresh(), jobs, instructions.counting(log))
        return instructions.counted(log)

    return {"instructions": instructions.for_each(count, *COUNTED_JOBS)}


# ── Events ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _events(checkout: Path, home: Path, fresh: Fresh) -> Cost:
    """Microseconds of the server for an event, one a call."""
    port = free_port()
    server = _run(checkout, home, fresh().url, "-m", "yamchi", "api", "--port", str(port))
    try:
        await_answer(server, f"http://127.0.0.1:{port}")
        asyncio.run(_post(port, EVENTS // 5))
        began = _cpu(server)
        asyncio.run(_post(port, EVENTS))
        return {"µs of CPU": (_cpu(server) - began) / EVENTS * 1e6}
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


def _letters(checkout: Path, home: Path, fresh: Fresh) -> Cost:
    """Microseconds of the worker for a letter."""
    return {"µs of CPU": asyncio.run(_send(checkout, home, fresh(), LETTERS))}


def _counted_letters(checkout: Path, home: Path, fresh: Fresh) -> Cost:
    """Instructions of the worker for a letter."""

    asyncio.run(_send(checkout, home / "compiling", fresh(), COUNTED_LETTERS[0]))  # once, not counted

    def count(letters: int) -> int:
        log, folder = home / "instructions", home / str(letters)
        asyncio.run(_send(checkout, folder, fresh(), letters, instructions.counting(log)))
        return instructions.counted(log)

    return {"instructions": instructions.for_each(count, *COUNTED_LETTERS)}


async def _send(checkout: Path, home: Path, store: Target, letters: int, within: Sequence[str] = ()) -> float:
    """Microseconds of CPU of the worker for a letter, once it has sent the first ones."""
    url = _url_for_letters(store)
    async with Sink() as sink:
        settings = {
            "SMTP_HOST": "127.0.0.1",
            "SMTP_PORT": str(sink.port),
            "SMTP_SECURITY": "none",
            "CONCURRENCY_NOTIFICATIONS": "100",
            "PLUGINS": "notifications",  # starting what another version lacks is no cost of a letter
        }
        module = "bench.notifications.yamchi_letters"
        adding = _run(checkout, home, url, "-m", module, "add", str(letters), **settings)
        if await asyncio.to_thread(adding.wait):
            raise SystemExit(f"no letters could be added in {checkout}")
        worker = _run(checkout, home, url, "-m", module, "work", within=within, **settings)
        try:
            async with asyncio.timeout(SLOW_TIMEOUT_SECONDS if within else TIMEOUT_SECONDS):
                await sink.reached(letters // 5)
                began, seen = _cpu(worker), sink.taken
                await sink.reached(letters)
            return (_cpu(worker) - began) / (letters - seen) * 1e6
        finally:
            worker.terminate()
            await asyncio.to_thread(worker.wait)


def _url_for_letters(store: Target) -> str:
    """On Kafka with a topic and a group of their own, or what the run before left would be read again."""
    if not store.url.startswith("kafka:"):
        return store.url
    return f"{store.url}?group={store.queue}&topic.notifications={store.queue}"


class Sink:
    """An SMTP server that takes everything and keeps nothing."""

    def __init__(self) -> None:
        self.taken = 0
        self._arrived = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def reached(self, letters: int) -> None:
        while self.taken < letters:
            self._arrived.clear()
            await self._arrived.wait()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # a worker that is stopped hangs up
            await self._talk(reader, writer)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 sink\r\n")
        while line := await reader.readline():
            match line[:4].upper().strip():
                case b"EHLO":
                    writer.write(b"250-sink\r\n250 PIPELINING\r\n")
                case b"DATA":
                    writer.write(b"354 go on\r\n")
                    await reader.readuntil(b"\r\n.\r\n")
                    self.taken += 1
                    self._arrived.set()
                    writer.write(b"250 taken\r\n")
                case b"QUIT":
                    writer.write(b"221 bye\r\n")
                    break
                case _:
                    writer.write(b"250 ok\r\n")
        writer.close()


# ── A start ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _start(checkout: Path, home: Path, fresh: Fresh) -> Cost:
    """Milliseconds for an application that does nothing."""
    began = getrusage(RUSAGE_CHILDREN)
    _run(checkout, home, fresh().url, "-c", "from yamchi import Yamchi; Yamchi()").wait()
    ended = getrusage(RUSAGE_CHILDREN)
    return {"ms of CPU": (ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime) * 1e3}


Measure = Callable[[Path, Path, Fresh], Cost]
MEASURES: dict[str, Measure] = {
    "drain": partial(_work, "drain"),
    "adds": partial(_work, "adds"),
    "letters": _letters,
    "events": _events,
    "start": _start,
}
COUNTED: dict[str, Measure] = {
    "drain": partial(_counted_work, "drain"),
    "adds": partial(_counted_work, "adds"),
    "letters": _counted_letters,
}
UNITS = {"drain": "a job", "adds": "a job", "letters": "a letter", "events": "an event", "start": "a start"}


if __name__ == "__main__":
    main()
