"""The few rows of the README: who a reader would pick instead, on each store, between the two `bench` comments."""

import re
from pathlib import Path

from bench.contenders import Entry, entries_of
from bench.results import Results, SuiteResults

STORES = {"redis": "Redis", "embedded": "SQLite", "postgres": "PostgreSQL", "kafka": "Kafka"}
SHOWN = {
    "redis": ("yamchi", "bullmq_node", "dramatiq", "taskiq", "celery"),
    "embedded": ("yamchi", "huey_sqlite", "huey_sqlite_one", "raw_sqlite"),
    "postgres": ("yamchi", "procrastinate", "raw_pgmq"),
    "kafka": ("yamchi", "faststream", "raw_kafka"),
}
HEADER = """\
| on | | add/s | 100 adds at once/s | bulk add/s | drain/s | start p50 / p99 ms | idle MB |
|---|---|---|---|---|---|---|---|"""
_PLACE = re.compile(r"(?<=<!-- bench -->\n).*?(?=<!-- /bench -->)", re.DOTALL)


def write(results: Results, readme: Path) -> None:
    """Put the figures in their place."""
    text = readme.read_text("utf-8")
    readme.write_text(_PLACE.sub(lambda _: _section(results), text), "utf-8")


def _section(results: Results) -> str:
    rows = [
        _row(STORES[suite], entry, results.suites[suite])
        for suite in STORES
        if suite in results.suites
        for entry in entries_of(suite)
        if entry.name in SHOWN[suite]
    ]
    parts = [
        HEADER,
        *rows,
        "",
        'No-op jobs of about 200 bytes, one worker process, concurrency 100, 2 cores: `make bench ARGS="--publish"`. Compare the rows of',
        f"one store with one another, not with other machines. {_letters(results.notifications)}All contenders, and the goals:",
        "[docs/benchmarks.md](docs/benchmarks.md).",
    ]
    return "\n".join(parts) + "\n"


def _row(store: str, entry: Entry, found: SuiteResults) -> str:
    def cell(figure: str, form: str = "{:,.0f}") -> str:
        value = found.get(entry.name, figure)
        return "–" if value is None else form.format(value)

    name = (
        "Yamchi" if entry.role == "us" else entry.label.removesuffix(" (streams)").replace(" on SQLite", "")
    )
    rates = [cell(figure) for figure in ("add_single", "add_concurrent", "add_bulk", "drain")]
    start = f"{cell('p50', '{:.1f}')} / {cell('p99', '{:.1f}')}"
    limit = ", the limit" if entry.role == "limit" else ""
    return f"| {' | '.join([store, name + limit, *rates, start, cell('rss_idle')])} |"


def _letters(found: dict[str, float]) -> str:
    ours, theirs = found.get("letters: Yamchi on SQLite"), found.get("letters: Celery + smtplib")
    if not ours or not theirs:
        return ""
    return f"Letters to a sink: {ours:,.0f} a second, Celery with smtplib {theirs:,.0f}. "
