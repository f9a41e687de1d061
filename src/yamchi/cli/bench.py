"""`yamchi bench`: how fast this machine and this engine are.

In Yamchi's repository, where `make bench` has installed the peers, it measures them too; elsewhere, or with `--quick`, `--jobs`
or `--json`, it is a small benchmark of its own on the engine that is configured.
"""

import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated

import structlog
import typer

from yamchi.app import Yamchi
from yamchi.console.loading import JsonOption, run_async, using
from yamchi.console.output import print_json, print_table, progress, table
from yamchi.queues.options import JobOptions
from yamchi.queues.probes import BATCH, drain_by_exchange
from yamchi.queues.queue import Queue
from yamchi.queues.records import NewJob, new_id

QUEUE = "_bench"
JOBS = 20_000
PEERS = Path(".venv-bench/bin/python")
"""In Yamchi's repository, once `make bench` has installed what it measures."""
OPTIONS = JobOptions(keep_completed=0)

log = structlog.get_logger("yamchi.bench")


@dataclass(frozen=True, slots=True)
class Speed:
    """Jobs per second of one kind of work."""

    work: str
    jobs: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds


def run(
    jobs: Annotated[
        int | None,
        typer.Option(
            min=100,
            max=1_000_000,
            help="How many jobs to add and drain, on our own engine; 20000 by default.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only our own engine, even in the repository.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure the engine that is configured: adding jobs one by one, in batches, and draining them.

    Example: [cyan]yamchi bench --jobs 100000[/] · [cyan]QUEUE_URL=memory:// yamchi bench[/]
    """
    if jobs is None and not quick and not as_json and PEERS.exists():
        raise typer.Exit(subprocess.run([PEERS, "-m", "bench.run"], check=False).returncode)
    app = Yamchi()
    app.define(QUEUE)
    queue = app.queue(QUEUE)
    speeds = run_async(using(app, _measure(queue, app, jobs or JOBS)))
    if as_json:
        print_json([{**asdict(speed), "rate": round(speed.rate), "engine": queue.type} for speed in speeds])
    else:
        _print(queue, speeds)


async def _measure(queue: Queue, app: Yamchi, jobs: int) -> list[Speed]:
    singles = max(jobs // 20, 1)
    one_by_one = await _add(queue, app, singles, 1)
    in_batches = await _add(queue, app, jobs - singles, BATCH)
    drained = await _drain(queue, app, jobs)
    return [
        Speed("add one by one", singles, one_by_one),
        Speed(f"add {BATCH} at once", jobs - singles, in_batches),
        Speed("drain", jobs, drained),
    ]


async def _add(queue: Queue, app: Yamchi, jobs: int, batch: int) -> float:
    began = perf_counter()
    with progress(f"Adding {'one by one' if batch == 1 else 'in batches'}", jobs) as advance:
        for start in range(0, jobs, batch):
            size = min(batch, jobs - start)
            await queue.add_prepared([_job(app) for _ in range(size)])
            advance(size)
    return perf_counter() - began


def _job(app: Yamchi) -> NewJob:
    return NewJob(new_id(app.clock.now()), "nothing", b"{}", OPTIONS)


async def _drain(queue: Queue, app: Yamchi, jobs: int) -> float:
    began = perf_counter()
    with progress("Draining", jobs) as advance:
        await drain_by_exchange(queue, jobs, app.clock, advance)
    return perf_counter() - began


def _print(queue: Queue, speeds: list[Speed]) -> None:
    shown = table(queue.type, "jobs", "jobs/s", right=["jobs", "jobs/s"])
    for speed in speeds:
        shown.add_row(speed.work, f"{speed.jobs:,}", f"{speed.rate:,.0f}")
    print_table(shown)
