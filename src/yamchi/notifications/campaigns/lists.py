"""People by CSV, read row by row: a broken row is named by its number, as a spreadsheet shows it, and the rest is taken.

A column `user_id` or `email` says who; `phone`, `telegram_id`, `locale` and `timezone` describe a person who is not known
yet. Every other column is data for that person's message, so that each may get a code of their own.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import TextIOBase
from typing import Any, Self
from uuid import UUID

from yamchi.errors import InvalidJob
from yamchi.fields import lower_domain

WHO = ("user_id", "email")
ABOUT = ("phone", "telegram_id", "locale", "timezone")
DELIMITERS = (",", ";", "\t")
LONGEST_ROW = 65_536
"""Characters: what is beside the person's id goes into a message."""

MAX_ERRORS_SHOWN = 100
"""So many broken rows are named; all are counted."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row that names a person."""

    row: int
    user_id: str | None
    email: str | None
    about: dict[str, str]
    data: dict[str, str] | None


@dataclass(frozen=True, slots=True)
class Broken:
    """A row that can't be used, and why."""

    row: int
    error: str


@dataclass(slots=True)
class Report:
    """What became of the rows of a list."""

    rows: int = 0
    people: int = 0
    twice: int = 0
    broken_rows: int = 0
    broken: list[Broken] = field(default_factory=list)

    def refuse(self, broken: Broken) -> None:
        self.broken_rows += 1
        if len(self.broken) < MAX_ERRORS_SHOWN:
            self.broken.append(broken)

    def shown(self) -> dict[str, Any]:
        named = [{"row": one.row, "error": one.error} for one in self.broken]
        counts = {name: getattr(self, name) for name in ("rows", "people", "twice", "broken_rows")}
        return {**counts, "broken": named}


def read_list(lines: Iterable[str]) -> Iterator[Entry | Broken]:
    """Each row of a table whose first row names the columns. Undecodable bytes come as surrogates."""
    source = _Lines(lines)
    try:
        heading = next(source, "").removeprefix("\ufeff")
    except csv.Error as error:
        raise InvalidJob(f"The first row of the CSV can't be read: {error}.") from error
    delimiter = max(DELIMITERS, key=heading.count)
    columns = _columns(heading, delimiter)
    reader = csv.reader(source, delimiter=delimiter)
    number = 1
    while True:
        number += 1
        source.begin_row()
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield Broken(number, f"it can't be read: {error}")
            continue
        if cells is None:
            return
        if any(cell.strip() for cell in cells):
            yield _read(number, columns, cells)


class _Lines:
    """The lines of a list, of which no row may be longer than is good for the memory: the rest of it is passed over."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._readline = lines.readline if isinstance(lines, TextIOBase) else _reading(iter(lines))
        self._taken = 0

    def begin_row(self) -> None:
        """A row within quotes may have many lines."""
        self._taken = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        line = self._readline(LONGEST_ROW + 1)
        if not line:
            raise StopIteration
        self._taken += len(line)
        if self._taken > LONGEST_ROW:
            while line and not line.endswith(("\n", "\r")):
                line = self._readline(LONGEST_ROW)
            raise csv.Error(f"it is longer than the {LONGEST_ROW:,} characters allowed")
        return line


def _reading(lines: Iterator[str]) -> Callable[[int], str]:
    """Lines of a list in memory, given out as a file gives them."""
    return lambda _size: next(lines, "")


def _columns(heading: str, delimiter: str) -> list[str]:
    names = [name.strip() for name in next(csv.reader([heading], delimiter=delimiter), [])]
    columns = [name.lower() if name.lower() in (*WHO, *ABOUT) else name for name in names]
    if not set(WHO) & set(columns):
        said = f"its first row is {', '.join(names)[:200]!r}" if names else "it is empty"
        raise InvalidJob(f"The CSV has no column user_id or email: {said}.")
    if len(set(columns)) < len(columns):
        raise InvalidJob("The CSV has two columns of the same name.")
    return columns


def _read(number: int, columns: Sequence[str], cells: Sequence[str]) -> Entry | Broken:
    if len(cells) > len(columns):
        return Broken(number, f"it has {len(cells)} cells, but there are {len(columns)} columns")
    if any("\udc80" <= char <= "\udcff" for cell in cells if not cell.isascii() for char in cell):
        return Broken(number, "it is not UTF-8")
    if any("\0" in cell for cell in cells):
        return Broken(number, "it has a NUL character")
    row = {name: cell.strip() for name, cell in zip(columns, cells, strict=False) if cell.strip()}
    user_id, email = row.pop("user_id", None), row.pop("email", None)
    about = {name: row.pop(name) for name in ABOUT if name in row}
    try:
        user_id = None if user_id is None else str(UUID(user_id))
    except ValueError:
        return Broken(number, f"user_id {user_id[:80]!r} is no UUID" if user_id else "")
    if user_id is None and email is None:
        return Broken(number, "it names nobody: user_id and email are empty")
    return Entry(number, user_id, None if email is None else lower_domain(email), about, row or None)
