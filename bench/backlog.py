"""Two questions about a million jobs on SQLite: does a long backlog slow the worker, does its memory grow?

Nobody waits for the whole drain twice: the claim rate is that of the first jobs taken from the backlog.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from bench.contenders import ENTRIES
from bench.hits import Hits
from bench.measure import ROOT, Figures, Target, Worker, environment_of

YAMCHI = next(entry for entry in ENTRIES if entry.suite == "embedded" and entry.role == "us")
SMALL, LARGE = 10_000, 1_000_000
FILL_SECONDS = 300


def measure_backlog(fresh: Callable[[], Target], say: Callable[[str], None]) -> Figures:
    """Claim rate with a small and a large backlog, in turns, and the worker's memory over the large one."""
    figures: Figures = {}
    small, large = [], fresh()
    say(f"adding {LARGE:,} jobs")
    _fill(large, LARGE)
    for _ in range(3):
        target = fresh()
        _fill(target, SMALL)
        with Worker(YAMCHI, target) as worker:
            worker.await_hits(SMALL, 60)
            small.append(Hits.read(worker.hits_file).rate())
    say("draining from the large backlog")
    with Worker(YAMCHI, large) as worker:
        worker.await_hits(3 * SMALL, 60)
        early = Hits.read(worker.hits_file)
        parts = [slice(start, start + SMALL) for start in range(0, 3 * SMALL, SMALL)]
        rates = [Hits(early.times[part], early.latencies[part]).rate() for part in parts]
        figures["claim_large"] = statistics.median(rates)
        figures["claim_small"] = statistics.median(small)
        figures |= _watch_memory(worker, say)
    return figures


def _watch_memory(worker: Worker, say: Callable[[str], None]) -> Figures:
    """RSS after each tenth of the jobs, the whole backlog through."""
    samples = []
    began = time.monotonic()
    for tenth in range(1, 11):
        worker.await_hits(LARGE // 10 * tenth, FILL_SECONDS)
        samples.append(worker.rss())
        say(f"{tenth * 10} % of {LARGE:,} jobs, RSS {samples[-1]:.0f} MB")
    rate = LARGE / (time.monotonic() - began)
    return {"rss_first": samples[0], "rss_last": samples[-1], "rss_peak": max(samples), "drain_large": rate}


def _fill(target: Target, jobs: int) -> None:
    command = [sys.executable, "-m", "bench.drive", "yamchi", "add", json.dumps({"bulk": jobs})]
    subprocess.run(
        command,
        cwd=ROOT,
        env=environment_of(target),
        check=True,
        timeout=FILL_SECONDS,
        stdout=subprocess.DEVNULL,
    )
