"""How many deliveries of a campaign are in which state. Every statement that moves deliveries also moves these numbers.

Looking costs a few rows, whatever the size of the campaign. Each process writes to a shard of its own (nearly always),
so that on PostgreSQL two processes do not wait for each other at one row.
"""

import secrets
from collections import Counter
from collections.abc import Mapping

from sqlalchemy import Connection, func, select

from yamchi.notifications.tables import campaign_counts
from yamchi.storage.database import Database

SHARDS = 16

Place = tuple[str, str, str]
"""Campaign, variant ("" without one), status."""

table = campaign_counts


class CampaignCounts:
    """The table `campaign_counts`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._shard = secrets.randbelow(SHARDS)
        new = database.insert(table)
        self._add = new.on_conflict_do_update(
            index_elements=["campaign_id", "variant", "status", "shard"],
            set_={"n": table.c.n + new.excluded.n},
        )

    def shift(self, connection: Connection, moves: Mapping[Place, int]) -> None:
        """Inside a transaction of the caller: so many more, or fewer, are in each place."""
        rows = [
            {"campaign_id": campaign, "variant": variant, "status": status, "shard": self._shard, "n": n}
            for (campaign, variant, status), n in sorted(moves.items())  # in one order: no deadlock
            if n
        ]
        if rows:
            connection.execute(self._add, rows)

    async def of(self, campaign_id: str) -> dict[str, Counter[str]]:
        """By variant, how many are in each state."""
        query = (
            select(table.c.variant, table.c.status, func.sum(table.c.n))
            .where(table.c.campaign_id == campaign_id)
            .group_by(table.c.variant, table.c.status)
        )
        rows = await self._database.rows(query)
        found: dict[str, Counter[str]] = {}
        for variant, status, n in rows:
            found.setdefault(variant, Counter())[status] = int(n)
        return found
