"""The deliveries of one person, pending and past, in pages, each with its reason.

Pages go by a cursor, so that new rows do not shift them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, asc, desc, func, literal, select, tuple_

from yamchi.clock import Clock, Millis, isoformat, isoformat_or_none
from yamchi.http.cursors import make_cursor, read_cursor
from yamchi.notifications.channels.base import Channel
from yamchi.notifications.channels.circuits import Circuits, circuit_name
from yamchi.notifications.schemas.notification_job import ALIASES, canonical_channel
from yamchi.notifications.sending.statuses import WAITING, is_being_sent, is_left
from yamchi.notifications.tables import notification_delivery as table
from yamchi.queues.queue import UNATTENDED_AFTER, Queue
from yamchi.storage.database import Database
from yamchi.storage.tables import Moment

_DUE: ColumnElement[Millis] = func.coalesce(table.c.due_at, table.c.created_at, type_=Moment)
_SHOWN = ("job_id", "channel", "template_code", "status", "attempts", "event_id", "campaign_id")


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Some deliveries, and where to go on."""

    items: list[dict[str, Any]]
    next_cursor: str | None


class History:
    """The table `notification_delivery`, by person."""

    def __init__(
        self,
        database: Database,
        queue: Queue,
        channels: Mapping[str, Channel],
        circuits: Circuits,
        clock: Clock,
    ) -> None:
        self._database = database
        self._queue = queue
        self._channels = channels
        self._circuits = circuits
        self._clock = clock

    async def pending(self, user_id: str, cursor: str | None = None, limit: int = 50) -> HistoryPage:
        """What is still to come, soonest first. No `when` means: as soon as somebody is free to send it."""
        place = (_DUE, table.c.job_id)
        query = select(table, _DUE.label("due")).where((table.c.user_id == user_id) & self._is_to_come())
        if cursor is not None:
            query = query.where(tuple_(*place) > _tuple(cursor))
        rows = await self._database.rows(query.order_by(*map(asc, place)).limit(limit + 1))
        page = _page(rows, limit, "due", lambda row: row.due_at)
        await self._explain(page, [row.due for row in rows])
        return page

    async def _explain(self, page: HistoryPage, due: Sequence[Millis]) -> None:
        """What is due and says no reason of its own may wait for a provider that is down, or for a worker that is not there."""
        now = self._clock.now()
        ours = zip(page.items, due, strict=False)
        silent = [(item, moment) for item, moment in ours if not item["why"] and moment <= now]
        if not silent:
            return
        down = {one.name: one.waits for one in await self._circuits.all() if one.is_open}
        for item, _ in silent:
            item["why"] = down.get(self._circuit_of(item["channel"]))
        late = [item for item, moment in silent if not item["why"] and moment <= now - UNATTENDED_AFTER]
        if late and (reason := await self._queue.unattended()):
            for item in late:
                item["why"] = reason

    def _circuit_of(self, name: str) -> str:
        channel = self._channels.get(canonical_channel(name))
        return circuit_name(channel.name, channel.provider) if channel else ""

    async def past(self, user_id: str, cursor: str | None = None, limit: int = 50) -> HistoryPage:
        """What is over, newest first: sent, failed, skipped, or left to a person, and why."""
        place = (table.c.created_at, table.c.job_id)
        query = select(table).where((table.c.user_id == user_id) & ~self._is_to_come())
        if cursor is not None:
            query = query.where(tuple_(*place) < _tuple(cursor))
        rows = await self._database.rows(query.order_by(*map(desc, place)).limit(limit + 1))
        return _page(rows, limit, "created_at", lambda row: row.sent_at or row.updated_at)

    def _is_to_come(self) -> ColumnElement[bool]:
        """What nobody knows the answer to is sent again only where twice does no harm, and while its job is there."""
        resent = [name for name in (*self._channels, *ALIASES) if self._resends(name)]
        again = (table.c.status == "UNKNOWN") & table.c.channel.in_(resent) & ~is_left()
        return table.c.status.in_(WAITING) | is_being_sent() | again

    def _resends(self, name: str) -> bool:
        channel = self._channels.get(canonical_channel(name))
        return channel is not None and channel.resends_unknown


def _tuple(cursor: str) -> Any:
    moment, names = read_cursor(cursor)
    return tuple_(literal(moment, Moment), *map(literal, names))


def _page(rows: Sequence[Row[Any]], limit: int, ordered_by: str, when: Any) -> HistoryPage:
    shown = [_shown(row, when(row)) for row in rows[:limit]]
    if len(rows) <= limit:
        return HistoryPage(shown, None)
    last = rows[limit - 1]
    return HistoryPage(shown, make_cursor(getattr(last, ordered_by), last.job_id))


def _shown(row: Row[Any], when: Millis | None) -> dict[str, Any]:
    fields = {name: getattr(row, name) for name in _SHOWN}
    moments = {"when": isoformat_or_none(when), "created_at": isoformat(row.created_at)}
    return {**fields, **moments, "why": row.last_error}
