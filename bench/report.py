"""What a run found, for people: a table, a line of progress, a page for the docs, and a picture (in `picture`)."""

import json
from collections.abc import Sequence
from pathlib import Path

from bench import held, readme
from bench.contenders import Entry, entries_of
from bench.measure import Figures
from bench.media import run as media
from bench.notifications import run as notifications
from bench.picture import picture
from bench.results import Results, SuiteResults

__all__ = ["in_brief", "picture", "publish", "table"]

COLUMNS = (
    ("add_single", "add/s", "{:,.0f}"),
    ("add_concurrent", "100 at once/s", "{:,.0f}"),
    ("add_bulk", "bulk add/s", "{:,.0f}"),
    ("drain", "drain/s", "{:,.0f}"),
    ("p50", "p50 ms", "{:.1f}"),
    ("p99", "p99 ms", "{:.1f}"),
    ("rss_idle", "idle MB", "{:.0f}"),
    ("rss_loaded", "loaded MB", "{:.0f}"),
    ("cpu_us", "CPU us/job", "{:.0f}"),
)
TITLES = {"embedded": "Embedded: SQLite", "redis": "Redis", "postgres": "PostgreSQL", "kafka": "Kafka"}


def in_brief(figures: Figures) -> str:
    wanted = [
        ("add_single", "add"),
        ("add_concurrent", "x100"),
        ("add_bulk", "bulk"),
        ("drain", "drain"),
        ("p50", "p50"),
    ]
    return "  ".join(f"{label} {value:,.1f}" if label == "p50" else f"{label} {value:,.0f}" for name, label in wanted if (value := figures.get(name)) is not None)  # fmt: skip


def table(suite: str, found: SuiteResults) -> str:
    """For a terminal."""
    rows = _rows(suite, found)
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(["", TITLES[suite], *lines, *_remarks(suite, found)])


def _rows(suite: str, found: SuiteResults) -> list[list[str]]:
    header = ["", *(label for _, label, _ in COLUMNS), "ours/theirs"]
    return [header, *(_row(entry, found) for entry in entries_of(suite) if entry.name in found.figures)]


def _row(entry: Entry, found: SuiteResults) -> list[str]:
    cells = [_cell(found.get(entry.name, name), form) for name, _, form in COLUMNS]
    ours, theirs = found.get("yamchi", "drain"), found.get(entry.name, "drain")
    return [entry.label, *cells, f"{ours / theirs:.2f}" if ours and theirs else "—"]


def _cell(value: float | None, form: str) -> str:
    return "—" if value is None else form.format(value)


def _remarks(suite: str, found: SuiteResults) -> list[str]:
    labels = {entry.name: entry.label for entry in entries_of(suite)}
    remarks = [
        f"  {entry.label}: {entry.note}"
        for entry in entries_of(suite)
        if entry.note and entry.name in found.figures
    ]
    remarks += [f"  {labels[name]}: — ({reason})" for name, reason in found.unable.items()]
    return remarks + _backlog(found.extra)


def _backlog(extra: Figures) -> list[str]:
    if not extra:
        return []
    return [
        f"  Yamchi with 1,000,000 jobs waiting claims {extra['claim_large']:,.0f}/s, with 10,000 {extra['claim_small']:,.0f}/s",
        f"  Yamchi's memory over 1,000,000 jobs: {extra['rss_first']:.0f} MB after a tenth, {extra['rss_last']:.0f} MB at the end",
    ]


# ── For the docs ──────────────────────────────────────────────────────────────────────────────────────────────────


def publish(results: Results, docs: Path) -> None:
    """docs/benchmarks.md, its pictures, the figures themselves and the README's. A suite that was not run keeps its figures."""
    (docs / "images").mkdir(parents=True, exist_ok=True)
    figures = docs / "images" / "bench.json"
    if figures.exists():
        results = results.over(Results.from_dict(json.loads(figures.read_text())))
    for suite, found in results.suites.items():
        (docs / "images" / f"bench-{suite}.svg").write_text(picture(suite, found))
    if results.media:
        (docs / "images" / "bench-media.svg").write_text(media.picture(results.media))
    figures.write_text(json.dumps(results.to_dict(), indent=2) + "\n")
    (docs / "benchmarks.md").write_text(_page(results))
    readme.write(results, docs.parent / "README.md")


def _page(results: Results) -> str:
    from bench.checks import all_checks

    machine = results.machine
    parts = [
        "# Benchmarks",
        'Written by `make bench ARGS="--publish"`, or suite by suite (`--suite redis`). Everybody ran on the same machine and servers, in turns, in one run: '
        "compare within a table, never with another machine's. A no-op job with about 200 bytes of JSON; one worker process each; "
        "medians. *ours/theirs* is the ratio of drain rates. Yamchi ran with everything on: leases and their renewal, "
        "validation by a pydantic model, retention of the last 100 jobs, events.",
        f"{machine['cores']} cores, {machine['system']}, Python {machine['python']}, {machine['date']}.",
    ]
    for suite, found in results.suites.items():
        parts += [
            f"## {TITLES[suite]}",
            f"![{TITLES[suite]}](images/bench-{suite}.svg)",
            _markdown(_rows(suite, found)),
        ]
        parts.append("\n".join(f"- {remark.strip()}" for remark in _remarks(suite, found)))
    if results.held:
        parts += ["## PostgreSQL beside open transactions", held.markdown(results.held)]
    if results.notifications:
        parts += [
            "## Letters and events",
            "Letters to Postfix's `smtp-sink` by as many processes as Celery starts; events to `POST /api/v1/events` and `/events/batch` "
            "by `wrk`, beside an endpoint that inserts one row, all with every commit on the disk.",
            notifications.markdown(results.notifications),
        ]
    if results.media:
        parts += [
            "## Pictures",
            "![Pictures](images/bench-media.svg)",
            "Yamchi's whole job: accepted, queued, worked on in a child process, hashed, flushed to the disk, noted; sharp in a script that "
            "does nothing else, with as many pictures in flight as the queue has, and as many more made than counted, so that no core "
            "waits for the last one. *one decode* has our effort for each size. Yamchi shrinks with the cubic kernel, sharp with its own default, Lanczos. Megabytes are the most that a process and its children "
            "had at once. Objects go to SeaweedFS.",
            media.markdown(results.media),
        ]
    checks = all_checks(results)
    parts += ["## Goals", "```\n" + "\n".join(str(check) for check in checks) + "\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join(["---", *["---:"] * (len(rows[0]) - 1)]) + "|", *lines[1:]])
