"""The audit: who changed what, when, from where, and what it was before and after, in short.

An entry is written before the change and completed after it, so that a process that is killed in between leaves a trace:
an entry without an outcome. No secret is in it, and addresses of people only in part.
"""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import orjson
import structlog
from sqlalchemy import Connection, delete, desc, insert, select, update
from starlette.requests import Request

from yamchi.clock import Clock, Millis
from yamchi.errors import EngineError
from yamchi.observe.logging import mask
from yamchi.queues import foreign
from yamchi.storage.database import Database
from yamchi.storage.tables import audit as table

log = structlog.get_logger("yamchi.audit")

SHORT = 500
"""Characters kept of what was before and after."""

READ_WHOLE = 16 * 1024
"""Bytes of JSON that are read to be masked field by field."""

SWEPT_EVERY: Millis = 3_600_000
SWEPT_AT_ONCE = 10_000

_EMAIL = re.compile(r"([\w.+-])[\w.+-]{0,64}@([\w-]+(\.[\w-]+)*)")
"""Bounded: without an end it would look for an @ again from every letter of a long text."""

_PHONE = re.compile(r"(\+\d{2})\d{5,11}(\d{2})")


@dataclass(slots=True)
class Entry:
    """One change, on its way into the table."""

    who: str
    action: str
    target: str | None = None
    address: str | None = None
    before: Any = None
    after: Any = None
    number: int | None = None
    """Its id, once it is in the table."""


class AuditLog:
    """The table `audit`. What can't be written there is in the log of the server."""

    def __init__(self, database: Database, clock: Clock, keep: timedelta) -> None:
        self._database = database
        self._clock = clock
        self._keep = int(keep.total_seconds() * 1000)
        self._swept_at: Millis | None = None

    async def begin(self, entry: Entry) -> None:
        """Before the change."""
        try:
            entry.number = await self._database.write(lambda connection: self._add(connection, entry))
        except EngineError as error:
            log.warning("a change could not be written to the audit", **_told(entry), error=str(error))

    async def finish(self, entry: Entry, outcome: str) -> None:
        """After it."""
        if entry.number is None:
            log.warning("the audit lacks a change that was made", **_told(entry), outcome=outcome)
            return
        values = {"outcome": outcome[:255], "before": short(entry.before), "after": short(entry.after)}
        change = update(table).where(table.c.entry_id == entry.number).values(**values)
        try:
            await self._database.execute(change)
        except EngineError as error:
            log.warning("the audit could not be completed", **_told(entry), outcome=outcome, error=str(error))

    async def page(
        self,
        *,
        who: str | None = None,
        action: str | None = None,
        target: str | None = None,
        since: Millis | None = None,
        until: Millis | None = None,
        below: int | None = None,
        limit: int = 50,
    ) -> list[dict[str, Any]]:
        """Entries, newest first; `action` and `target` may be any part of them."""
        query = select(table).order_by(desc(table.c.entry_id)).limit(limit)
        if who is not None:
            query = query.where(table.c.who == who)
        if action is not None:
            query = query.where(table.c.action.contains(action, autoescape=True))
        if target is not None:
            query = query.where(table.c.target.contains(target, autoescape=True))
        if since is not None:
            query = query.where(table.c.moment >= since)
        if until is not None:
            query = query.where(table.c.moment < until)
        if below is not None:
            query = query.where(table.c.entry_id < below)
        rows = await self._database.read(lambda connection: connection.execute(query).mappings().all())
        return [{str(name): value for name, value in row.items()} for row in rows]

    def _add(self, connection: Connection, entry: Entry) -> int:
        now = self._clock.now()
        if self._swept_at is None or now - self._swept_at >= SWEPT_EVERY:
            old = select(table.c.entry_id).where(table.c.moment < now - self._keep).limit(SWEPT_AT_ONCE)
            connection.execute(delete(table).where(table.c.entry_id.in_(old)))
            self._swept_at = now
        row = {
            "moment": now,
            "who": entry.who[:160],
            "address": entry.address,
            "action": entry.action[:255],
            "target": None if entry.target is None else _without_secrets(entry.target)[:512],
            "before": short(entry.before),
            "after": short(entry.after),
        }
        number: int = connection.execute(insert(table).returning(table.c.entry_id), row).scalar_one()
        return number


def changes(request: Request, *, before: Any = ..., after: Any = ...) -> None:
    """Say in a route what was before and what is after; by default the audit has the body as `after`."""
    entry: Entry | None = getattr(request.state, "audit", None)
    if entry is not None:
        entry.before = entry.before if before is ... else before
        entry.after = entry.after if after is ... else after


def short(value: Any) -> str | None:
    """A value as the audit keeps it. What is large is not looked at whole: it would be cut all the same."""
    if value is None or value == b"":
        return None
    if not isinstance(value, str | bytes):
        value = _as_json(value)
    if isinstance(value, bytes):
        value = _masked(value) if len(value) <= READ_WHOLE else value[: 4 * SHORT].decode("utf-8", "replace")
    kept = _without_secrets(value)
    return kept if len(kept) <= SHORT else f"{kept[: SHORT - 1]}…"


def _as_json(value: Any) -> bytes:
    """What is nested too deep, or is a number that no JSON has, is no reason to fail the change."""
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError as error:
        return f"what can't be written as JSON ({error})".encode()


def _masked(text: bytes) -> str:
    """JSON without the values of fields that are named like secrets; what is not JSON, or nested too deep, as it is."""
    if not foreign.is_json(text):
        return text.decode("utf-8", "replace")
    return orjson.dumps(mask(orjson.loads(text))).decode()


def _without_secrets(text: str) -> str:
    shown = _EMAIL.sub(r"\1***@\2", str(mask(text[: 4 * SHORT])))
    return _PHONE.sub(r"\1***\2", shown.replace("\x00", "�"))


def _told(entry: Entry) -> dict[str, Any]:
    return {"who": entry.who, "action": entry.action, "target": entry.target, "address": entry.address}
