"""The SQL of management: look at jobs, change them by hand, workers, pauses, statistics."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from yamchi.clock import Millis
from yamchi.queues.engines.base import KEPT_PERMITS, Minute, Page, WorkerInfo
from yamchi.queues.engines.pgmq.adding import prepare
from yamchi.queues.engines.pgmq.bounds import Position
from yamchi.queues.engines.pgmq.connections import Connection
from yamchi.queues.engines.pgmq.rows import (
    COLUMNS,
    ENDED,
    NOTES,
    PENDING,
    SHIFT,
    clean_json,
    looked_up,
    millis,
    priority,
    record,
    row_of,
)
from yamchi.queues.engines.pgmq.tables import Tables
from yamchi.queues.engines.pgmq.working import trim
from yamchi.queues.options import JobOptions
from yamchi.queues.records import FINISHED, STATES, Claim, JobRecord, State, first_kept

Rows = list[tuple[Any, ...]]


async def ask(db: Connection, statement: str, values: Mapping[str, Any] | None = None) -> Rows:
    return await (await db.execute(statement, values)).fetchall()


_GIVEN = "given AS MATERIALIZED (SELECT DISTINCT %(queue)s::text AS queue, unnest(%(ids)s::text[]) AS id)"
_ITS_ROW, _ITS_MESSAGE = row_of("given"), looked_up("q.msg_id", "j.msg_id")

# ── Looking ───────────────────────────────────────────────────────────────────────────────────────────────────────

_GET = f"""
SELECT {COLUMNS} FROM (
    SELECT {PENDING}, j.logs FROM yamchi.jobs j JOIN {{q}} q ON {_ITS_MESSAGE}
    WHERE j.queue = %(queue)s AND j.id = %(id)s AND j.ended IS NULL
    UNION ALL
    SELECT {ENDED}, j.logs FROM yamchi.jobs j WHERE j.queue = %(queue)s AND j.id = %(id)s AND j.ended IS NOT NULL
) AS job
"""


async def get(db: Connection, tables: Tables, job_id: str) -> JobRecord | None:
    values = {"queue": tables.queue, "id": job_id}
    rows = await ask(db, tables.sql(_GET), values)
    if not rows:
        await prepare(db, tables)  # it may be another program's
        rows = await ask(db, tables.sql(_GET), values)
    return record(tables.queue, rows[0]) if rows else None


_IN_STATE: Mapping[State | None, tuple[str, str]] = {
    None: ("true", "msg_id DESC"),
    "waiting": ("q.last_read_at IS NULL AND q.vt <= statement_timestamp()", "q.vt, q.msg_id"),
    "delayed": ("q.last_read_at IS NULL AND q.vt > statement_timestamp()", "q.vt, q.msg_id"),
    "active": ("q.last_read_at IS NOT NULL", "q.vt, q.msg_id"),
}
_MATCH_PENDING = (
    "AND (strpos(coalesce(q.headers->>'yamchi_id', q.msg_id::text), %(search)s) > 0 "
    "OR q.headers->>'name' = %(search)s OR strpos(q.message::text, %(search)s) > 0)"
)
_MATCH_ENDED = "AND (strpos(j.id, %(search)s) > 0 OR j.headers->>'name' = %(search)s OR strpos(j.message::text, %(search)s) > 0)"


async def page(
    db: Connection, tables: Tables, state: State | None, search: str, offset: int, limit: int
) -> Page:
    values = {"queue": tables.queue, "state": state, "search": search, "offset": offset, "limit": limit}
    body, order = _listing(state, bool(search))
    columns = f"{COLUMNS}, msg_id, ended, vt"
    rows = await ask(
        db,
        tables.sql(
            f"SELECT {COLUMNS} FROM ({body}) AS job ({columns}) ORDER BY {order} OFFSET %(offset)s LIMIT %(limit)s"
        ),
        values,
    )
    if search:
        ((total,),) = await ask(db, tables.sql(f"SELECT count(*) FROM ({body}) AS job ({columns})"), values)
    else:
        kept = await counts(db, tables)
        total = kept[state] if state else sum(kept.values())
    return Page([record(tables.queue, row) for row in rows], total)


def _listing(state: State | None, has_search: bool) -> tuple[str, str]:
    """The jobs of a state, and their order: next first for those that wait, newest first for those that ended."""
    ended = (
        f"SELECT {ENDED}, NULL::text[], j.msg_id, j.ended, j.finished_at FROM yamchi.jobs j WHERE j.queue = %(queue)s "
        f"AND j.ended IS NOT NULL {_MATCH_ENDED if has_search else ''}"
    )
    if state in FINISHED:
        return f"{ended} AND j.state = %(state)s", "ended DESC"
    where, _ = _IN_STATE[state]
    pending = (
        f"SELECT {PENDING}, NULL::text[], q.msg_id, NULL::bigint, q.vt FROM {{q}} q "
        f"WHERE {where} {_MATCH_PENDING if has_search else ''}"
    )
    return (f"{pending} UNION ALL {ended}", "msg_id DESC") if state is None else (pending, "vt, msg_id")


_COUNTS = """
SELECT 'all', count(*) FROM {q}
UNION ALL SELECT 'active', count(*) FROM {q} WHERE last_read_at IS NOT NULL
UNION ALL SELECT 'delayed', count(*) FROM {q} WHERE vt > statement_timestamp() AND last_read_at IS NULL
UNION ALL SELECT state, count(*) FROM yamchi.jobs WHERE queue = %(queue)s AND ended IS NOT NULL GROUP BY state
"""


async def counts(db: Connection, tables: Tables) -> dict[State, int]:
    """Counted through indexes; what waits costs a look at each entry."""
    found: dict[str, int] = dict(await ask(db, tables.sql(_COUNTS), {"queue": tables.queue}))
    found["waiting"] = found["all"] - found["active"] - found["delayed"]
    return {state: found.get(state, 0) for state in STATES}


async def history(db: Connection, queue: str, minutes: int) -> list[Minute]:
    rows = await ask(
        db,
        f"SELECT {millis('minute')}, sum(completed)::bigint, sum(failed)::bigint FROM yamchi.minutes WHERE queue = %(queue)s "
        "AND minute >= statement_timestamp() - %(minutes)s * interval '1 minute' GROUP BY minute ORDER BY minute",
        {"queue": queue, "minutes": minutes},
    )
    return [Minute(*row) for row in rows]


# ── Changing ──────────────────────────────────────────────────────────────────────────────────────────────────────

_DROP_PENDING = f"""
WITH {_GIVEN}, gone AS (
    DELETE FROM {{q}} q USING given, yamchi.jobs j WHERE {_ITS_ROW} AND j.ended IS NULL
    AND {_ITS_MESSAGE} AND q.last_read_at IS NULL RETURNING j.id
)
DELETE FROM yamchi.jobs j USING given WHERE {_ITS_ROW} AND (j.ended IS NOT NULL OR j.id IN (SELECT id FROM gone)) RETURNING j.id
"""


async def remove(db: Connection, tables: Tables, job_ids: Sequence[str]) -> list[str]:
    await prepare(db, tables)
    rows = await ask(db, tables.sql(_DROP_PENDING), {"queue": tables.queue, "ids": list(job_ids)})
    return [row[0] for row in rows]


_CANCEL = f"""
WITH {_GIVEN}, gone AS (
    DELETE FROM {{q}} q USING given, yamchi.jobs j WHERE {_ITS_ROW} AND j.ended IS NULL
    AND {_ITS_MESSAGE} AND q.last_read_at IS NULL
    RETURNING j.queue, j.id, q.message, q.headers, q.read_ct, q.enqueued_at, q.vt
), ended AS (
    UPDATE yamchi.jobs j SET state = 'cancelled', ended = nextval('yamchi.ended'), finished_at = statement_timestamp(),
        run_at = gone.vt, enqueued_at = gone.enqueued_at, read_ct = gone.read_ct, message = gone.message, headers = gone.headers
    FROM gone WHERE {row_of("gone")} RETURNING j.id, gone.headers->>'options' AS options
), asked AS (
    UPDATE {{q}} q SET headers = q.headers || '{{"cancelling": true}}' FROM given, yamchi.jobs j
    WHERE {_ITS_ROW} AND j.ended IS NULL AND {_ITS_MESSAGE} AND q.last_read_at IS NOT NULL RETURNING j.id
)
SELECT id, 'cancelled', options FROM ended UNION ALL SELECT id, 'active', NULL FROM asked
"""


FORGET = f"WITH {_GIVEN} DELETE FROM yamchi.jobs j USING given WHERE {_ITS_ROW} AND j.ended IS NOT NULL"


async def cancel(
    db: Connection, tables: Tables, job_ids: Sequence[str], position: Position
) -> dict[str, State]:
    await prepare(db, tables)
    rows = await ask(db, tables.sql(_CANCEL), {"queue": tables.queue, "ids": list(job_ids)})
    options = {row[0]: JobOptions.decode(row[2]) for row in rows if row[1] == "cancelled"}
    if gone := [job_id for job_id, one in options.items() if not one.keep("cancelled")]:
        await db.execute(FORGET, {"queue": tables.queue, "ids": gone})
    if keep := first_kept(reversed(options.values()), "cancelled"):
        await trim(db, tables, "cancelled", keep, position)
    return {job_id: state for job_id, state, _ in rows}


async def cancelled(db: Connection, tables: Tables, claims: Sequence[Claim]) -> list[str]:
    rows = await ask(
        db,
        tables.sql("SELECT msg_id FROM {q} WHERE msg_id = ANY(%(keys)s) AND headers ? 'cancelling'"),
        {"keys": [held.key for held in claims]},
    )
    asked = {row[0] for row in rows}
    return [held.job.id for held in claims if held.key in asked]


_PROMOTE = f"""
WITH {_GIVEN} UPDATE {{q}} q SET headers = q.headers - 'rise',
    vt = statement_timestamp() - {priority("q.headers")} {SHIFT}
