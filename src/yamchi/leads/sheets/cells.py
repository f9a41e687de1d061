"""A lead as cells of a row, and what a person wrote into a cell as a value of a lead. A cell is compared as text."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import orjson

from yamchi.errors import InvalidJob
from yamchi.leads.model import FLAGS, MOMENTS, NAMES, Lead

Cells = dict[str, str]

COLUMNS = NAMES
LOG_COLUMNS = ("id", "lead_id", "at", "text", "data")
EDITABLE = frozenset(
    {"name", "email", "phone", "tg_id", "locale", "timezone", "status", "bot_activated", "confirmed"}
    | {"email_1_sent", "email_2_sent", "lesson_datetime", "zoom_link"}
)
"""What people may change in the sheet; other cells are put back."""

BROUGHT = EDITABLE | {"email_1_sent_at"}
"""What a row that was there before its lead says of it."""

ERASED = "ERASED"
LONGEST_CELL = 40_000
"""Characters; Google takes 50,000."""

_DATES = ("%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S")
"""How a spreadsheet in Russian shows a date; ISO 8601 is read as it is."""


def cells_of(lead: Lead) -> Cells:
    """The row of a lead."""
    return {name: _text(value) for name, value in lead.to_dict().items()}


def erased(lead_id: str) -> Cells:
    """The row of a lead that was erased: who it was is no longer there."""
    return {**dict.fromkeys(COLUMNS, ""), "id": lead_id, "status": ERASED}


def to_send(name: str, cell: str) -> str | bool:
    """A flag is sent as true or false, so that a column of checkboxes works; all else is text, never a formula."""
    return cell == "TRUE" if name in FLAGS and cell else cell


def read_row(header: Sequence[Any], row: Sequence[Any]) -> Cells:
    """The cells of ours in a row, wherever people have moved their columns."""
    found = dict.fromkeys(COLUMNS, "")
    for name, value in reversed(
        list(zip(header, row, strict=False))
    ):  # of two columns of a name the first counts
        if name in found:
            found[name] = _text(value)
    return found


def read_cell(name: str, cell: str) -> Any:
    """What a person means by a cell; what it may be is checked where a lead is changed."""
    cell = cell.strip()
    if name in FLAGS:
        if cell.upper() not in ("TRUE", "FALSE", ""):
            raise InvalidJob(f"{name}: it should be TRUE or FALSE, not {cell[:60]!r}.")
        return cell.upper() == "TRUE"
    if name in MOMENTS and cell:
        for form in _DATES:
            with suppress(ValueError):
                return datetime.strptime(cell, form).isoformat()
    return cell or None


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "TRUE" if value else "FALSE"
        case float() if value.is_integer():
            return str(int(value))
        case Mapping():
            return orjson.dumps(value).decode()[:LONGEST_CELL] if value else ""
    return str(value)[:LONGEST_CELL]
