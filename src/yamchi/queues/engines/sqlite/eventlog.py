"""Events for other processes on the same file: written while one of them listens, and kept for a while."""

import sqlite3
from collections.abc import Iterable

import orjson

from yamchi.clock import Millis
from yamchi.queues.engines.base import Event

Db = sqlite3.Connection

KEPT_EVENTS = 2_000
LISTENER_TTL: Millis = 30_000
"""Events are written for a listener that has announced itself within this time."""


def announce(db: Db, origin: str, now: Millis) -> None:
    """Note that this process listens, so that the others write events."""
    db.execute("INSERT OR REPLACE INTO listeners VALUES (?, ?)", (origin, now))


def write(db: Db, origin: str, events: Iterable[Event], now: Millis) -> None:
    """Write events if another process listens; else this costs one query."""
    listening = db.execute(
        "SELECT 1 FROM listeners WHERE origin <> ? AND seen_at > ?", (origin, now - LISTENER_TTL)
    )
    if not listening.fetchone():
        return
    body = orjson.dumps([(e.type, e.queue, e.job_id, e.name, e.value and e.value.decode()) for e in events])
    last = db.execute("INSERT INTO events (origin, body) VALUES (?, ?)", (origin, body)).lastrowid or 0
    db.execute("DELETE FROM events WHERE n < ?", (last - KEPT_EVENTS,))


def last(db: Db) -> int:
    """The number of the last events that were written."""
    return int(db.execute("SELECT coalesce(max(n), 0) FROM events").fetchone()[0])


def after(db: Db, last: int) -> list[tuple[int, str, bytes]]:
    """The entries after this number: each with its number, its process and its events."""
    return db.execute("SELECT n, origin, body FROM events WHERE n > ? ORDER BY n", (last,)).fetchall()


def decode(body: bytes) -> list[Event]:
    return [
        Event(kind, queue, id, name, value and value.encode())
        for kind, queue, id, name, value in orjson.loads(body)
    ]
