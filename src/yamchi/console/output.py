"""How results look: tables for people, JSON for programs, a bar for long work."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import orjson
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.segment import Segment, Segments
from rich.table import Column, Table
from rich.text import Text

from yamchi.clock import Millis, SystemClock, describe_span

PIPE_WIDTH = 200
"""Columns without a terminal: a table in a pipe or a file is not squeezed."""

NARROWEST = 24
"""What the last column of a table needs at least: it is somebody's data, or a sentence, and may be cut."""

GAP = 2
INDENT = 4

console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
STATE_STYLES = {
    "waiting": "yellow",
    "delayed": "blue",
    "active": "cyan",
    "completed": "green",
    "failed": "red",
    "cancelled": "dim",
    "expired": "dim",
}


def print_json(value: Any) -> None:
    """One JSON value on standard output, the same on a terminal and in a pipe."""
    print(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode())


def table(*columns: str, title: str | None = None, right: Iterable[str] = ()) -> Table:
    """An empty table in the style of all commands."""
    numbers = set(right)
    made = Table(
        title=title,
        title_justify="left",
        header_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, GAP, 0, 0),
    )
    for column in columns[:-1]:
        made.add_column(column, justify="right" if column in numbers else "left", no_wrap=True)
    for column in columns[-1:]:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return made


def print_table(made: Table) -> None:
    """Print a table. If the terminal is too narrow for its columns, each row takes several lines, and no id is cut."""
    parts = _parts(made)
    if len(parts) == 1:
        console.print(made)
    else:
        _print_interleaved(parts)


def _parts(made: Table) -> list[list[Column]]:
    """The columns, divided into the lines of a row: as many on each as fit. The last column may be cut to what is left."""
    lines: list[list[Column]] = [[]]
    room = console.width
    for column in made.columns:
        is_last = column is made.columns[-1]
        width = _width(column)
        needed = min(width, NARROWEST) if is_last else width
        if lines[-1] and needed > room:
            lines.append([])
            room = console.width - INDENT
        lines[-1].append(column)
        room -= width + GAP
    return lines


def _width(column: Column) -> int:
    return max(Text.from_markup(str(cell)).cell_len for cell in [column.header, *column.cells])


def _print_interleaved(parts: Sequence[Sequence[Column]]) -> None:
    printed = []
    for place, columns in enumerate(parts):
        indent = " " * INDENT if place else ""
        room = console.width - len(indent) - GAP * (len(columns) - 1)
        one = Table(header_style="bold", box=None, pad_edge=False, padding=(0, GAP, 0, 0))
        for column in columns:
            width = min(_width(column), room)
            one.add_column(column.header, justify=column.justify, no_wrap=True, width=width)
            room -= width
        for cells in zip(*(column.cells for column in columns), strict=True):
            one.add_row(*cells)
        printed.append([[Segment(indent), *line] for line in console.render_lines(one, pad=False)])
    for lines in zip(*printed, strict=True):
        for line in lines:
            if any(segment.text.strip() for segment in line):
                console.print(Segments([*line, Segment.line()]), end="")


def state(name: str) -> str:
    """A state in its color."""
    return f"[{STATE_STYLES.get(name, '')}]{name}[/]" if name in STATE_STYLES else escape(name)


def number(value: int, style: str = "") -> str:
    """A count: nothing is dim, something has its color."""
    if not value:
        return "[dim]0[/]"
    return f"[{style}]{value:,}[/]" if style else f"{value:,}"


def ago(moment: Millis | None) -> str:
    """How long ago, or in how long."""
    if moment is None:
        return "[dim]–[/]"
    passed = SystemClock().now() - moment
    return f"in {describe_span(-passed)}" if passed < 0 else f"{describe_span(passed)} ago"


def text(value: Any, longest: int = 80) -> str:
    """Somebody's data on one line, unable to color or break the table."""
    line = value if isinstance(value, str) else orjson.dumps(value).decode()
    line = "".join(char if char.isprintable() else " " for char in line)
    return escape(line if len(line) <= longest else f"{line[: longest - 1]}…")


def say(sentence: str) -> None:
    """Print what was done."""
    console.print(f"[green]✔[/] {sentence}", soft_wrap=True)


def answer(value: Any, sentence: str, *, as_json: bool) -> None:
    """Print what was done: a value for programs, or a sentence for people."""
    if as_json:
        print_json(value)
    else:
        say(sentence)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print one thing, a line for each field that is not empty."""
    shown = table("", "")
    for name, value in fields.items():
        if value not in (None, [], {}, ""):
            shown.add_row(f"[bold]{name}[/]", text(value, 4000))
    console.print(shown)


def paging(shown: Sequence[Any], total: int, page: int, size: int) -> None:
    """Print which page this was, if there are others, and how to see the next one."""
    if total > len(shown):
        more = f"; --page {page + 1} shows more" if page * size < total else ""
        console.print(f"[dim]page {page}: {len(shown)} of {total:,}{more}[/]")


@contextmanager
def progress(what: str, total: int | None) -> Any:
    """A bar on standard error, if that is a terminal. Call what it yields with the number of items just done."""
    where = Console(stderr=True)
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=where,
        disable=not where.is_terminal,
    )
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)