FROM given, yamchi.jobs j WHERE {_ITS_ROW} AND j.ended IS NULL AND {_ITS_MESSAGE}
AND q.last_read_at IS NULL AND q.vt > statement_timestamp() RETURNING j.id
"""


async def promote(db: Connection, tables: Tables, job_ids: Sequence[str]) -> list[str]:
    await prepare(db, tables)
    rows = await ask(db, tables.sql(_PROMOTE), {"queue": tables.queue, "ids": list(job_ids)})
    return [row[0] for row in rows]


_RETRY = f"""
WITH {_GIVEN}, found AS MATERIALIZED (
    SELECT j.id, j.message, j.headers - {NOTES} AS headers, j.enqueued_at FROM given, yamchi.jobs j
    WHERE {_ITS_ROW} AND j.ended IS NOT NULL ORDER BY j.id FOR UPDATE OF j
), sent AS (
    INSERT INTO {{q}} (vt, message, headers, enqueued_at)
    SELECT statement_timestamp() - {priority("headers")} {SHIFT}, message, headers, enqueued_at
    FROM found RETURNING %(queue)s::text AS queue, msg_id, headers->>'yamchi_id' AS id
), forgotten AS (
    DELETE FROM {{dlq}} WHERE headers->>'yamchi_id' IN (SELECT id FROM found)
)
UPDATE yamchi.jobs j SET msg_id = sent.msg_id, state = NULL, ended = NULL, finished_at = NULL, started_at = NULL,
    run_at = NULL, message = NULL, headers = NULL, result = NULL, reason = NULL, stack = NULL
