"""The two sheets: one row per lead, its columns found by their names; and the log, to which lines are only appended."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from yamchi.leads.sheets.cells import COLUMNS, LOG_COLUMNS, Cells, read_row, to_send
from yamchi.leads.sheets.spreadsheet import Spreadsheet, column_name

log = structlog.get_logger("yamchi.leads")


@dataclass(slots=True)
class Snapshot:
    """The sheet of leads as it was read: where each lead's row is, and what it has."""

    header: list[str]
    places: dict[str, int] = field(default_factory=dict)
    cells: dict[str, Cells] = field(default_factory=dict)

    def cell(self, lead_id: str, column: str) -> str:
        """The name of a cell, such as B7."""
        return f"{column_name(self.header.index(column))}{self.places[lead_id]}"


async def add_header(spreadsheet: Spreadsheet, title: str, columns: Sequence[str]) -> list[str]:
    """The first row of a sheet; columns of ours that it lacks are added after the others."""
    found = await spreadsheet.rows(title, "1:1")
    header = [str(cell).strip() for cell in found[0]] if found else []
    missing = [name for name in columns if name not in header]
    if missing:
        new = {f"{column_name(len(header) + number)}1": name for number, name in enumerate(missing)}
        await spreadsheet.write(title, new)
    return [*header, *missing]


class LeadsSheet:
    """One row per lead. People may sort it, move columns and add their own."""

    def __init__(self, spreadsheet: Spreadsheet, title: str) -> None:
        self._spreadsheet = spreadsheet
        self.title = title

    async def read(self) -> Snapshot:
        found = await self._spreadsheet.rows(self.title)
        header = [str(cell).strip() for cell in found[0]] if found else []
        if any(name not in header for name in COLUMNS):  # a person took a column away
            header = await add_header(self._spreadsheet, self.title, COLUMNS)
        snapshot = Snapshot(header)
        for number, row in enumerate(found[1:], 2):
            cells = read_row(header, row)
            lead_id = cells["id"]
            if lead_id in snapshot.places:
                log.warning(f"the spreadsheet has the lead {lead_id!r} twice: the first row counts")
            elif lead_id:
                snapshot.places[lead_id], snapshot.cells[lead_id] = number, cells
        return snapshot

    async def row_of(self, lead_id: str) -> Cells | None:
        """The row of one lead, as it stands there now."""
        header, *rows = await self._spreadsheet.rows(self.title) or [[]]
        names = [str(cell).strip() for cell in header]
        found = (read_row(names, row) for row in rows)
        return next((cells for cells in found if cells["id"] == lead_id), None)

    async def append(self, header: Sequence[str], rows: Sequence[Cells]) -> None:
        sent = [[to_send(name, row.get(name, "")) for name in header] for row in rows]
        await self._spreadsheet.append(self.title, sent)

    async def write(self, cells: Mapping[str, tuple[str, str]]) -> None:
        """Set cells by their names, each given as its column and its text."""
        await self._spreadsheet.write(
            self.title, {cell: to_send(column, text) for cell, (column, text) in cells.items()}
        )

    async def ids(self, header: Sequence[str]) -> dict[int, str]:
        """Which lead each row is of, at this moment."""
        column = column_name(header.index("id"))
        found = await self._spreadsheet.rows(self.title, f"{column}:{column}")
        return {number: str(row[0]) for number, row in enumerate(found, 1) if row}


class LogSheet:
    """A line for each thing that happened."""

    def __init__(self, spreadsheet: Spreadsheet, title: str) -> None:
        self._spreadsheet = spreadsheet
        self.title = title

    async def ids(self) -> set[str]:
        return {str(row[0]) for row in await self._spreadsheet.rows(self.title, "A:A") if row}

    async def append(self, lines: Sequence[Sequence[Any]]) -> None:
        await self._spreadsheet.append(self.title, lines)

    async def empty(self, lead_ids: Collection[str]) -> None:
        """Leave of these leads what happened, and nothing that tells who they were."""
        data = column_name(LOG_COLUMNS.index("data"))
        found = await self._spreadsheet.rows(self.title, "A:B")
        theirs = {
            f"{data}{number}": ""
            for number, row in enumerate(found, 1)
            if len(row) > 1 and str(row[1]) in lead_ids
        }
        if theirs:
            await self._spreadsheet.write(self.title, theirs)
