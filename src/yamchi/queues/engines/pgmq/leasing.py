"""The SQL of leases: renew them, and take up what was held for longer."""

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson

from yamchi.clock import Millis
from yamchi.queues.engines.base import stalled_verdict
from yamchi.queues.engines.pgmq.adding import BATCH, prepare
from yamchi.queues.engines.pgmq.bounds import Micros, Position
from yamchi.queues.engines.pgmq.connections import Connection
from yamchi.queues.engines.pgmq.rows import claim as read_claim
from yamchi.queues.engines.pgmq.rows import (
    instant,
    looked_up,
    micros,
    millis,
    read_headers,
    reads,
    said,
    still_held,
)
from yamchi.queues.engines.pgmq.tables import Tables
from yamchi.queues.engines.pgmq.working import ExchangeResult, ask, exchange
from yamchi.queues.records import Claim, Failed, JobRecord, RetryAt

_RENEW = f"""
WITH held AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(held)s::json) AS held(key bigint, token timestamptz)
)
UPDATE {{q}} q SET vt = statement_timestamp() + %(lease)s * interval '1 millisecond'
FROM held WHERE {looked_up("q.msg_id", "held.key")} AND {still_held("held.token")} RETURNING q.msg_id
"""
_STALLED = f"""
SELECT msg_id, {reads("read_ct")}, message::text, headers::text, {millis("enqueued_at")}, {millis("last_read_at")},
    last_read_at::text, {millis("statement_timestamp()")}
FROM {{q}} WHERE last_read_at IS NOT NULL AND vt >= %(since)s::timestamptz
AND vt <= statement_timestamp() AND headers ? 'yamchi_id' ORDER BY vt LIMIT {BATCH}
"""
_IS_STALLED = f"""
SELECT {micros("statement_timestamp()")}, EXISTS (
    SELECT FROM {{q}} WHERE last_read_at IS NOT NULL AND vt >= %(since)s::timestamptz
    AND vt <= statement_timestamp() AND headers ? 'yamchi_id')
"""
_LATE_LEASE: Micros = 2_000_000
"""A sweep that does not go over everything goes back this far. A lease that is committed even longer after its end is found by
the next one that does."""


async def renew(db: Connection, tables: Tables, claims: Sequence[Claim], lease: Millis) -> list[str]:
    held = orjson.dumps([{"key": one.key, "token": one.token} for one in claims]).decode()
    cursor = await db.execute(tables.sql(_RENEW), {"lease": lease, "held": held})
    renewed = {row[0] for row in await cursor.fetchall()}
    return [one.job.id for one in claims if one.key in renewed]


async def recover(db: Connection, tables: Tables, position: Position) -> list[tuple[JobRecord, bool]]:
    """Put back or end what was held for longer than its lease; each job with whether it has now failed."""
    sweep, now = position.stalled, asyncio.get_running_loop().time
    began, since = now(), sweep.begin(now())
    ((at, is_any),) = await ask(db, tables, _IS_STALLED, {"since": instant(since)})
    sweep.finish(since, None if is_any else at - _LATE_LEASE, began, now())
    if not is_any:
        return []
    async with db.transaction():
        rows = await ask(db, tables, _STALLED + " FOR UPDATE SKIP LOCKED", {"since": instant(since)})
        verdicts = [_verdict_on_stalled(tables, row) for row in rows]
        result = await exchange(db, tables, verdicts, 0, 0, "", position) if verdicts else ExchangeResult()
    for vt in result.put_back:
        position.bounds.lower(vt)  # again: only now can anybody see it
    return [
        (verdict.claim.job, isinstance(verdict, Failed))
        for verdict in verdicts
        if verdict.claim.key in result.settled
    ]


async def adopt(db: Connection, tables: Tables, position: Position) -> None:
    """Take up the messages of other programs, also those that no exchange has seen."""
    sweep, now = position.adopted, asyncio.get_running_loop().time
    began, since = now(), sweep.begin(now())
    for vt in await prepare(db, tables, since):
        position.bounds.lower(vt)
    sweep.finish(since, position.bounds.prepared, began, now())


def _verdict_on_stalled(tables: Tables, row: tuple[Any, ...]) -> Failed | RetryAt:
    *fields, token, now = row
    worker = said(read_headers(fields[3]), "worker") or ""
    held = read_claim(tables.queue, fields, token, fields[5], worker)
    held.job.run_at = now  # its priority is kept: this is when it is due again
    return stalled_verdict(held, now)
