"""Messages that are sent in several parts: to each of a person's browsers, or as a text too long for one message.

Each part that has arrived is recorded, so that a retry sends only the others.
"""

from collections.abc import Mapping

from sqlalchemy import delete, select

from yamchi.clock import Clock, Millis
from yamchi.notifications.tables import delivery_parts
from yamchi.storage.database import Database

RETENTION: Millis = 30 * 86_400_000
"""Longer than any message is retried."""

SWEEP_EVERY: Millis = 3_600_000


class Parts:
    """The table `delivery_parts`. A message of one part has no row in it."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._swept_at: Millis = 0
        self._note = database.insert(delivery_parts).on_conflict_do_nothing()

    async def arrived(self, job_id: str) -> Mapping[str, str | None]:
        """The parts of this job that have arrived, each with the provider's answer."""
        columns = (delivery_parts.c.part, delivery_parts.c.answer)
        query = select(*columns).where(delivery_parts.c.job_id == job_id)
        rows = await self._database.rows(query)
        return {row.part: row.answer for row in rows}

    async def note(self, job_id: str, part: str, answer: str | None) -> None:
        now = self._clock.now()
        row = {"job_id": job_id, "part": part, "answer": answer, "arrived_at": now}
        await self._database.put(self._note, row)
        if now - self._swept_at >= SWEEP_EVERY:
            self._swept_at = now
            old = delete(delivery_parts).where(delivery_parts.c.arrived_at < now - RETENTION)
            await self._database.execute(old)
