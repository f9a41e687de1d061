"""Suppressions: addresses that reach nobody, or must not be written to. The next message to one is not even tried.

They are fed by permanent failures (no such mailbox, the bot is blocked) and by hand, and taken away by hand.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, desc, literal, select, tuple_

from yamchi.clock import Clock, Millis, isoformat
from yamchi.errors import UnknownJob
from yamchi.fields import lower_domain
from yamchi.notifications.tables import suppressions as table
from yamchi.storage.database import Database
from yamchi.storage.tables import Moment

Place = tuple[str, str]
"""A channel and an address."""


class Suppressions:
    """The table `suppressions`, looked up in batches."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._add = database.insert(table).on_conflict_do_nothing()

    async def add(
        self,
        channel: str,
        address: str,
        reason: str,
        *,
        user_id: str | None = None,
        job_id: str | None = None,
    ) -> None:
        """Send nothing to this address from now on. An older reason stays."""
        channel, address = _place(channel, address)
        row = {"channel": channel, "address": address, "reason": reason, "user_id": user_id, "job_id": job_id}
        await self._database.put(self._add, row | {"created_at": self._clock.now()})

    async def remove(self, channel: str, address: str) -> None:
        given = {address, _place(channel, address)[1]}  # as it may have been kept before
        gone = delete(table).where(table.c.address.in_(given) & (table.c.channel == channel))
        if not await self._database.execute(gone):
            raise UnknownJob(f"{address} is not suppressed on the channel {channel}.")

    async def reason(self, channel: str, address: str) -> str | None:
        """Why nothing goes to this address; None if it may."""
        return await self._database.get(_reasons, _place(channel, address))

    async def list(
        self,
        *,
        channel: str | None = None,
        after: tuple[Millis, Sequence[str]] | None = None,
        limit: int = 50,
    ) -> Sequence[Row[Any]]:
        """Newest first, from the one after `after` (its moment; its channel and address)."""
        order = (desc(table.c.created_at), desc(table.c.channel), desc(table.c.address))
        query = select(table).order_by(*order).limit(limit)
        if channel is not None:
            query = query.where(table.c.channel == channel)
        if after is not None:
            query = query.where(_before(*after))
        return await self._database.rows(query)


def _reasons(connection: Connection, places: Sequence[Place]) -> Mapping[Place, str]:
    pairs = [(address, channel) for channel, address in places]
    query = select(table.c.channel, table.c.address, table.c.reason)
    rows = connection.execute(query.where(tuple_(table.c.address, table.c.channel).in_(pairs)))
    return {(row.channel, row.address): row.reason for row in rows}


def _place(channel: str, address: str) -> Place:
    return channel, lower_domain(address) if channel == "email" else address


def _before(moment: Millis, place: Sequence[str]) -> Any:
    columns = (table.c.created_at, table.c.channel, table.c.address)
    return tuple_(*columns) < tuple_(literal(moment, Moment), *map(literal, place))


def shown(row: Row[Any]) -> dict[str, Any]:
    names = ("channel", "address", "reason", "user_id", "job_id")
    return {name: getattr(row, name) for name in names} | {"created_at": isoformat(row.created_at)}
