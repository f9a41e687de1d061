"""The inbox: messages that stay until the person has read them, listed newest first by a cursor.

Every change is written together with its line in the feed, so that no open page is left with an old picture.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    bindparam,
    desc,
    false,
    func,
    literal,
    select,
    true,
    update,
)

from yamchi.clock import Clock, Millis, isoformat, isoformat_or_none
from yamchi.errors import InvalidJob, UnknownJob
from yamchi.http.base64url import as_base64url, from_base64url
from yamchi.http.cursors import Place, is_older
from yamchi.notifications.channels.base import Message
from yamchi.notifications.inbox.feed import Feed
from yamchi.notifications.tables import inbox as table
from yamchi.notifications.templates.model import ButtonRows
from yamchi.storage.database import Database

View = Literal["inbox", "unread", "archived"]
Action = Literal["read", "unread", "archive", "unarchive"]
Item = dict[str, Any]

QUERY_BATCH = 500
MOST_COUNTED = 1_000
"""Unread messages are counted up to here: nobody reads more, and neglect must not make counting slow."""

_UNREAD = table.c.read_at.is_(None) & ~table.c.is_archived
_VIEWS: Mapping[View, ColumnElement[bool]] = {
    "inbox": table.c.is_archived == false(),
    "unread": _UNREAD,
    "archived": table.c.is_archived == true(),
}
COUNTING = select(func.count()).select_from(
    select(literal(1))
    .where((table.c.user_id == bindparam("user_id")) & _UNREAD)
    .limit(MOST_COUNTED)
    .subquery()
)
_ITEMS = select(table).where(table.c.message_id.in_(bindparam("ids", expanding=True)))


LONGEST_PAGE = 2_000_000
"""Characters of all messages of a page: each may have a million."""


@dataclass(frozen=True, slots=True)
class InboxPage:
    """Some messages, and where to go on."""

    items: list[Item]
    next_cursor: str | None


class Inbox:
    """The table `inbox`."""

    def __init__(self, database: Database, feed: Feed, clock: Clock) -> None:
        self._database = database
        self._feed = feed
        self._clock = clock
        self._keep = database.insert(table).on_conflict_do_nothing()

    # ── Writing ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def add(self, message: Message) -> None:
        """Keep a message; one that is here already stays as it is."""
        row = _row(message, self._clock.now())
        await asyncio.gather(  # one transaction
            self._database.put(self._keep, row), self._feed.tell(message.to, message.job_id)
        )

    async def change(self, user_id: str, message_id: str, action: Action) -> Item:
        """Do this to a message of this person; the message as it is then."""
        changed: dict[Action, tuple[ColumnElement[bool], dict[str, Any]]] = {
            "read": (table.c.read_at.is_(None), {"read_at": self._clock.now()}),
            "unread": (table.c.read_at.is_not(None), {"read_at": None}),
            "archive": (~table.c.is_archived, {"is_archived": True}),
            "unarchive": (table.c.is_archived, {"is_archived": False}),
        }
        is_it = (table.c.message_id == message_id) & (table.c.user_id == user_id)
        is_open_to_it, values = changed[action]

        def write(connection: Connection) -> Row[Any] | None:
            change = update(table).where(is_it & is_open_to_it).values(**values)
            if connection.execute(change).rowcount:
                self._feed.note(connection, user_id, "item", message_id)
            return connection.execute(select(table).where(is_it)).first()

        row = await self._database.write(write)
        self._feed.wake()
        if row is None:
            raise UnknownJob(f"There is no message {message_id!r} in this inbox.")
        return shown(row)

    async def read_all(self, user_id: str) -> int:
        """Mark everything in the inbox as read; how much that was."""
        change = update(table).where((table.c.user_id == user_id) & _UNREAD)

        def write(connection: Connection) -> int:
            count = connection.execute(change.values(read_at=self._clock.now())).rowcount
            if count:
                self._feed.note(connection, user_id, "read_all")
            return count

        count = await self._database.write(write)
        self._feed.wake()
        return count

    # ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def page(
        self, user_id: str, *, view: View = "inbox", cursor: str | None = None, limit: int = 20
    ) -> InboxPage:
        """Messages, newest first, that come after the cursor; fewer than `limit` if they are long. What arrives meanwhile moves nothing."""
        query = listing(user_id, view, cursor, limit + 1)
        rows = await self._database.rows(query)
        kept = _fitting(rows[:limit])
        more = len(rows) > len(kept)
        return InboxPage([shown(row) for row in kept], _cursor(kept[-1]) if more else None)

    async def items(self, message_ids: Sequence[str]) -> dict[str, Item]:
        def look(connection: Connection) -> list[Row[Any]]:
            parts = (
                message_ids[start : start + QUERY_BATCH] for start in range(0, len(message_ids), QUERY_BATCH)
            )
            return [row for part in parts for row in connection.execute(_ITEMS, {"ids": part})]

        return {row.message_id: shown(row) for row in await self._database.read(look)}

    async def unread(self, user_ids: Iterable[str]) -> dict[str, int]:
        """How many messages each of these people has not read, up to `MOST_COUNTED`."""

        def count(connection: Connection) -> dict[str, int]:
            return {one: connection.execute(COUNTING, {"user_id": one}).scalar_one() for one in user_ids}

        return await self._database.read(count)


def _fitting(rows: Sequence[Row[Any]]) -> Sequence[Row[Any]]:
    """As many of the first as make a page that holds up nobody; one at least."""
    total = 0
    for number, row in enumerate(rows):
        total += len(row.text)
        if number and total > LONGEST_PAGE:
            return rows[:number]
    return rows


def shown(row: Row[Any]) -> Item:
    """A message for people and programs."""
    names = ("title", "text", "url", "buttons", "category", "template_code", "is_urgent", "is_archived")
    return {
        "id": row.message_id,
        **{name: getattr(row, name) for name in names},
        "created_at": isoformat(row.created_at),
        "read_at": isoformat_or_none(row.read_at),
    }


def links(buttons: ButtonRows) -> list[dict[str, str]]:
    """Buttons that open something; one that calls a bot back means nothing on a page."""
    return [{"text": one.text, "url": one.url} for row in buttons for one in row if one.url]


def _row(message: Message, now: Millis) -> dict[str, Any]:
    rendered = message.rendered
    return {
        "message_id": message.job_id,
        "user_id": message.to,
        "template_code": message.template_code,
        "category": message.category,
        "title": rendered.title or rendered.subject,
        "text": rendered.text,
        "url": rendered.url,
        "buttons": links(rendered.buttons),
        "is_urgent": message.is_urgent,
        "is_archived": False,
        "read_at": None,
        "created_at": now,
    }


def listing(user_id: str, view: View, cursor: str | None, limit: int) -> Select[Any]:
    """Costs as much for the thousandth page as for the first: an index has the order, and the cursor a place in it."""
    place = (table.c.created_at, table.c.message_id)
    query = select(table).where((table.c.user_id == user_id) & _VIEWS[view])
    if cursor is not None:
        query = query.where(is_older(*place, _read_cursor(cursor)))
    return query.order_by(*map(desc, place)).limit(limit)


def _cursor(row: Row[Any]) -> str:
    return as_base64url(f"{row.created_at}.{row.message_id}".encode())


def _read_cursor(cursor: str) -> Place:
    try:
        created_at, _, message_id = from_base64url(cursor).decode().partition(".")
        return int(created_at), message_id
    except ValueError as error:
        raise InvalidJob("The cursor is not one that this list gave: begin without one.") from error
