"""Permits under a rate limit, shared by all workers: one row per key says when its next permit is."""

import sqlite3
from collections.abc import Sequence

from yamchi.clock import Millis
from yamchi.queues.engines.base import RateLimit

Db = sqlite3.Connection


def reserve(db: Db, queue: str, limit: RateLimit, keys: Sequence[str], now: Millis) -> list[Millis]:
    permits = []
    for key in keys:
        row = db.execute("SELECT next FROM turns WHERE queue = ? AND key = ?", (queue, key)).fetchone()
        permit, following = limit.take(row[0] if row else 0.0, now)
        db.execute("INSERT OR REPLACE INTO turns VALUES (?, ?, ?)", (queue, key, following))
        permits.append(permit)
    return permits


def refund(db: Db, queue: str, limit: RateLimit, key: str, permits: int) -> None:
    db.execute(
        "UPDATE turns SET next = next - ? WHERE queue = ? AND key = ?", (limit.spacing * permits, queue, key)
    )
