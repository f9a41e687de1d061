"""Data and a template become a PDF; rows become a spreadsheet or CSV. Everything is written to a file, row by row.

Typst gets the data as JSON beside the template, so that nothing in the data can be taken for markup. It reads no file but
those of the template's own folder and of the ones that ship, and no system font: the same report looks the same anywhere.
"""

import asyncio
import csv
import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import orjson

from yamchi.csvfiles import as_csv_text
from yamchi.errors import MissingExtra, Unrecoverable
from yamchi.reports.glyphs import displayable
from yamchi.reports.kinds import TEMPLATES, Content, Format, ReportProgress, Rows

FONTS = Path(__file__).parent / "fonts"
MAX_PDF_ROWS = 2_000
"""A longer table belongs in a spreadsheet."""

MAX_PDF_VALUES = 20_000
"""Texts and numbers in the data of a PDF, each line of a text counted. Typst keeps a whole document in memory, 25 KB for each cell of a table."""

MAX_PDF_CHARACTERS = 500_000
"""Characters of all its texts together: 250 pages. Each takes 0.4 KB of memory, one that no font has takes 1.7 KB."""

MAX_SHEET_ROWS = 1_048_575
"""What XLSX has room for below the names of the columns; more rows go on in another sheet."""

EXACT_DIGITS = 15
EXACT_BELOW = 10**15
MAX_CELL_CHARS = 32_767
MAX_DATA_BYTES = 8 * 1024 * 1024


async def write(
    file: Path,
    content: Content,
    form: Format,
    template: Path | None,
    made_at: datetime,
    report_progress: ReportProgress,
) -> None:
    """Write a report to a file."""
    match form:
        case "pdf":
            await _write_pdf(file, content, template, made_at)
        case "xlsx":
            await _write_rows(_rows(content, form), _Sheet(file), report_progress)
        case "csv":
            await _write_rows(_rows(content, form), _Csv(file), report_progress)


def _rows(content: Content, form: Format) -> Rows:
    if content.rows is None:
        raise Unrecoverable(f"{content.title} has no rows, so it can't be made as {form}: ask for pdf.")
    return content.rows


# ── PDF ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _write_pdf(file: Path, content: Content, template: Path | None, made_at: datetime) -> None:
    data = {"title": content.title, **content.data}
    if template is None and content.rows is not None and "rows" not in data:
        data |= {"columns": list(content.rows.columns), "rows": await _few_rows(content.title, content.rows)}
    encoded = orjson.dumps(data, default=str)
    if len(encoded) > MAX_DATA_BYTES:
        raise Unrecoverable(
            f"The data of {content.title} is larger than {MAX_DATA_BYTES} bytes: give it as xlsx."
        )
    await asyncio.to_thread(_check_size, content.title, encoded)
    await asyncio.to_thread(_compile, template or TEMPLATES / "table.typ", encoded, made_at, file)


def _check_size(title: str, data: bytes) -> None:
    """Typst would take the memory of all other jobs before it fails."""
    texts = list(_texts_in(orjson.loads(data)))
    counts = (
        (
            len(texts) + sum(text.count("\n") for text in texts),
            MAX_PDF_VALUES,
            "values",
            "each line of a text is one",
        ),
        (sum(map(len, texts)), MAX_PDF_CHARACTERS, "characters", "all texts together"),
    )
    for count, most, what, how in counts:
        if count > most:
            raise Unrecoverable(
                f"{title} has {count:,} {what}, more than the {most:,} that a PDF has room for ({how}): "
                "put fewer into it, or give them as rows and ask for xlsx or csv."
            )


