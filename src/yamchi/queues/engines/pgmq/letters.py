"""Dead letters: messages of the pgmq queue `<queue>_dlq`, which another program can read like any other queue."""

from collections.abc import Mapping, Sequence
from typing import Any

from yamchi.queues import foreign
from yamchi.queues.engines.base import LetterPage
from yamchi.queues.engines.pgmq.adding import add
from yamchi.queues.engines.pgmq.connections import Connection
from yamchi.queues.engines.pgmq.management import FORGET
from yamchi.queues.engines.pgmq.rows import compact, millis, read_headers, said
from yamchi.queues.engines.pgmq.tables import Tables
from yamchi.queues.records import DeadLetter, NewJob

_COLUMNS = f"msg_id, message::text, headers::text, {millis('enqueued_at')}"
_MATCH = "(strpos(headers->>'yamchi_id', %(search)s) > 0 OR strpos(headers->>'error', %(search)s) > 0 OR strpos(message::text, %(search)s) > 0)"


async def letters(db: Connection, tables: Tables, search: str, offset: int, limit: int) -> LetterPage:
    where = f"WHERE {_MATCH}" if search else ""
    values = {"search": search, "offset": offset, "limit": limit}
    listing = f"SELECT {_COLUMNS} FROM {{dlq}} {where} ORDER BY msg_id DESC OFFSET %(offset)s LIMIT %(limit)s"
    cursor = await db.execute(tables.sql(listing), values)
    found = [_letter(tables, row) for row in await cursor.fetchall()]
    counted = await (await db.execute(tables.sql(f"SELECT count(*) FROM {{dlq}} {where}"), values)).fetchone()
    return LetterPage(found, counted[0] if counted else 0)


async def letter(db: Connection, tables: Tables, letter_id: str) -> DeadLetter | None:
    cursor = await db.execute(
        tables.sql(
            f"SELECT {_COLUMNS} FROM {{dlq}} WHERE headers->>'yamchi_id' = %(id)s OR headers->>'yamchi_id' IS NULL AND msg_id::text = %(id)s"
        ),
        {"id": letter_id},
    )
    row = await cursor.fetchone()
    return _letter(tables, row) if row else None


def _letter(tables: Tables, row: tuple[Any, ...]) -> DeadLetter:
    msg_id, message, headers, enqueued = row
    notes = read_headers(headers)
    failed_at = foreign.moment(notes.get("failed_at")) or enqueued
    letter_id = said(notes, "yamchi_id") or str(msg_id)
    return DeadLetter(
        letter_id, tables.queue, said(notes, "name"), compact(message), said(notes, "error") or "", failed_at
    )


_PURGE = "DELETE FROM {dlq} WHERE headers->>'yamchi_id' = ANY(%(ids)s) RETURNING headers->>'yamchi_id'"


async def replay(db: Connection, tables: Tables, jobs: Mapping[str, NewJob]) -> list[str]:
    async with db.transaction():
        cursor = await db.execute(tables.sql(_PURGE), {"ids": list(jobs)})
        found = {row[0] for row in await cursor.fetchall()}
        replayed = [letter_id for letter_id in jobs if letter_id in found]
        revived = [jobs[letter_id] for letter_id in replayed]
        if revived:
            await db.execute(FORGET, {"queue": tables.queue, "ids": [job.id for job in revived]})
            await add(db, tables, revived)
    return replayed


async def purge(db: Connection, tables: Tables, letter_ids: Sequence[str] | None) -> int:
    if letter_ids is None:
        return (await db.execute(tables.sql("DELETE FROM {dlq}"))).rowcount
    return (await db.execute(tables.sql(_PURGE), {"ids": list(letter_ids)})).rowcount
