"""Letters and events, measured in turns beside what people write by hand; the figures are medians.

`python -m bench.run --suite notifications`, or this module alone: `python -m bench.notifications.run [letters|events]`.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from bench.checks import Check
from bench.measure import ROOT
from bench.notifications.events import BARE, BATCH, SINGLE, measure_events
from bench.notifications.sink import running_sink, source
from bench.stores import store_of

CELERY, LIMIT = "letters: Celery + smtplib", "letters: smtp-source, the limit"
OURS = ("letters: Yamchi on SQLite", "letters: Yamchi on Redis")
LETTERS = {CELERY: 1_000, **dict.fromkeys(OURS, 6_000), LIMIT: 10_000}
NAMES = (*OURS, CELERY, LIMIT, SINGLE, BATCH, BARE)
WORKERS = os.cpu_count() or 1
"""As many as Celery starts of its own."""

Rates = dict[str, float]


def main(what: str = "all") -> None:
    rates = measure(3, what)
    print(table(rates), "", *checks(rates), sep="\n")


def measure(repetitions: int, what: str = "all") -> Rates:
    """Letters or events a second, by who took or sent them."""
    wanted = [
        one for name, one in (("letters", _letters), ("events", measure_events)) if what in (name, "all")
    ]
    samples: dict[str, list[float]] = defaultdict(list)
    for _ in range(repetitions):
        # Beside the project, not in /tmp, which may be memory: a commit must reach a disk.
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT) as folder:
            for one in wanted:
                for name, rate in one(Path(folder)).items():
                    samples[name].append(rate)
                    print(
                        f"{time.strftime('%H:%M:%S')}  {name:32} {rate:>10,.0f}/s",
                        file=sys.stderr,
                        flush=True,
                    )
    return {name: statistics.median(rates) for name, rates in samples.items()}


def table(rates: Mapping[str, float]) -> str:
    lines = [f"{name:32} {rates[name]:>10,.0f}/s" for name in NAMES if name in rates]
    return "\n".join(["", "Letters and events", *lines])


def markdown(rates: Mapping[str, float]) -> str:
    lines = [f"| {name} | {rates[name]:,.0f} |" for name in NAMES if name in rates]
    return "\n".join(["| | a second |", "|---|---:|", *lines])


def checks(rates: Mapping[str, float]) -> list[Check]:
    celery, bare = rates.get(CELERY), rates.get(BARE)
    ours = [Check(f"{name} / {CELERY}", rates.get(name), celery, 5) for name in OURS]
    return [
        *ours,
        Check(f"{SINGLE} / {BARE}", rates.get(SINGLE), bare, 0.5),
        Check(f"{BATCH} / {BARE}", rates.get(BATCH), bare, 5),
    ]


# ── Letters ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _letters(folder: Path) -> Rates:
    on_sqlite, on_redis = OURS
    with store_of("redis") as fresh:
        redis = fresh().url
        rates = {
            CELERY: _send(folder / "c", "celery_letters", CELERY, {"BENCH_URL": redis}),
            on_redis: _send(folder / "r", "yamchi_letters", on_redis, {"QUEUE_URL": redis}),
        }
    own = {"QUEUE_URL": "sqlite:///var/jobs.db"}
    rates[on_sqlite] = _send(folder / "s", "yamchi_letters", on_sqlite, own)
    return rates | {LIMIT: _limit(folder)}


def _send(home: Path, module: str, contender: str, settings: Mapping[str, str]) -> float:
    home.mkdir()
    letters = LETTERS[contender]
    with running_sink(home) as sink:
        environment = {**os.environ, **_environment(home, sink.port), **settings}
        command = [sys.executable, "-m", f"bench.notifications.{module}"]
        subprocess.run([*command, "add", str(letters)], cwd=ROOT, env=environment, check=True)
        processes = WORKERS if module == "yamchi_letters" else 1
        workers = [subprocess.Popen([*command, "work"], cwd=ROOT, env=environment) for _ in range(processes)]
        try:
            return sink.rate(letters, lambda: all(worker.poll() is None for worker in workers))
        finally:
            for worker in workers:
                worker.terminate()
                worker.wait()


def _environment(home: Path, port: int) -> dict[str, str]:
    return {
        "YAMCHI_HOME": str(home),
        "SMTP_HOST": "127.0.0.1",
        "SMTP_PORT": str(port),
        "SMTP_SECURITY": "none",
        "BENCH_SMTP_PORT": str(port),
        "QUEUE_FALLBACK": "off",
        "CONCURRENCY_NOTIFICATIONS": "100",
        "LOG_LEVEL": "warning",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }


def _limit(folder: Path) -> float:
    letters = LETTERS[LIMIT]
    with running_sink(folder) as sink:
        process = source(sink.port, letters)
        try:
            return sink.rate(letters, lambda: True)
        finally:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
