"""Keeps a spreadsheet and the leads alike: what people changed in a cell is taken over, what changed here is written there.

For each lead we keep the cells as both sides last agreed on. A cell that differs from that was changed by a person; a field
that does was changed by us. If both were, ours stands. One process at a time does this. A round is one read and, if
something changed, an append and a batch of cells, however many leads that concerns.
"""

import asyncio
from typing import Any

import structlog
from sqlalchemy import insert, literal, null, select, update

from yamchi.clock import Clock, Millis, to_millis
from yamchi.errors import ConfigurationError, EngineError, InvalidJob, Outage, YamchiError
from yamchi.leads.model import Lead, LessonMoved, checked
from yamchi.leads.service import LeadService
from yamchi.leads.sheets.cells import (
    BROUGHT,
    COLUMNS,
    EDITABLE,
    ERASED,
    LOG_COLUMNS,
    Cells,
    cells_of,
    read_cell,
)
from yamchi.leads.sheets.spreadsheet import Spreadsheet
from yamchi.leads.sheets.worksheets import LeadsSheet, LogSheet, Snapshot, add_header
from yamchi.leads.sheets.writing import SheetWriter
from yamchi.leads.store import LeadStore
from yamchi.leads.tables import lead_holds, leads
from yamchi.leads.tables import sheet_rows as table
from yamchi.scenarios.entities import LogLine
from yamchi.storage.database import Database
from yamchi.storage.holds import Holds

log = structlog.get_logger("yamchi.leads")

WRITER = "leads"
ROWS_AT_ONCE = 500
HOLD: Millis = 90_000
"""How long after its next look a process that gives no sign of life is believed to be writing: longer than a request of it may be under way."""

RENEW_EVERY_SECONDS = 15.0
"""Of a round that takes longer than the hold: thousands of leads are many requests, and the quota is waited for."""

QUOTA: Millis = 60_000
"""Google counts requests by the minute."""

LONGEST_PAUSE: Millis = 300_000


