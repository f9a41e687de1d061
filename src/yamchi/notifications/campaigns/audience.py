"""The people of a campaign, window by window in the order of user ids, so that no process holds a million in memory.

The size of a filter's window counts people read, not people found: a filter that matches nobody costs many short queries,
not one long one that others would have to wait for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, select, true

from yamchi.notifications.campaigns.filters import compile_where
from yamchi.notifications.campaigns.model import Campaign
from yamchi.notifications.tables import campaign_people, notification_delivery, users
from yamchi.storage.database import Database

COUNTED_AT_ONCE = 20_000


@dataclass(frozen=True, slots=True)
class Person:
    """One of the audience, as far as fanning out needs to know."""

    user_id: str
    locale: str | None
    data: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """The people of a window, and the id it ends with; None when nobody is left."""

    people: list[Person]
    end: str | None


class Audience:
    """The people of a campaign: those that a filter finds, or those of its list."""

    def __init__(self, database: Database, campaign_id: str, where: Mapping[str, Any] | None) -> None:
        self._database = database
        self._campaign_id = campaign_id
        self._filter = None if where is None else compile_where(where, is_embedded=database.is_embedded)

    @classmethod
    def of(cls, database: Database, campaign: Campaign) -> "Audience":
        return cls(database, campaign.campaign_id, campaign.where)

    async def window(self, after: str | None, size: int) -> Window:
        """The next people after this id."""
        look = self._listed if self._filter is None else self._found
        return await self._database.read(lambda connection: look(connection, after, size))

    async def first(self) -> Person | None:
        """The first of them; None when there is nobody."""
        if self._filter is None:
            return next(iter((await self.window(None, 1)).people), None)
        end: str | None = None
        while True:
            found, end = await self._database.read(lambda c, after=end: self._first(c, after))  # type: ignore[misc]
            if found or end is None:
                return found

    async def count(self) -> int:
        """How many there are, in short looks."""
        total, end = 0, None
        while True:
            counted, end = await self._database.read(lambda c, after=end: self._count(c, after))  # type: ignore[misc]
            total += counted
            if end is None:
                return total

    async def fanned_out(self, after: str | None, end: str) -> list[Person]:
        """Those of a window who have their delivery, but may not be in the queue."""
        return await self._database.read(lambda connection: self._waiting(connection, after, end))

    # ── Looks ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _found(self, connection: Connection, after: str | None, size: int) -> Window:
        end = _last_of(connection, after, size)
        if end is None:
            return Window([], None)
        query = select(users.c.user_id, users.c.locale).where(
            _beyond(users.c.user_id, after), users.c.user_id <= end, self._condition
        )
        rows = connection.execute(query.order_by(users.c.user_id)).all()
        return Window([Person(row.user_id, row.locale) for row in rows], end)

    def _first(self, connection: Connection, after: str | None) -> tuple[Person | None, str | None]:
        """The first of a window, and the id it ends with; None when nobody is left."""
        end = _last_of(connection, after, COUNTED_AT_ONCE)
        if end is None:
            return None, None
        within = _beyond(users.c.user_id, after) & (users.c.user_id <= end)
        query = select(users.c.user_id, users.c.locale).where(within, self._condition)
        row = connection.execute(query.order_by(users.c.user_id).limit(1)).first()
        return (Person(row.user_id, row.locale) if row else None), end

    def _listed(self, connection: Connection, after: str | None, size: int) -> Window:
        listed = campaign_people.c
        query = (
            select(listed.user_id, users.c.locale, listed.data)
            .select_from(campaign_people.outerjoin(users, users.c.user_id == listed.user_id))
            .where(listed.campaign_id == self._campaign_id, _beyond(listed.user_id, after))
            .order_by(listed.user_id)
            .limit(size)
        )
        people = [Person(*row) for row in connection.execute(query)]
        return Window(people, people[-1].user_id if people else None)

    def _waiting(self, connection: Connection, after: str | None, end: str) -> list[Person]:
        delivery, listed = notification_delivery.c, campaign_people.c
        # Written so that the index by user is used: by campaign it would be a million rows.
        of_campaign = func.coalesce(delivery.campaign_id, "") == self._campaign_id
        on_list = and_(listed.campaign_id == self._campaign_id, listed.user_id == delivery.user_id)
        query = (
            select(delivery.user_id, users.c.locale, listed.data)
            .select_from(
                notification_delivery.outerjoin(users, users.c.user_id == delivery.user_id).outerjoin(
                    campaign_people, on_list
                )
            )
            .where(_beyond(delivery.user_id, after), delivery.user_id <= end)
            .where(of_campaign, delivery.status == "QUEUED")
        )
        return [Person(*row) for row in connection.execute(query)]

    def _count(self, connection: Connection, after: str | None) -> tuple[int, str | None]:
        if self._filter is None:
            listed = select(func.count()).where(campaign_people.c.campaign_id == self._campaign_id)
            return connection.execute(listed).scalar_one(), None
        end = _last_of(connection, after, COUNTED_AT_ONCE)
        if end is None:
            return 0, None
        query = select(func.count()).where(
            _beyond(users.c.user_id, after), users.c.user_id <= end, self._condition
        )
        return connection.execute(query).scalar_one(), end

    @property
    def _condition(self) -> ColumnElement[bool]:
        return true() if self._filter is None else self._filter


def _last_of(connection: Connection, after: str | None, size: int) -> str | None:
    """The last id of a window of all people; None when there is nobody in it."""
    ids = select(users.c.user_id).where(_beyond(users.c.user_id, after)).order_by(users.c.user_id)
    if end := connection.execute(ids.offset(size - 1).limit(1)).scalar():
        return str(end)
    left = select(func.max(users.c.user_id)).where(_beyond(users.c.user_id, after))
    last: str | None = connection.execute(left).scalar()
    return last


def _beyond(column: ColumnElement[Any], after: str | None) -> ColumnElement[bool]:
    return true() if after is None else column > after
