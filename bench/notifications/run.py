"""`python -m bench.notifications.run [letters|intake|all]`: measure in turns, print figures and which goals are met.

Each figure is the median of the repetitions; contenders take turns within each.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.checks import Check
from bench.measure import ROOT
from bench.notifications.intake import measure_intake
from bench.notifications.sink import running_sink, source
from bench.stores import store_of

REPETITIONS = int(os.environ.get("BENCH_REPETITIONS", "3"))
LETTERS = {"smtp-source": 10_000, "Yamchi on SQLite": 6_000, "Yamchi on Redis": 6_000, "Celery": 1_000}
WORKERS = os.cpu_count() or 1
"""As many as Celery starts of its own."""

Rates = dict[str, float]


def main(what: str = "all") -> None:
    print(f"load {os.getloadavg()[0]:.1f}")
    checks: list[Check] = []
    if what in ("letters", "all"):
        checks += _letter_checks(_medians(_measure_letters))
    if what in ("intake", "all"):
        checks += _intake_checks(_medians(measure_intake))
    print(f"\nGoals, as ratios within this run (load {os.getloadavg()[0]:.1f})", *checks, sep="\n")


def _medians(measure: Callable[[Path], Rates]) -> Rates:
    samples: dict[str, list[float]] = defaultdict(list)
    # Beside the project, not in /tmp, which may be memory: a commit must reach a disk.
    for _ in range(REPETITIONS):
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT) as folder:
            for name, rate in measure(Path(folder)).items():
                samples[name].append(rate)
                print(f"  {name:28} {rate:>10,.0f}/s", flush=True)
    return {name: statistics.median(rates) for name, rates in samples.items()}


def _letter_checks(rates: Mapping[str, float]) -> list[Check]:
    celery = rates.get("Celery")
    ours = [name for name in LETTERS if name.startswith("Yamchi")]
    return [Check(f"Letters: {name} / Celery + smtplib", rates.get(name), celery, 5) for name in ours]


def _intake_checks(rates: Mapping[str, float]) -> list[Check]:
    bare = rates.get("bare endpoint")
    return [
        Check("Events: one a call / a bare endpoint's rows", rates.get("events, one a call"), bare, 0.5),
        Check("Events: 500 a call / a bare endpoint's rows", rates.get("events, 500 a call"), bare, 5),
    ]


# ── Letters ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _measure_letters(folder: Path) -> Rates:
    with store_of("redis") as fresh:
        redis = fresh().url
        rates = {
            "Celery": _send(folder / "c", "celery_letters", "Celery", {"BENCH_URL": redis}),
            "Yamchi on Redis": _send(folder / "r", "yamchi_letters", "Yamchi on Redis", {"QUEUE_URL": redis}),
        }
    own = {"QUEUE_URL": "sqlite:///var/jobs.db"}
    rates["Yamchi on SQLite"] = _send(folder / "s", "yamchi_letters", "Yamchi on SQLite", own)
    return rates | {"smtp-source": _limit(folder)}


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
    letters = LETTERS["smtp-source"]
    with running_sink(folder) as sink:
        process = source(sink.port, letters)
        try:
            return sink.rate(letters, lambda: True)
        finally:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