FROM sent WHERE {row_of("sent")} RETURNING j.id
"""


async def retry(db: Connection, tables: Tables, job_ids: Sequence[str]) -> list[str]:
    rows = await ask(db, tables.sql(_RETRY), {"queue": tables.queue, "ids": list(job_ids)})
    return [row[0] for row in rows]


_UPDATE = f"""
WITH pending AS (
    UPDATE {{q}} q SET message = %(payload)s::jsonb FROM yamchi.jobs j WHERE j.queue = %(queue)s AND j.id = %(id)s
    AND j.ended IS NULL AND {_ITS_MESSAGE} AND q.last_read_at IS NULL RETURNING 1
), ended AS (
    UPDATE yamchi.jobs SET message = %(payload)s::jsonb WHERE queue = %(queue)s AND id = %(id)s AND ended IS NOT NULL
    RETURNING 1
)
SELECT * FROM pending UNION ALL SELECT * FROM ended
"""


async def update(db: Connection, tables: Tables, job_id: str, payload: bytes) -> bool:
    values = {"queue": tables.queue, "id": job_id, "payload": payload.decode()}
    await prepare(db, tables)
    return bool(await ask(db, tables.sql(_UPDATE), values))


async def progress(db: Connection, tables: Tables, held: Claim, value: bytes) -> bool:
    rows = await ask(
        db,
        tables.sql(
            "UPDATE {q} SET headers = headers || %(note)s::jsonb "
            "WHERE msg_id = %(key)s AND last_read_at = %(token)s::timestamptz RETURNING 1"
        ),
        {
            "note": orjson.dumps({"progress": orjson.Fragment(clean_json(value))}).decode(),
            "key": held.key,
            "token": held.token,
        },
    )
    return bool(rows)


async def log(db: Connection, queue: str, job_id: str, lines: Sequence[str]) -> None:
    await db.execute(
        "UPDATE yamchi.jobs SET logs = logs || %(lines)s::text[] WHERE queue = %(queue)s AND id = %(id)s",
        {"lines": [line.replace("\0", "") for line in lines], "queue": queue, "id": job_id},
    )


_CLEAN_ENDED = """
DELETE FROM yamchi.jobs WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM yamchi.jobs WHERE queue = %(queue)s AND state = %(state)s AND ended IS NOT NULL
    AND finished_at <= statement_timestamp() - %(age)s * interval '1 millisecond'
    ORDER BY ended LIMIT %(limit)s FOR UPDATE SKIP LOCKED)) RETURNING 1
