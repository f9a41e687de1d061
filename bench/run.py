"""`python -m bench.run`: measure, print a table, write JSON and a picture, and say which goals are met.

Contenders take turns within each repetition, so that what the machine does meanwhile hits all of them alike; the
figures are medians over the repetitions.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from bench import checks, held, report
from bench.backlog import measure_backlog
from bench.contenders import SUITES, Entry, entries_of
from bench.measure import FULL, QUICK, CannotRun, Figures, Sizes, measure_drain, measure_latency
from bench.media import run as media
from bench.notifications import run as notifications
from bench.results import Results, SuiteResults
from bench.stores import Fresh, store_of

HERE = Path(__file__).parent
REPETITIONS = {"quick": 3, "full": 5}


def main() -> int:
    options = _options()
    sizes, repetitions = (FULL, REPETITIONS["full"]) if options.full else (QUICK, REPETITIONS["quick"])
    repetitions = options.repetitions or repetitions
    suites = SUITES if options.suite == "all" else tuple({options.suite} & set(SUITES))
    results = Results(_machine(), options.full, {})
    _warn_of_load()
    for suite in suites:
        entries = _chosen(suite, options.only)
        if entries:
            results.suites[suite] = _run_suite(suite, entries, sizes, repetitions, options.backlog)
            print(report.table(suite, results.suites[suite]), flush=True)
    if options.suite in ("held", "all") and not options.only:
        results.held = _measure_held(repetitions, options.rounds)
    if options.suite in ("notifications", "all") and not options.only:
        results.notifications = notifications.measure(repetitions)
        print(notifications.table(results.notifications), flush=True)
    if options.suite in ("media", "all") and not options.only:
        results.media = media.measure(repetitions)
        print(media.table(results.media), flush=True)
    _write(results, options.publish)
    return 0 if checks.print_all(results) or not options.strict else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suite", choices=[*SUITES, "held", "notifications", "media", "all"], default="all")
    parser.add_argument("--only", help="these contenders only, by name: yamchi,huey_sqlite")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="less than ten minutes in all (the default)")
    size.add_argument("--full", action="store_true", help="more jobs, more repetitions")
    parser.add_argument("--repetitions", type=int, help="how often each contender is measured")
    parser.add_argument(
        "--rounds", type=int, default=held.ROUNDS, help="how many rounds the suite `held` runs"
    )
    parser.add_argument(
        "--no-backlog", dest="backlog", action="store_false", help="leave out the million jobs"
    )
    parser.add_argument(
        "--publish",
        action="store_true",
        help="write docs/benchmarks.md, its pictures and the table of the README",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal is missed")
    return parser.parse_args()


def _chosen(suite: str, only: str | None) -> list[Entry]:
    names = only.split(",") if only else None
    return [entry for entry in entries_of(suite) if names is None or entry.name in names]


def _warn_of_load() -> None:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 4:
        print(f"The machine is busy (load {load:.1f} on {cores} cores): ratios will be off.", file=sys.stderr)


# ── Measuring ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _run_suite(
    suite: str, entries: Sequence[Entry], sizes: Sizes, repetitions: int, backlog: bool
) -> SuiteResults:
    try:
        with store_of(suite) as fresh:
            found = _take_turns(suite, entries, fresh, sizes, repetitions)
            if suite == "embedded" and backlog and any(entry.role == "us" for entry in entries):
                found.extra = measure_backlog(fresh, lambda text: _say(suite, "backlog", text))
            return found
    except CannotRun as error:
        return SuiteResults({}, {entry.name: str(error).splitlines()[0] for entry in entries})


def _measure_held(repetitions: int, rounds: int) -> held.Rates:
    try:
        rates = held.measure(repetitions, rounds, lambda who, text: _say("held", who, text))
    except CannotRun as error:
        _say("held", "PostgreSQL", f"can't run: {error}")
        return {}
    print(held.table(rates), flush=True)
    return rates


def _take_turns(
    suite: str, entries: Sequence[Entry], fresh: Fresh, sizes: Sizes, repetitions: int
) -> SuiteResults:
    samples: dict[str, dict[str, list[float]]] = {entry.name: defaultdict(list) for entry in entries}
    unable: dict[str, str] = {}
    for repetition in range(repetitions):
        for entry in entries if repetition % 2 == 0 else entries[::-1]:
            if entry.name in unable:
                continue
            try:
                figures = measure_drain(entry, fresh(), sizes) | measure_latency(entry, fresh(), sizes)
            except CannotRun as error:
                unable[entry.name] = str(error)
                _say(suite, entry.label, f"can't run: {error}")
                continue
            for name, value in figures.items():
                if value is not None:
                    samples[entry.name][name].append(value)
            _say(suite, entry.label, f"{repetition + 1}/{repetitions}  {report.in_brief(figures)}")
    medians = {name: _medians(each) for name, each in samples.items() if name not in unable}
    return SuiteResults(medians, unable)


def _medians(samples: dict[str, list[float]]) -> Figures:
    return {name: statistics.median(values) for name, values in samples.items()}


def _say(suite: str, who: str, text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {suite:9} {who:22} {text}", file=sys.stderr, flush=True)


# ── Results ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _machine() -> dict[str, str]:
    return {
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "date": time.strftime("%Y-%m-%d"),
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def _write(results: Results, publish: bool) -> None:
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(results.to_dict(), indent=2) + "\n")
    for suite, found in results.suites.items():
        (folder / f"{suite}.svg").write_text(report.picture(suite, found))
    if results.media:
        (folder / "media.svg").write_text(media.picture(results.media))
    print(f"Figures and pictures: {folder.relative_to(HERE.parent)}/")
    if publish:
        report.publish(results, HERE.parent / "docs")


if __name__ == "__main__":
    sys.exit(main())
