"""Permits under a rate limit, shared by all workers: one row per key says when its next permit is."""

from collections import Counter
from collections.abc import Sequence

import orjson

from yamchi.clock import Millis
from yamchi.queues.engines.base import RateLimit
from yamchi.queues.engines.pgmq.connections import Connection
from yamchi.queues.engines.pgmq.rows import millis

_RESERVE = f"""
INSERT INTO yamchi.turns AS t SELECT %(queue)s, key, {millis("statement_timestamp()")} - %(slack)s + taken * %(spacing)s
FROM json_to_recordset(%(keys)s::json) AS asked(key text, taken integer) ORDER BY key
ON CONFLICT (queue, key) DO UPDATE SET next = greatest(t.next, {millis("statement_timestamp()")} - %(slack)s)
    + (excluded.next - {millis("statement_timestamp()")} + %(slack)s)
RETURNING key, next, {millis("statement_timestamp()")}
"""


async def reserve(db: Connection, queue: str, limit: RateLimit, keys: Sequence[str]) -> list[Millis]:
    asked = Counter(keys)
    cursor = await db.execute(
        _RESERVE,
        {
            "queue": queue,
            "slack": limit.slack,
            "spacing": limit.spacing,
            "keys": orjson.dumps([{"key": key, "taken": taken} for key, taken in asked.items()]).decode(),
        },
    )
    begin = {key: (end - asked[key] * limit.spacing, now) for key, end, now in await cursor.fetchall()}
    permits = []
    for key in keys:
        start, now = begin[key]
        permits.append(max(round(start), now))
        begin[key] = (start + limit.spacing, now)
    return permits


async def refund(db: Connection, queue: str, limit: RateLimit, key: str, permits: int) -> None:
    await db.execute(
        "UPDATE yamchi.turns SET next = next - %(back)s WHERE queue = %(queue)s AND key = %(key)s",
        {"back": limit.spacing * permits, "queue": queue, "key": key},
    )
