"""Looking at deliveries: the status of one, those of an event, one with its attempts, pages of all."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from sqlalchemy import Connection, FromClause, Row, Select, asc, bindparam, desc, select, union_all

from yamchi.clock import isoformat, isoformat_or_none
from yamchi.errors import UnknownJob
from yamchi.notifications.sending.statuses import Status
from yamchi.notifications.tables import delivery_attempts
from yamchi.notifications.tables import notification_delivery as table
from yamchi.storage.database import Database

_STATUSES = select(table.c.job_id, table.c.status).where(
    table.c.job_id.in_(bindparam("job_ids", expanding=True))
)


class DeliveryViews:
    """Reads the table, and changes nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def status(self, job_id: str) -> Status | None:
        return await self._database.get(_statuses, job_id)

    async def of_event(self, event_id: str) -> list[Row[Any]]:
        return (await self.of_events([event_id]))[event_id]

    async def of_events(self, event_ids: Sequence[str]) -> dict[str, list[Row[Any]]]:
        """The deliveries of each of these events, in one query."""
        query = select(table).where(table.c.event_id.in_(event_ids)).order_by(asc(table.c.job_id))
        found: dict[str, list[Row[Any]]] = {event_id: [] for event_id in event_ids}
        for row in await self._database.rows(query):
            found[row.event_id].append(row)
        return found

    async def get(self, job_id: str) -> dict[str, Any]:
        """One delivery with its attempts, for people and programs."""
        query = select(table).where(table.c.job_id == job_id)
        attempts = (
            select(delivery_attempts)
            .where(delivery_attempts.c.job_id == job_id)
            .order_by(asc(delivery_attempts.c.started_at))
        )

        def look(connection: Connection) -> tuple[Row[Any] | None, Sequence[Row[Any]]]:
            return connection.execute(query).first(), connection.execute(attempts).all()

        row, tries = await self._database.read(look)
        if row is None:
            raise UnknownJob(f"There is no notification {job_id!r}.")
        return {**shown(row), "job": row.job, "timeline": _timeline(row, tries)}

    async def find(self, *, offset: int = 0, limit: int = 50, **filters: str | None) -> list[dict[str, Any]]:
        """Deliveries by user_id, status, event_id or campaign_id, newest first."""
        query = newest({name: value for name, value in filters.items() if value is not None}, offset, limit)
        rows = await self._database.rows(query)
        return [shown(row) for row in rows]


def _statuses(connection: Connection, job_ids: Sequence[str]) -> Mapping[str, Status]:
    return dict(connection.execute(_STATUSES, {"job_ids": job_ids}).all())


def newest(filters: Mapping[str, str], offset: int, limit: int) -> Select[Any]:
    """A page of those that pass, newest first. Each status has its newest in an index, so that no list sorts the whole table."""
    if "user_id" in filters or "event_id" in filters:
        return _passing(filters).offset(offset).limit(limit)
    statuses = [filters["status"]] if "status" in filters else get_args(Status)
    of_each = [
        _passing({**filters, "status": status}).limit(offset + limit).subquery() for status in statuses
    ]
    found = union_all(*(select(one) for one in of_each)).subquery()
    return _sorted(select(found), found).offset(offset).limit(limit)


def _passing(filters: Mapping[str, str]) -> Select[Any]:
    columns = (column for column in table.c if column.name != "job")
    return _sorted(select(*columns).where(*(table.c[name] == filters[name] for name in filters)), table)


def _sorted(query: Select[Any], source: FromClause) -> Select[Any]:
    return query.order_by(desc(source.c.created_at), asc(source.c.job_id))


def shown(row: Row[Any]) -> dict[str, Any]:
    names = ("job_id", "channel", "template_code", "user_id", "event_id", "campaign_id", "status", "attempts")
    more = ("last_error", "provider_message_id", "variant")
    fields = {name: getattr(row, name) for name in (*names, *more)}
    for name in ("created_at", "updated_at", "sent_at", "due_at"):
        fields[name] = isoformat_or_none(getattr(row, name))
    return fields


def _timeline(row: Row[Any], tries: Sequence[Row[Any]]) -> list[dict[str, Any]]:
    begun: list[dict[str, Any]] = [{"at": isoformat(row.created_at), "what": "queued"}]
    tried = [
        {"at": isoformat(one.finished_at), "what": one.outcome, "attempt": one.attempt, "answer": one.answer}
        for one in tries
    ]
    return begun + tried
