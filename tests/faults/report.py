"""The table of faults: gathered from every test process, printed when the run ends, kept for the documentation.

    FAULTS=full pytest tests/faults
    python -m tests.faults.report docs/operations.md

The second command puts the table of the last run between the two `faults` comments of a page.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

CACHE = "yamchi/faults"
CACHE_FILE = Path(__file__).parents[2] / ".pytest_cache" / "v" / CACHE
COLUMNS = {
    "fault": "fault",
    "engine": "engine",
    "jobs": "jobs",
    "runs": "runs",
    "kills": "kills",
    "in_flight": "in flight",
    "duplicates": "duplicates",
    "lost": "lost",
    "seconds": "seconds",
}

rows_key = pytest.StashKey[list[dict[str, Any]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[rows_key] = []
    config.pluginmanager.register(Gatherer(config), "faults-gatherer")


class Gatherer:
    """Takes the rows out of test reports: those reach the first process from wherever the test ran."""

    def __init__(self, config: pytest.Config) -> None:
        self._rows = config.stash[rows_key]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._rows.extend(dict(value) for name, value in report.user_properties if name == "fault")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    rows = config.stash[rows_key]
    if not rows:
        return
    rows.sort(key=lambda row: (row["fault"], row["engine"]))
    if config.pluginmanager.hasplugin("cacheprovider"):
        config.cache.set(CACHE, rows)
    terminalreporter.section("faults")
    terminalreporter.write_line(as_table(rows))


def as_table(rows: list[dict[str, Any]]) -> str:
    """Markdown, aligned so that it can be read as it is."""
    lines = [list(COLUMNS.values()), *([_cell(row[key]) for key in COLUMNS] for row in rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(COLUMNS))]
    padded = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([padded[0], rule, *padded[1:]])


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def publish(page: Path) -> None:
    """Put the table of the last run into a page."""
    table = as_table(json.loads(CACHE_FILE.read_text()))
    text, found = re.subn(
        r"(<!-- faults -->\n).*?(<!-- /faults -->)",
        lambda mark: f"{mark[1]}{table}\n{mark[2]}",
        page.read_text(),
        flags=re.DOTALL,
    )
    if not found:
        sys.exit(f"{page} has no <!-- faults --> … <!-- /faults --> to put the table between.")
    page.write_text(text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Name the page: python -m tests.faults.report docs/operations.md")
    publish(Path(sys.argv[1]))
