"""Measures one contender once, in processes of its own: adds, drain, latency, memory and CPU of its worker.

A contender that can't run raises `CannotRun` with the reason; the others go on.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.contenders import Entry
from bench.hits import Hits, count_hits, make_file

ROOT = Path(__file__).parents[1]
START_SECONDS = 30
DRAIN_SECONDS = 90
STOP_SECONDS = 3
POLL = 0.02
HOME = tempfile.TemporaryDirectory(prefix="yamchi-bench-home-")
"""Yamchi's folder, empty, so that no settings of the project are read."""

Figures = dict[str, float | None]


class CannotRun(Exception):
    """One line that says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """An empty store for one measurement."""

    url: str
    queue: str


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many jobs of each kind."""

    scale: float
    single: int
    concurrent: int
    latency: int


QUICK = Sizes(scale=1, single=2_000, concurrent=5_000, latency=300)
FULL = Sizes(scale=2, single=4_000, concurrent=10_000, latency=1_000)


# ── The two runs ──────────────────────────────────────────────────────────────────────────────────────────────────


def measure_drain(entry: Entry, target: Target, sizes: Sizes) -> Figures:
    """Add jobs in the three ways, then let a worker empty the queue."""
    jobs = int(entry.jobs * sizes.scale)
    single = min(sizes.single, jobs // 4)
    concurrent = min(sizes.concurrent, jobs // 4)
    plan = {"warm": 50, "single": single, "concurrent": concurrent, "bulk": jobs - single - concurrent}
    figures = add(entry, target, plan)
    total = jobs + plan["warm"]
    with Worker(entry, target) as worker:
        worker.await_hits(total // 10, START_SECONDS)
        cpu, seen = worker.cpu(), worker.hits()
        worker.await_hits(total, DRAIN_SECONDS)
        cpu, seen = worker.cpu() - cpu, worker.hits() - seen
        figures["drain"] = Hits.read(worker.hits_file).rate()
        figures["rss_loaded"] = worker.rss()
        figures["cpu_us"] = cpu / seen * 1e6 if seen else None
    return figures


def measure_latency(entry: Entry, target: Target, sizes: Sizes) -> Figures:
    """From the call that adds a job to the first line of its handler, with an idle worker and jobs 5 ms apart."""
    warm = 20
    add(entry, target, {"warm": warm})
    with Worker(entry, target) as worker:
        worker.await_hits(warm, START_SECONDS)
        time.sleep(1)
        figures: Figures = {"rss_idle": worker.rss()}
        if entry.measures_latency:
            add(entry, target, {"paced": sizes.latency})
            worker.await_hits(warm + sizes.latency, DRAIN_SECONDS)
            latencies = sorted(Hits.read(worker.hits_file).latencies[warm:])
            figures["p50"] = latencies[len(latencies) // 2] * 1000
            figures["p99"] = latencies[int(len(latencies) * 0.99)] * 1000
    return figures


# ── Processes ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Worker:
    """A contender's worker, with what it notes and uses."""

    def __init__(self, entry: Entry, target: Target) -> None:
        self._entry = entry
        self._target = target
        self._folder = tempfile.TemporaryDirectory(prefix="yamchi-bench-")
        self.hits_file = Path(self._folder.name) / "hits"
        self._log = Path(self._folder.name) / "log"

    def __enter__(self) -> "Worker":
        make_file(self.hits_file)
        environment = environment_of(self._target) | {
            "BENCH_HITS": str(self.hits_file),
            "BENCH_THREADS": str(self._entry.threads),
            "BENCH_TUNED": "1" if self._entry.tuned else "",
        }
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*_command(self._entry), "work"],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        members = self._tree()
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        for member in members:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        self._process.wait()
        self._folder.cleanup()

    def hits(self) -> int:
        return count_hits(self.hits_file)

    def await_hits(self, jobs: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (seen := self.hits()) < jobs:
            if self._process.poll() is not None:
                raise CannotRun(f"its worker ended: {_last_line(self._log.read_text())}")
            if time.monotonic() > deadline:
                raise CannotRun(
                    f"{seen:,} of {jobs:,} jobs ran in {seconds:.0f} s: {_last_line(self._log.read_text())}"
                )
            time.sleep(POLL)

    def rss(self) -> float:
        """Megabytes of the worker and its children."""
        return sum(self._each(lambda member: member.memory_info().rss)) / 1e6

    def cpu(self) -> float:
        """Seconds of CPU of the worker and its children so far."""
        return sum(self._each(lambda member: sum(member.cpu_times()[:2])))

    def _each(self, read) -> Iterator[float]:  # type: ignore[no-untyped-def]
        for member in self._tree():
            with suppress(psutil.NoSuchProcess):
                yield read(member)

    def _tree(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def add(entry: Entry, target: Target, plan: Mapping[str, int]) -> Figures:
    command = [*_command(entry), "add", json.dumps(plan)]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment_of(target),
            capture_output=True,
            text=True,
            timeout=DRAIN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CannotRun(f"adding {sum(plan.values()):,} jobs took more than {DRAIN_SECONDS} s") from None
    if done.returncode:
        raise CannotRun(f"adding failed: {_last_line(done.stderr or done.stdout)}")
    rates = json.loads(done.stdout.splitlines()[-1])
    return {f"add_{way}": rate for way, rate in rates.items() if way not in ("warm", "paced")}


def _command(entry: Entry) -> list[str]:
    if entry.runtime == "node":
        return ["node", str(ROOT / "bench" / "node" / f"{entry.name}.js")]
    python = sys.executable if entry.runtime == "python" else str(ROOT / ".venv-bench-arq/bin/python")
    return [python, "-m", "bench.drive", entry.module or entry.name]


def environment_of(target: Target) -> dict[str, str]:
    return os.environ | {
        "BENCH_URL": target.url,
        "BENCH_QUEUE": target.queue,
        "LOG_LEVEL": "warning",
        "YAMCHI_HOME": HOME.name,
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"