"""
_CLEAN_PENDING = f"""
WITH gone AS (
    DELETE FROM {{q}} WHERE msg_id = ANY(ARRAY(
        SELECT q.msg_id FROM {{q}} q WHERE {{where}} AND q.enqueued_at <= statement_timestamp() - %(age)s * interval '1 millisecond'
        ORDER BY q.vt LIMIT %(limit)s FOR UPDATE SKIP LOCKED)) RETURNING %(queue)s::text AS queue, headers->>'yamchi_id' AS id
), forgotten AS (
    DELETE FROM yamchi.jobs j USING gone WHERE {row_of("gone")}
)
SELECT 1 FROM gone
"""


async def clean(db: Connection, tables: Tables, state: State, older_than: Millis, limit: int) -> int:
    values = {"queue": tables.queue, "state": state, "age": older_than, "limit": limit}
    if state in FINISHED:
        return len(await ask(db, _CLEAN_ENDED, values))
    where, _ = _IN_STATE[state]
    return len(await ask(db, tables.sql(_CLEAN_PENDING.replace("{where}", where)), values))


# ── Workers ───────────────────────────────────────────────────────────────────────────────────────────────────────


_HEARTBEAT = """
WITH gone AS (DELETE FROM yamchi.workers WHERE seen_at < %(forgotten)s AND id <> %(id)s),
used AS (DELETE FROM yamchi.turns WHERE next < %(permitted)s)
INSERT INTO yamchi.workers VALUES (%(id)s, %(seen_at)s, %(info)s) ON CONFLICT (id) DO UPDATE
SET seen_at = excluded.seen_at, info = excluded.info
"""


async def heartbeat(db: Connection, worker: WorkerInfo | str, forget_before: Millis) -> None:
    if isinstance(worker, str):
        await db.execute("DELETE FROM yamchi.workers WHERE id = %s", (worker,))
        return
    await db.execute(
        _HEARTBEAT,
        {
            "id": worker.id,
            "seen_at": worker.seen_at,
            "info": orjson.dumps(worker).decode(),
            "forgotten": forget_before,
            "permitted": worker.seen_at - KEPT_PERMITS,
        },
    )


async def workers(db: Connection, since: Millis) -> list[WorkerInfo]:
    cursor = await db.execute(
        "SELECT info::text FROM yamchi.workers WHERE seen_at >= %s ORDER BY id", (since,)
    )
    return [_worker(orjson.loads(info)) for (info,) in await cursor.fetchall()]


def _worker(info: dict[str, Any]) -> WorkerInfo:
    return WorkerInfo(**{**info, "queues": tuple(info["queues"]), "running": tuple(info["running"])})
