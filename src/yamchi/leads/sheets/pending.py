"""What is still to be written to the spreadsheet, noted in the transaction that changes a lead: a crash loses nothing."""

from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy import Connection, delete, update

from yamchi.clock import isoformat
from yamchi.leads.sheets.cells import LONGEST_CELL
from yamchi.leads.tables import sheet_lines as lines
from yamchi.leads.tables import sheet_rows as rows
from yamchi.storage.upsert import insert_new


class PendingChanges:
    """Told by the store of leads. Every function works in a transaction of the caller."""

    def changed_in(self, connection: Connection, lead_id: str) -> None:
        if not connection.execute(_count(lead_id)).rowcount:
            new = {"lead_id": lead_id, "changes": 1, "written": 0, "is_away": False, "is_erased": False}
            if not insert_new(connection, rows, [new]):
                connection.execute(_count(lead_id))

    def logged_in(self, connection: Connection, line: Mapping[str, Any]) -> None:
        data = orjson.dumps(line["data"]).decode()[:LONGEST_CELL] if line["data"] else ""
        cells = [line["id"], line["lead_id"], isoformat(line["at"]), line["text"], data]
        kept = {name: line[name] for name in ("id", "lead_id", "at", "number")}
        insert_new(connection, lines, [{**kept, "cells": cells}])

    def erased_in(self, connection: Connection, lead_id: str) -> None:
        """Its row is emptied; its log keeps what happened, and not to whom."""
        connection.execute(delete(lines).where(lines.c.lead_id == lead_id))
        connection.execute(_count(lead_id).values(is_erased=True))


def _count(lead_id: str) -> Any:
    return update(rows).where(rows.c.lead_id == lead_id).values(changes=rows.c.changes + 1)