class SheetSync:
    """Reads and writes one spreadsheet."""

    def __init__(
        self,
        database: Database,
        store: LeadStore,
        service: LeadService,
        spreadsheet: Spreadsheet,
        clock: Clock,
        *,
        leads_title: str,
        log_title: str,
        every: Millis,
    ) -> None:
        self._database = database
        self._store = store
        self._service = service
        self._spreadsheet = spreadsheet
        self._clock = clock
        self._every = every
        self._leads = LeadsSheet(spreadsheet, leads_title)
        self._log = LogSheet(spreadsheet, log_title)
        self._writer = SheetWriter(database, store, clock, self._leads, self._log)
        self._holds = Holds(database, lead_holds.c.name, clock, length=every + HOLD)
        self._is_ready = False
        self._seen: dict[str, Cells] = {}

    async def watch(self) -> None:
        """Keep both alike, for ever. A quota that is used up, or Google being away, is waited for; nothing is lost."""
        pause = self._every
        try:
            while True:
                pause = await self.round(pause)
                await self._clock.sleep(pause)
        finally:
            await self._holds.release()

    async def round(self, pause: Millis = 0) -> Millis:
        """Make both alike once; how long to wait for the next time, given how long the last wait was."""
        try:
            await self.sync()
        except ConfigurationError:
            raise
        except YamchiError as error:
            wait = self._wait(error, pause)
            log.warning(
                f"the spreadsheet of leads could not be synced, and is tried again in {wait // 1000} s: {error}"
            )
            return wait
        return self._every

    def _wait(self, error: YamchiError, pause: Millis) -> Millis:
        if isinstance(error, Outage) and error.retry_after:
            return max(to_millis(error.retry_after), self._every)
        least = QUOTA if isinstance(error, Outage) else self._every
        return min(max(pause * 2, least), LONGEST_PAUSE)

    async def sync(self) -> bool:
        """One round; False if another process is at it."""
        if not await self._holds.take_named(WRITER):
            return False
        renewal = asyncio.create_task(self._renew())
        try:
            await self._make_alike()
        finally:
            renewal.cancel()
        return True

    async def _renew(self) -> None:
        """A round may outlast the hold."""
        while True:
            await asyncio.sleep(RENEW_EVERY_SECONDS)  # requests take real time
            try:
                await self._holds.take_named(WRITER)
            except EngineError as error:
                log.warning(
                    "the hold of the spreadsheet could not be renewed; trying again", error=str(error)
                )

    async def _make_alike(self) -> None:
        if not self._is_ready:
            await self._prepare()
        snapshot = await self._leads.read()
        await self._take_over(snapshot)
        await self._writer.write_rows(snapshot)
        await self._writer.write_lines()

    async def check(self) -> str:
        """Whether the spreadsheet can be reached, as a sentence."""
        return f"the spreadsheet can be reached; its sheets: {', '.join(await self._spreadsheet.titles())}"

    # ── Before the first round ────────────────────────────────────────────────────────────────────────────────────

    async def _prepare(self) -> None:
        """Sheets that are missing are made, and leads that were here before the spreadsheet was are written there too."""
        titles = await self._spreadsheet.titles()
        for title, columns in ((self._leads.title, COLUMNS), (self._log.title, LOG_COLUMNS)):
            if title not in titles:
                await self._spreadsheet.add_sheet(title)
            await add_header(self._spreadsheet, title, columns)
        is_known = select(table.c.lead_id).where(table.c.lead_id == leads.c.id).exists()
        older = select(
            leads.c.id, null(), literal(1), literal(0), null(), literal(False), literal(False)
        ).where(~is_known)
        await self._database.execute(insert(table).from_select(_ALL, older))
        self._is_ready = True

    # ── From the sheet to here ────────────────────────────────────────────────────────────────────────────────────

    async def _take_over(self, snapshot: Snapshot) -> None:
        """What people wrote since the last look. Rows that are as they were cost nothing."""
        changed = [lead_id for lead_id, cells in snapshot.cells.items() if self._seen.get(lead_id) != cells]
        for start in range(0, len(changed), ROWS_AT_ONCE):
            ids = changed[start : start + ROWS_AT_ONCE]
            is_known = (table.c.is_erased.is_(False), table.c.cells.is_not(null()))
            query = select(table).where(table.c.lead_id.in_(ids), *is_known)
            rows = await self._database.rows(query)
            for row in rows:
                theirs = snapshot.cells[row.lead_id]
                if row.cells is not None and (row.is_away or row.cells != theirs):
                    await self._take_over_row(row.lead_id, row.cells, theirs)
        self._seen = snapshot.cells

    async def bring(self, lead_id: str) -> None:
        """A row that another program or a person wrote becomes a lead, as it is: nothing of it is an event."""
        cells = await self._leads.row_of(lead_id)
        if cells is None or cells["status"] == ERASED:
            return
        given = {name: self._read(lead_id, name, cells[name]) for name in BROUGHT if cells[name].strip()}
        known = {name: value for name, value in given.items() if value is not None}
        row = {"source": "sheet", **known, "id": lead_id}
        await self._database.write(lambda connection: self._store.add_in(connection, row))

    def _read(self, lead_id: str, name: str, cell: str) -> Any:
        """None for what no lead can have: that cell is emptied by the next round."""
        try:
            return checked(name, self._service.corrected(name, read_cell(name, cell)), self._store.zone)
        except InvalidJob as error:
            log.warning(f"a cell in the spreadsheet of the lead {lead_id} can't be read: {error}")
            return None

    async def _take_over_row(self, lead_id: str, agreed: Cells, theirs: Cells) -> None:
        lead = await self._store.find(lead_id)
        if lead is None:
            return
        ours = cells_of(lead)
        for name in sorted(COLUMNS, key=_turn):
            is_edited = theirs[name] not in (agreed.get(name, ""), ours[name])
            if is_edited and ours[name] == agreed.get(name, "") and name in EDITABLE:
                await self._edit(lead, name, theirs)
        # What the sheet has is known now; what the lead has otherwise is written there next.
        known = {"cells": theirs, "is_away": False, "changes": table.c.changes + 1}
        change = update(table).where(table.c.lead_id == lead_id).values(known)
        await self._database.execute(change)

    async def _edit(self, lead: Lead, name: str, theirs: Cells) -> None:
        """A cell that says something impossible is put back, and the log says why.

        A tick at `confirmed` is about the date beside it, which the lesson need not have any more.
        """
        try:
            value = read_cell(name, theirs[name])
            if name == "confirmed" and value:
                seen = read_cell("lesson_datetime", theirs["lesson_datetime"])
                await self._service.confirm_date(lead.id, seen)
            else:
                await self._service.edit(lead.id, {name: value})
        except (InvalidJob, LessonMoved) as error:
            log.warning(f"a change in the spreadsheet of the lead {lead.id} was refused: {error}")
            line = LogLine(
                f"sheet:{lead.id}:{self._clock.now()}:{name}", "SHEET_REFUSED", {"why": str(error)}
            )
            await self._database.write(lambda connection: self._store.log_in(connection, lead.id, line))


_ALL = ["lead_id", "cells", "changes", "written", "asked_at", "is_away", "is_erased"]

_LAST = ("bot_activated", "lesson_datetime", "confirmed", "status")
"""Fields whose change sets others, each before those that it sets: a cell that was changed beside it stands."""


def _turn(name: str) -> int:
    return _LAST.index(name) if name in _LAST else -1
