"""Copies of what waits, written into the tables as the version that made them has them.

Ten times what `make_waiting.py` makes would be ten times as large a file. So a test at full scale makes the rest of the 10,000 runs here,
before anything newer has seen the database: rows like those that are there, under ids of their own. Their jobs are still to be queued,
as after a crash: the outbox has them.
"""

import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from sqlalchemy import Connection, MetaData, Table, create_engine, select

from tests.upgrade.make_waiting import END, GROUPS, Lead

COPIED = (
    "users",
    "leads",
    "lead_log",
    "events",
    "notification_delivery",
    "scenario_runs",
    "scenario_steps",
    "scenario_events",
)
CHATS = {"users": ("user_id", "telegram_id"), "leads": ("id", "tg_id")}
"""Where the column of a person's chat is, and whose it is."""

ID = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[a-m]\d+\b")
SPACE = UUID(int=0)
KEY_LIVES = 6 * 3_600_000
AT_ONCE = 500
LEFT_AT = END - timedelta(minutes=1)


def multiply(url: str, times: int) -> None:
    """So many of everything that there is one of."""
    engine = create_engine(url)
    with engine.begin() as connection:
        tables = MetaData()
        tables.reflect(connection, only=[*COPIED, "scenario_outbox"])
        for name in COPIED:
            _copy(connection, tables.tables[name], times)
        _promise_jobs(connection, tables)
    engine.dispose()


def _copy(connection: Connection, table: Table, times: int) -> None:
    rows = [dict(row._mapping) for row in connection.execute(select(table))]
    copies = [_renamed_row(table.name, row, turn) for turn in range(1, times) for row in rows]
    for start in range(0, len(copies), AT_ONCE):
        connection.execute(table.insert(), copies[start : start + AT_ONCE])


def _renamed_row(table: str, row: Mapping[str, Any], turn: int) -> dict[str, Any]:
    copy = {name: _renamed(value, turn) for name, value in row.items() if name != "number"}
    if table in CHATS:
        whose, chat = CHATS[table]
        (group,) = (one for one in GROUPS if one.name == copy[whose][0])
        copy[chat] = Lead(group, copy[whose]).chat
    return copy


def _renamed(value: Any, turn: int) -> Any:
    if isinstance(value, str):
        return ID.sub(lambda found: _other(found[0], turn), value)
    if isinstance(value, dict | list):
        return json.loads(_renamed(json.dumps(value), turn))
    return value


def _other(id: str, turn: int) -> str:
    """The id of a copy: of leads the next numbers of their group, of everything else one made of it."""
    if len(id) == 32:
        return uuid5(SPACE, f"{id} {turn}").hex
    if len(id) == 36:
        return str(uuid5(SPACE, f"{id} {turn}"))
    (group,) = (one for one in GROUPS if one.name == id[0])
    return f"{group.name}{int(id[1:]) + turn * group.leads}"


def _promise_jobs(connection: Connection, tables: MetaData) -> None:
    """Rows of the outbox for the pending steps of copies: whose run has no key of its own among those that were there."""
    runs, steps, outbox = (tables.tables[f"scenario_{name}"] for name in ("runs", "steps", "outbox"))
    query = select(steps, runs.c.key.label("lead")).join(runs, runs.c.run_id == steps.c.run_id)
    pending = connection.execute(query.where(steps.c.state == "armed", steps.c.queue.is_not(None))).all()
    there = {group.name: group.leads for group in GROUPS}
    promised = [_promise(row) for row in pending if int(row.lead[1:]) >= there[row.lead[0]]]
    for start in range(0, len(promised), AT_ONCE):
        connection.execute(outbox.insert(), promised[start : start + AT_ONCE])


def _promise(row: Any) -> dict[str, Any]:
    body = {
        "queue": row.queue,
        "name": row.step,
        "data": {"leadId": row.lead},
        "run_at": _millis(row.due_at),
        "key": row.key,
        "ttl": KEY_LIVES if row.key else None,
    }
    at = LEFT_AT.replace(tzinfo=None) if row.due_at.tzinfo is None else LEFT_AT
    return {"kind": "job", "job_id": f"{row.run_id}.{row.step}.{row.arming}", "body": body, "created_at": at}


def _millis(moment: datetime) -> int:
    return round((moment if moment.tzinfo else moment.replace(tzinfo=END.tzinfo)).timestamp() * 1000)