def _texts_in(value: Any) -> Iterator[str]:
    """Every value as a text; a number is one without characters."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(part)
    else:
        yield value if isinstance(value, str) else ""


async def _few_rows(title: str, rows: Rows) -> list[Sequence[str]]:
    """All of them: a table that ends before its last row would be believed."""
    found: list[Sequence[str]] = []
    async for batch in rows.batches():
        found += [[_cell_text(cell) for cell in row] for row in batch[: MAX_PDF_ROWS + 1 - len(found)]]
        if len(found) > MAX_PDF_ROWS:
            raise Unrecoverable(f"{title} has more than {MAX_PDF_ROWS:,} rows: ask for xlsx or csv.")
    return found


def _compile(template: Path, data: bytes, made_at: datetime, file: Path) -> None:
    """PDF/A wants a glyph for every character: what the fonts lack, such as an emoji, is shown as the sign for that."""
    try:
        _run_typst(template, data, made_at, file)
    except _LacksGlyphs:
        _run_typst(template, orjson.dumps(displayable(orjson.loads(data))), made_at, file)


class _LacksGlyphs(Unrecoverable):
    """A character of the data is in none of the fonts."""


def _run_typst(template: Path, data: bytes, made_at: datetime, file: Path) -> None:
    typst = _typst()
    try:
        typst.compile(
            template,
            output=file,
            root=template.parent,
            font_paths=_fonts(),
            sys_inputs={"data": data.decode()},
            pdf_standards=["a-2b"],
            timestamp=int(made_at.timestamp()),
            format="pdf",
        )
    except (RuntimeError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        failure = _LacksGlyphs if "could not be displayed" in said else Unrecoverable
        raise failure(f"The template {template.name} can't be made into a PDF: {said}") from error


@lru_cache(maxsize=1)
def _fonts() -> Any:
    """Looked at once: scanning them costs three times what a page does."""
    return _typst().Fonts(font_paths=[str(FONTS)], include_system_fonts=False)


def _typst() -> Any:
    try:
        import typst
    except ImportError as error:
        raise MissingExtra("reports", "A report as PDF") from error
    return typst


# ── Rows ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Csv:
    """For spreadsheets of every make: UTF-8 with a mark, and nothing that could be taken for a formula."""

    def __init__(self, file: Path) -> None:
        self._path = file
        self._file: IO[str] | None = None

    def open(self, columns: Sequence[str]) -> None:
        self._file = self._path.open("w", encoding="utf-8-sig", newline="")
        self._writer = csv.writer(self._file)
        self._writer.writerow([as_csv_text(str(name)) for name in columns])

    def add(self, batch: Sequence[Sequence[Any]]) -> None:
        self._writer.writerows([[_csv_text(cell) for cell in row] for row in batch])

    def close(self) -> None:
        if self._file:
            self._file.close()


class _Sheet:
    """An XLSX that is written as it grows, in constant memory."""

    def __init__(self, file: Path) -> None:
        try:
            import xlsxwriter
        except ImportError as error:
            raise MissingExtra("reports", "A report as XLSX") from error
        options = {"constant_memory": True, "strings_to_formulas": False, "strings_to_urls": False}
        self._book = xlsxwriter.Workbook(str(file), {**options, "tmpdir": str(file.parent)})
        self._bold = self._book.add_format({"bold": True})

    def open(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._begin_sheet()

    def _begin_sheet(self) -> None:
        self._sheet = self._book.add_worksheet()
        self._sheet.freeze_panes(1, 0)
        for column, name in enumerate(self._columns):
            self._sheet.write_string(0, column, str(name), self._bold)
        self._row = 0

    def add(self, batch: Sequence[Sequence[Any]]) -> None:
        for row in batch:
            if self._row == MAX_SHEET_ROWS:
                self._begin_sheet()
            self._row += 1
            for column, cell in enumerate(row):
                is_number = _is_number(cell)
                write = self._sheet.write_number if is_number else self._sheet.write_string
                write(self._row, column, cell if is_number else _cell_text(cell)[:MAX_CELL_CHARS])

    def close(self) -> None:
        self._book.close()


async def _write_rows(rows: Rows, target: _Csv | _Sheet, report_progress: ReportProgress) -> None:
    """A batch at a time: gathered on the event loop, written in a thread."""
    done = 0
    await asyncio.to_thread(target.open, rows.columns)
    try:
        async for batch in rows.batches():
            await asyncio.to_thread(target.add, batch)
            done += len(batch)
            if rows.count:
                await report_progress(min(done / rows.count, 1))
    finally:
        await asyncio.to_thread(target.close)


def _cell_text(cell: Any) -> str:
    if cell is None:
        return ""
    return cell.isoformat() if isinstance(cell, datetime) else str(cell)


def _is_number(cell: Any) -> bool:
    """What XLSX can hold as a number: no truth values, nothing without an end, no id whose last digits it would lose."""
    match cell:
        case bool():
            return False
        case int():
            return abs(cell) < EXACT_BELOW
        case float():
            return math.isfinite(cell)
        case Decimal():
            return cell.is_finite() and len(cell.as_tuple().digits) <= EXACT_DIGITS and math.isfinite(cell)
    return False


def _csv_text(cell: Any) -> str:
    """A number begins with a minus and is none the less a number."""
    return _cell_text(cell) if _is_number(cell) else as_csv_text(_cell_text(cell))
