"""The SQL of producing: add jobs, fire schedules, and take up messages that other programs wrote.

Adding n jobs is one statement, one round result, one commit, however many they are; a few if they are large.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from psycopg.errors import LockNotAvailable

from yamchi.clock import Millis
from yamchi.queues import foreign
from yamchi.queues.engines.pgmq.bounds import Micros
from yamchi.queues.engines.pgmq.connections import Connection
from yamchi.queues.engines.pgmq.rows import (
    OURS,
    SHIFT,
    envelope,
    instant,
    looked_up,
    micros,
    millis,
    moment,
    raised,
)
from yamchi.queues.engines.pgmq.schema import LOCKED_MILLIS, UNPREPARED
from yamchi.queues.engines.pgmq.tables import Tables
from yamchi.queues.records import NewJob

BATCH = 1_000
"""At most this many messages are taken up at a time, so that no transaction is long."""

STATEMENT_BYTES = 32_000_000
"""So much data is added by one statement: PostgreSQL reads 256 MB of JSON at once, and makes copies of it."""

# ── Adding ────────────────────────────────────────────────────────────────────────────────────────────────────────

# Ids are taken in sorted order, so that two batches with the same ids can't wait for each other; messages are numbered
# and written in the order they were given. IS TRUE makes PostgreSQL look the new ones up in a hash, not one by one.
# Messages of a batch are a microsecond apart, so that the index of `vt` alone keeps them in order.
_ADD = f"""
WITH given AS MATERIALIZED (
    SELECT n, nextval({{seq}}) AS msg_id, job->'message' AS message, job->'headers' AS headers, job->>'id' AS id,
        {moment("(job->>'run_at')::bigint")} AS run_at, coalesce((job->'headers'->>'priority')::int, 0) AS priority
    FROM jsonb_array_elements(%(jobs)s::jsonb) WITH ORDINALITY AS given(job, n)
), fresh AS (
    INSERT INTO yamchi.jobs (queue, id, msg_id) SELECT %(queue)s, id, msg_id FROM given ORDER BY id, n
    ON CONFLICT (queue, id) DO NOTHING RETURNING msg_id, id
), sent AS (
    INSERT INTO {{q}} (msg_id, vt, message, headers) OVERRIDING SYSTEM VALUE
    SELECT msg_id,
        CASE WHEN run_at > statement_timestamp() THEN run_at
        ELSE coalesce(run_at, statement_timestamp() + n * interval '1 microsecond') - priority {SHIFT} END,
        message,
        CASE WHEN run_at > statement_timestamp() AND priority > 0 THEN headers || '{{"rise": true}}' ELSE headers END
    FROM given WHERE (msg_id IN (SELECT msg_id FROM fresh)) IS TRUE ORDER BY n
)
SELECT n FROM given WHERE (msg_id IN (SELECT msg_id FROM fresh)) IS TRUE
"""

# One look for each id, whatever PostgreSQL believes of the tables' sizes: a subquery in place of a join.
# A job that another program took from pgmq's table is over as far as we know: its id is free.
_FORGET_TAKEN = """
DELETE FROM yamchi.jobs j WHERE j.queue = %(queue)s AND j.id = ANY(%(ids)s) AND j.ended IS NULL
AND (SELECT q.msg_id FROM {q} q WHERE q.msg_id = j.msg_id) IS NULL RETURNING j.id
"""

_TAKE = """
INSERT INTO yamchi.jobs (queue, id, msg_id) SELECT %(queue)s, id, nextval({seq}) FROM unnest(%(ids)s::text[]) AS given(id) ORDER BY id
ON CONFLICT (queue, id) DO NOTHING RETURNING id
"""
_LET_GO = "DELETE FROM yamchi.jobs WHERE queue = %(queue)s AND id = ANY(%(ids)s)"


def _fit_in_one(jobs: Sequence[NewJob]) -> bool:
    """Whether one statement can add all of these."""
    return sum(len(job.payload) for job in jobs) <= STATEMENT_BYTES


async def add_all(db: Connection, tables: Tables, jobs: Sequence[NewJob]) -> list[bool]:
    """Add jobs, all or none; which of them are new."""
    if _fit_in_one(jobs):
        return await add(db, tables, jobs)
    async with db.transaction():
        return await add(db, tables, jobs)


async def add(db: Connection, tables: Tables, jobs: Sequence[NewJob]) -> list[bool]:
    """The same within a transaction."""
    if _fit_in_one(jobs):
        return await _add_together(db, tables, jobs)
    await _take_ids(db, tables, jobs)
    return [is_new for part in _in_parts(jobs) for is_new in await _add_together(db, tables, part)]


async def _take_ids(db: Connection, tables: Tables, jobs: Sequence[NewJob]) -> None:
    """Until this transaction ends, whoever adds the same ids waits: each of several statements would take only its own in order."""
    given = {"queue": tables.queue, "ids": [job.id for job in jobs]}
    taken = await (await db.execute(tables.sql(_TAKE), given)).fetchall()
    await db.execute(_LET_GO, {"queue": tables.queue, "ids": [row[0] for row in taken]})


def _in_parts(jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    begin = size = 0
    for n, job in enumerate(jobs):
        if n > begin and size + len(job.payload) > STATEMENT_BYTES:
            yield jobs[begin:n]
            begin, size = n, 0
        size += len(job.payload)
    yield jobs[begin:]


async def _add_together(db: Connection, tables: Tables, jobs: Sequence[NewJob]) -> list[bool]:
    created = await _add(db, tables, jobs)
    if not all(created):
        refused = [job.id for job, is_new in zip(jobs, created, strict=True) if not is_new]
        cursor = await db.execute(tables.sql(_FORGET_TAKEN), {"queue": tables.queue, "ids": refused})
        if freed := {row[0] for row in await cursor.fetchall()}:
            again = [n for n, job in enumerate(jobs) if job.id in freed]
            for n, is_new in zip(again, await _add(db, tables, [jobs[n] for n in again]), strict=True):
                created[n] = is_new
    return created


async def _add(db: Connection, tables: Tables, jobs: Sequence[NewJob]) -> list[bool]:
    body = orjson.dumps([_message(job) for job in jobs]).decode()
    cursor = await db.execute(tables.sql(_ADD), {"queue": tables.queue, "jobs": body})
    created = [False] * len(jobs)
    for (n,) in await cursor.fetchall():
        created[n - 1] = True
    return created


def _message(job: NewJob) -> dict[str, Any]:
    return {
        "id": job.id,
        "message": orjson.Fragment(job.payload),
        "headers": envelope(job),
        "run_at": job.run_at,
    }


_FIRE = """
INSERT INTO yamchi.schedules VALUES (%(schedule)s, %(moment)s)
ON CONFLICT (name) DO UPDATE SET fired_at = excluded.fired_at WHERE schedules.fired_at < excluded.fired_at
RETURNING name
"""


async def fire(db: Connection, tables: Tables, schedule: str, due: Millis, job: NewJob) -> bool:
    async with db.transaction():
        fired = await db.execute(_FIRE, {"schedule": schedule, "moment": due})
        return await fired.fetchone() is not None and (await add(db, tables, [job]))[0]


# ── Messages of other programs, and urgent ones whose moment has come ─────────────────────────────────────────────

_NOT_OURS = "(headers ? 'yamchi_id') IS NOT TRUE AND (last_read_at IS NULL OR vt <= statement_timestamp())"
# They are looked for without a lock, and each is locked by its number: only so is the small index of the unprepared sure to be used.
_PREPARE = f"""
WITH foreigners AS MATERIALIZED (
    SELECT msg_id FROM {{q}} WHERE (SELECT set_config('lock_timeout', '{LOCKED_MILLIS}', true)) IS NOT NULL
    AND {UNPREPARED} AND {_NOT_OURS} AND vt >= %(since)s::timestamptz
    AND vt <= %(until)s::timestamptz ORDER BY vt
), found AS MATERIALIZED (
    SELECT one.* FROM foreigners, LATERAL (
        SELECT msg_id, message, enqueued_at FROM {{q}} WHERE msg_id = foreigners.msg_id AND {_NOT_OURS}
        LIMIT 1 FOR UPDATE SKIP LOCKED) AS one
    LIMIT {BATCH}
), named AS (
    SELECT msg_id, own IS NOT NULL AS is_own, coalesce(own, CASE WHEN EXISTS (
        SELECT FROM yamchi.jobs j WHERE j.queue = %(queue)s AND j.id = read.msg_id::text)
        THEN msg_id || '-' || {millis("enqueued_at")} ELSE msg_id::text END) AS id
    FROM (SELECT *, CASE WHEN jsonb_typeof(message->'job_id') = 'string' AND length(message->>'job_id') <= 255
        AND message->>'job_id' ~ '^[^[:space:]:]+$' THEN message->>'job_id' END AS own FROM found) AS read
), fresh AS (
    INSERT INTO yamchi.jobs (queue, id, msg_id) SELECT %(queue)s, id, msg_id FROM named ORDER BY id, msg_id
    ON CONFLICT (queue, id) DO NOTHING RETURNING id, msg_id
), adopted AS (
    UPDATE {{q}} q SET headers = (CASE WHEN jsonb_typeof(q.headers) = 'object' THEN q.headers ELSE '{{}}' END - {OURS})
        || jsonb_strip_nulls(jsonb_build_object('yamchi_id', fresh.id, 'name', CASE
            WHEN jsonb_typeof(q.headers->'name') = 'string' THEN left(q.headers->>'name', {foreign.LONGEST_NAME}) END))
    FROM fresh WHERE {looked_up("q.msg_id", "fresh.msg_id")}
), repeated AS (
    DELETE FROM {{q}} q USING named WHERE {looked_up("q.msg_id", "named.msg_id")}
    AND named.is_own AND NOT EXISTS (SELECT FROM fresh WHERE fresh.msg_id = named.msg_id)
), risen AS (
    UPDATE {{q}} q SET vt = {raised("q.vt", "q.headers")}, headers = q.headers - 'rise'
    WHERE q.msg_id = ANY(ARRAY(
        SELECT msg_id FROM {{q}} WHERE vt <= statement_timestamp() AND {UNPREPARED} AND headers ? 'rise'
        AND headers ? 'yamchi_id' AND last_read_at IS NULL AND vt >= %(since)s::timestamptz
        ORDER BY vt LIMIT {BATCH} FOR UPDATE SKIP LOCKED))
    RETURNING q.vt
)
SELECT {micros("vt")}, pg_notify('yamchi_wake', {{table}}) FROM risen
"""


async def prepare(
    db: Connection, tables: Tables, since: Micros | None = None, until: Micros | None = None
) -> list[Micros]:
    """Give messages of other programs an id (the same id again is the same job), and urgent jobs that are due their place;
    where those are now. Messages before a moment, or after another, may be left for later."""
    span = {"since": instant(since), "until": instant(until, "infinity")}
    try:
        risen = await db.execute(tables.sql(_PREPARE), {"queue": tables.queue, **span})
    except LockNotAvailable:
        return []  # they are there the next time, and what was claimed must not wait for them
    return [vt for vt, _ in await risen.fetchall()]


# ── What other programs took ──────────────────────────────────────────────────────────────────────────────────────

_PAGES = 100
"""So much of the table at a time, however many of its rows are dead."""

_TIDY = """
WITH forgotten AS (
    DELETE FROM yamchi.jobs j WHERE j.ctid >= %(begin)s::tid AND j.ctid < %(end)s::tid AND j.queue = %(queue)s
    AND j.ended IS NULL AND (SELECT q.msg_id FROM {q} q WHERE q.msg_id = j.msg_id) IS NULL
), aged AS (
    DELETE FROM yamchi.minutes WHERE queue = %(queue)s AND minute < statement_timestamp() - interval '7 days'
)
SELECT pg_relation_size('yamchi.jobs') / current_setting('block_size')::int
"""


async def tidy(db: Connection, tables: Tables, page: int) -> int:
    """Forget the ids of messages that other programs have deleted or archived, some pages at a time; where to go on."""
    reached = page + _PAGES
    span = {"begin": f"({page},0)", "end": f"({reached},0)"}
    row = await (await db.execute(tables.sql(_TIDY), {"queue": tables.queue, **span})).fetchone()
    return reached if row and reached < row[0] else 0
