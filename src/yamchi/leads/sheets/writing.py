"""What changed here is written to the spreadsheet, once.

An append has no id at Google. So that we ask is written down before; who finds that, and no row, waits until the question can
no longer be at work and looks at the sheet before it asks again.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, select, update

from yamchi.clock import Clock, Millis
from yamchi.errors import Outage, Unrecoverable
from yamchi.faultpoints import fault_point
from yamchi.leads.sheets.cells import COLUMNS, Cells, cells_of, erased
from yamchi.leads.sheets.worksheets import LeadsSheet, LogSheet, Snapshot
from yamchi.leads.store import LeadStore
from yamchi.leads.tables import sheet_lines as lines
from yamchi.leads.tables import sheet_rows as table
from yamchi.storage.database import Database

ROWS_AT_ONCE = 500
UNDER_WAY: Millis = 90_000
"""How long an append whose answer did not come may still be at work: longer than an answer is waited for."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A lead that changed: what its row should have, and what the sheet has; None if it has no row."""

    row: Row[Any]
    wanted: Cells
    agreed: Cells | None

    @property
    def lead_id(self) -> str:
        return str(self.row.lead_id)


class SheetWriter:
    """Writes rows and lines, in batches."""

    def __init__(
        self, database: Database, store: LeadStore, clock: Clock, leads: LeadsSheet, log: LogSheet
    ) -> None:
        self._database = database
        self._store = store
        self._clock = clock
        self._leads = leads
        self._log = log

    # ── Leads ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def write_rows(self, snapshot: Snapshot) -> None:
        """Cells first: an append may move the rows below an empty one."""
        async for found in self._batches(snapshot):
            await self._update(snapshot, [one for one in found if one.agreed is not None])
        async for found in self._batches(snapshot):
            absent = [one for one in found if one.agreed is None and not self._is_under_way(one.row)]
            await self._append(snapshot, [one for one in absent if not one.row.is_erased])
            await self._forget([one.lead_id for one in absent if one.row.is_erased])

    async def _batches(self, snapshot: Snapshot) -> AsyncIterator[list[Pending]]:
        after = ""
        while found := await self._pending(snapshot, after):
            yield found
            after = found[-1].lead_id

    async def _pending(self, snapshot: Snapshot, after: str) -> list[Pending]:
        query = select(table).where(table.c.changes > table.c.written, table.c.lead_id > after)
        query = query.order_by(table.c.lead_id).limit(ROWS_AT_ONCE)

        def look(connection: Connection) -> list[Pending]:
            return [self._wanted(connection, row, snapshot) for row in connection.execute(query).all()]

        return await self._database.read(look)

    def _wanted(self, connection: Connection, row: Row[Any], snapshot: Snapshot) -> Pending:
        lead = None if row.is_erased else self._store.find_in(connection, row.lead_id)
        agreed = snapshot.cells.get(row.lead_id) if row.cells is None else row.cells
        return Pending(row, erased(row.lead_id) if lead is None else cells_of(lead), agreed)

    def _is_under_way(self, row: Row[Any]) -> bool:
        return row.asked_at is not None and self._clock.now() - row.asked_at < UNDER_WAY

    async def _append(self, snapshot: Snapshot, found: Sequence[Pending]) -> None:
        if not found:
            return
        which = table.c.lead_id.in_([one.lead_id for one in found])
        await self._set(table, which, asked_at=self._clock.now())
        fault_point("sheet.appending")
        try:
            await self._leads.append(snapshot.header, [one.wanted for one in found])
        except (Outage, Unrecoverable):
            await self._set(table, which, asked_at=None)  # it was not done
            raise
        fault_point("sheet.appended")
        await self._settle((one.row, one.wanted) for one in found)

    async def _update(self, snapshot: Snapshot, found: Sequence[Pending]) -> None:
        """The cells that differ, in one request. A row that a person took away stays away."""
        there = [one for one in found if one.lead_id in snapshot.places]
        new = {
            one.lead_id: {
                name: one.wanted[name] for name in COLUMNS if one.wanted[name] != (one.agreed or {}).get(name)
            }
            for one in there
        }
        moved = await self._write_cells(snapshot, {lead_id: cells for lead_id, cells in new.items() if cells})
        await self._settle((one.row, one.wanted) for one in there if one.lead_id not in moved)
        await self._settle(
            ((one.row, one.agreed) for one in found if one.lead_id not in snapshot.places), is_away=True
        )
        await self._forget([one.lead_id for one in found if one.row.is_erased and one.lead_id not in moved])

    async def _write_cells(self, snapshot: Snapshot, new: dict[str, Cells]) -> set[str]:
        """Leads whose rows were moved, by a sort or an insertion, between our look and our writing: they are due again.

        Their cells went into a row that is another lead's by now, whose own are due again too; or into an empty one.
        """
        if not new:
            return set()
        await self._leads.write(
            {
                snapshot.cell(lead_id, name): (name, text)
                for lead_id, cells in new.items()
                for name, text in cells.items()
            }
        )
        fault_point("sheet.written")
        now_at = await self._leads.ids(snapshot.header)
        moved = {lead_id for lead_id in new if now_at.get(snapshot.places[lead_id]) != lead_id}
        for lead_id in moved:
            if victim := now_at.get(snapshot.places[lead_id]):
                await self._mistaken(victim, new[lead_id])
            else:
                await self._leads.write({snapshot.cell(lead_id, name): (name, "") for name in new[lead_id]})
        return moved

    async def _mistaken(self, lead_id: str, wrong: Cells) -> None:
        """The row of this lead got cells of another: they are known not to be a person's, and its own are due."""

        def note(connection: Connection) -> None:
            row = connection.execute(select(table).where(table.c.lead_id == lead_id)).first()
            if row is not None and row.cells is not None:
                values = {"cells": {**row.cells, **wrong}, "changes": table.c.changes + 1}
                connection.execute(update(table).where(table.c.lead_id == lead_id).values(values))

        await self._database.write(note)

    async def _settle(self, done: Iterable[tuple[Row[Any], Cells | None]], *, is_away: bool = False) -> None:
        """These changes are in the sheet, or can't be; one that came meanwhile is still due."""
        settled = list(done)

        def settle(connection: Connection) -> None:
            for row, cells in settled:
                known = {"cells": cells, "written": row.changes, "asked_at": None, "is_away": is_away}
                connection.execute(update(table).where(table.c.lead_id == row.lead_id).values(known))

        if settled:
            await self._database.write(settle)

    async def _forget(self, lead_ids: Sequence[str]) -> None:
        """Leads that were erased: their rows have been emptied, what the log tells of them is, and we forget them."""
        if not lead_ids:
            return
        await self._log.empty(lead_ids)
        gone = delete(table).where(table.c.lead_id.in_(lead_ids))
        await self._database.execute(gone)

    # ── The log ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def write_lines(self) -> None:
        """Lines that are new are appended; of one that may have been appended before, the sheet is asked first."""
        while found := await self._lines():
            known = await self._log.ids() if any(line.asked_at for line in found) else set()
            await self._drop([line.id for line in found if line.id in known])
            new = [line for line in found if line.id not in known and not self._is_under_way(line)]
            if not new:
                return
            await self._append_lines(new)

    async def _lines(self) -> Sequence[Row[Any]]:
        query = select(lines).order_by(lines.c.at, lines.c.number, lines.c.id).limit(ROWS_AT_ONCE)
        return await self._database.rows(query)

    async def _append_lines(self, new: Sequence[Row[Any]]) -> None:
        ids = [line.id for line in new]
        await self._set(lines, lines.c.id.in_(ids), asked_at=self._clock.now())
        fault_point("sheet.log_appending")
        try:
            await self._log.append([line.cells for line in new])
        except (Outage, Unrecoverable):
            await self._set(lines, lines.c.id.in_(ids), asked_at=None)  # it was not done
            raise
        fault_point("sheet.log_appended")
        await self._drop(ids)

    async def _drop(self, ids: Sequence[str]) -> None:
        if ids:
            gone = delete(lines).where(lines.c.id.in_(ids))
            await self._database.execute(gone)

    async def _set(self, which: Any, condition: Any, **values: Any) -> None:
        await self._database.execute(update(which).where(condition).values(values))
