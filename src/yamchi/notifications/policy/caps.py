"""Caps: at most so many messages of a category over a channel in any period of a given length, from all senders together.

Each message that passes is recorded with its job, so that a redelivery is not counted again, and with when it was last about to
go: what waited for its provider counts from then, and asks again if it waited for longer than the period. Counting locks the row
of the person, channel and category, so that two processes never count at once.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, delete, desc, select

from yamchi.clock import Clock, Millis
from yamchi.notifications.policy.context import SendContext
from yamchi.notifications.policy.model import LONGEST_CAP, Cap
from yamchi.notifications.tables import cap_turns, cap_uses, notification_delivery
from yamchi.storage.database import Database


class Caps:
    """The tables `cap_turns` and `cap_uses`. Costs a transaction, and only for messages that have a cap."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._lock = database.upsert(cap_turns, ["user_id", "channel", "category"], ["touched_at"])
        self._use = database.upsert(cap_uses, ["job_id"], ["used_at"])

    async def claim(self, context: SendContext, cap: Cap) -> Millis | None:
        """Count this message, if there may be one more; else when there may be."""
        return await self._database.write(lambda connection: self._claim(connection, context, cap))

    def _claim(self, connection: Connection, context: SendContext, cap: Cap) -> Millis | None:
        now, job_id = self._clock.now(), context.job.delivery_id
        key = {
            "user_id": str(context.job.user_id),
            "channel": context.channel.name,
            "category": context.category,
        }
        connection.execute(self._lock, {**key, "touched_at": now})
        is_recent = cap_uses.c.used_at > now - cap.per
        counted = select(cap_uses.c.used_at).where(is_recent, cap_uses.c.job_id == job_id)
        if not connection.execute(counted).first():
            uses = select(cap_uses.c.used_at).filter_by(**key).where(is_recent)
            newest = uses.order_by(desc(cap_uses.c.used_at)).limit(cap.most)
            recent: list[Millis] = list(connection.execute(newest).scalars())
            if len(recent) == cap.most:
                return recent[-1] + cap.per
        connection.execute(delete(cap_uses).filter_by(**key).where(cap_uses.c.used_at < now - LONGEST_CAP))
        connection.execute(self._use, {**key, "job_id": job_id, "used_at": now})
        return None

    def release(self, connection: Connection, job_ids: Sequence[str]) -> None:
        """Inside a transaction of the caller: these messages do not count, unless they were sent all the same."""
        delivery = notification_delivery.c
        sent = select(delivery.job_id).where(delivery.job_id.in_(job_ids) & (delivery.status == "SENT"))
        of_them = cap_uses.c.job_id.in_(job_ids)
        connection.execute(delete(cap_uses).where(of_them & cap_uses.c.job_id.not_in(sent)))
