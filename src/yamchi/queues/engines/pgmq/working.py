"""The SQL of working: settle, claim, renew, recover.

Cost of an exchange of n completed jobs for n new ones: one statement, one round trip, one commit. Of each job's rows pgmq's is
updated (claim) and deleted (end), ours is updated (end) and deleted (trimmed). Verdicts that put jobs back, or that end them
badly, cost a few statements more in the same transaction.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from yamchi.clock import Millis
from yamchi.queues.engines.base import stalled_verdict
from yamchi.queues.engines.pgmq.adding import BATCH, tend
from yamchi.queues.engines.pgmq.connections import Connection
from yamchi.queues.engines.pgmq.rows import SHIFT, clean, clean_json, millis, moment
from yamchi.queues.engines.pgmq.rows import claim as read_claim
from yamchi.queues.engines.pgmq.schema import UNTENDED
from yamchi.queues.engines.pgmq.tables import Tables
from yamchi.queues.job import (
    Cancelled,
    Claim,
    Completed,
    Expired,
    Failed,
    JobRecord,
    Released,
    RetryAt,
    Verdict,
)

# ── Settling ──────────────────────────────────────────────────────────────────────────────────────────────────────

# One process at a time trims, and the others do not wait for it.
_ENDING = """
said AS (
    SELECT * FROM json_to_recordset(%(verdicts)s::json) AS said(
        key bigint, token timestamptz, state text, result json, reason text, stack text, keep boolean,
        letter json, failed_at bigint)
), ended AS (
    DELETE FROM {q} q USING said WHERE q.msg_id = said.key AND q.last_read_at = said.token
    RETURNING q.msg_id, q.read_ct, q.enqueued_at, q.last_read_at, q.message, q.headers, q.headers->>'yamchi_id' AS id,
        said.state, said.result, said.reason, said.stack, said.keep, said.letter, said.failed_at
), kept AS (
    UPDATE yamchi.jobs j SET state = e.state, ended = nextval('yamchi.ended'), finished_at = statement_timestamp(),
        started_at = e.last_read_at, run_at = e.last_read_at, enqueued_at = e.enqueued_at, read_ct = e.read_ct,
        message = e.message, headers = e.headers, result = e.result, reason = e.reason, stack = e.stack
    FROM ended e WHERE j.queue = %(queue)s AND j.id = e.id AND e.keep
), dropped AS (
    DELETE FROM yamchi.jobs j USING ended e WHERE j.queue = %(queue)s AND j.id = e.id AND NOT e.keep
), trimmed AS (
    DELETE FROM yamchi.jobs WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM yamchi.jobs WHERE queue = %(queue)s AND state = 'completed' AND ended <= (
            SELECT ended FROM yamchi.jobs WHERE queue = %(queue)s AND state = 'completed' AND ended IS NOT NULL
            AND (SELECT pg_try_advisory_xact_lock(hashtext(%(queue)s), 1))
            ORDER BY ended DESC OFFSET %(spared)s LIMIT 1)
        LIMIT 1000))
), noted AS (
    INSERT INTO yamchi.minutes AS m
    SELECT %(queue)s, date_trunc('minute', statement_timestamp()), pg_backend_pid(), done, broken FROM (
        SELECT count(*) FILTER (WHERE state = 'completed') AS done, count(*) FILTER (WHERE state = 'failed') AS broken
        FROM ended) AS sums WHERE done + broken > 0
    ON CONFLICT (queue, minute, backend) DO UPDATE
    SET completed = m.completed + excluded.completed, failed = m.failed + excluded.failed
)"""

# Dead letters go in with the verdicts that cause them; a job has one, so an older one makes way.
_LETTERS = """
replaced AS (
    DELETE FROM {dlq} d USING ended e WHERE e.letter IS NOT NULL AND d.headers->>'yamchi_id' = e.id
), letters AS (
    INSERT INTO {dlq} (vt, message, headers) SELECT statement_timestamp(), e.letter::jsonb, jsonb_build_object(
        'yamchi_id', e.id, 'name', e.headers->>'name', 'error', e.reason, 'failed_at', e.failed_at)
    FROM ended e WHERE e.letter IS NOT NULL
)"""

_TAKING = """
picked AS MATERIALIZED (
    SELECT msg_id, vt FROM {q} WHERE vt <= statement_timestamp() AND last_read_at IS NULL AND headers ? 'yamchi_id'
    AND NOT (SELECT paused FROM yamchi.queues WHERE name = %(queue)s)
    ORDER BY vt LIMIT %(want)s FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE {q} q SET vt = statement_timestamp() + %(lease)s * interval '1 millisecond',
        last_read_at = statement_timestamp(), read_ct = q.read_ct + 1, headers = q.headers || %(worker)s::jsonb
    FROM picked WHERE q.msg_id = picked.msg_id
    RETURNING q.msg_id, q.read_ct, q.message, q.headers, q.enqueued_at, picked.vt
)"""

_CLAIMS = f"""
SELECT msg_id, (SELECT statement_timestamp()::text), read_ct, message::text, headers::text, {millis("enqueued_at")},
    {millis("vt")}, (SELECT {millis("statement_timestamp()")}) FROM taken
"""
# One row more, without a number, says that messages wait to be tended.
_NEEDS_TENDING = f"""
UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
WHERE EXISTS (SELECT FROM {{q}} WHERE vt <= statement_timestamp() AND {UNTENDED})
"""
_SETTLED = "UNION ALL SELECT msg_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM ended"

_SETTLE_AND_TAKE = f"WITH {_ENDING}, {_TAKING} {_CLAIMS} {_NEEDS_TENDING} {_SETTLED}"
_SETTLE = f"WITH {_ENDING}, {_LETTERS} SELECT msg_id FROM ended"
_TAKE = f"WITH {_TAKING} {_CLAIMS} {_NEEDS_TENDING}"

# A job that somebody asked to stop does not go back to the queue, whatever its verdict: the first statement takes those.
_STOP = f"""
WITH {_ENDING.replace("q.last_read_at = said.token", "q.last_read_at = said.token AND q.headers ? 'cancelling'")}
SELECT msg_id FROM ended
"""
_PUT_BACK = f"""
WITH said AS (
    SELECT * FROM json_to_recordset(%(verdicts)s::json) AS said(
        key bigint, token timestamptz, due bigint, back integer, notes json)
)
UPDATE {{q}} q SET last_read_at = NULL, read_ct = q.read_ct - said.back,
    vt = CASE WHEN {moment("said.due")} > statement_timestamp() THEN {moment("said.due")}
        ELSE {moment("said.due")} - coalesce((q.headers->>'priority')::int, 0) {SHIFT} END,
    headers = ((q.headers - 'slotted' - 'rise' - 'worker') || said.notes::jsonb) ||
        CASE WHEN q.headers ? 'priority' AND {moment("said.due")} > statement_timestamp() THEN '{{"rise": true}}'::jsonb
        ELSE '{{}}'::jsonb END
FROM said WHERE q.msg_id = said.key AND q.last_read_at = said.token AND NOT q.headers ? 'cancelling'
RETURNING q.msg_id, pg_notify('yamchi_wake', {{table}})
"""
_TRIM = """
DELETE FROM yamchi.jobs WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM yamchi.jobs WHERE queue = %(queue)s AND state = %(state)s AND ended <= (
        SELECT ended FROM yamchi.jobs WHERE queue = %(queue)s AND state = %(state)s AND ended IS NOT NULL
        ORDER BY ended DESC OFFSET %(keep)s LIMIT 1)
    LIMIT 1000 FOR UPDATE SKIP LOCKED)) RETURNING 1
"""


class Trip:
    """What an exchange brought: numbers of the messages settled, new claims, and whether messages wait to be tended."""

    __slots__ = ("claims", "settled", "untended")

    def __init__(self) -> None:
        self.settled: set[int] = set()
        self.claims: list[Claim] = []
        self.untended = False

    def read(self, tables: Tables, rows: Sequence[tuple[Any, ...]], worker: str) -> None:
        for row in rows:
            if row[0] is None:
                self.untended = True
            elif row[1] is None:
                self.settled.add(row[0])
            else:
                self.claims.append(read_claim(tables.queue, row, worker))
        self.claims.sort(key=_turn)  # RETURNING promises no order


def _turn(held: Claim) -> tuple[int, int, int]:
    return -held.job.priority, held.job.run_at, held.key


async def exchange(
    db: Connection, tables: Tables, verdicts: Sequence[Verdict], want: int, lease: Millis, worker: str
) -> Trip:
    trip = Trip()
    taking = {"want": want, "lease": lease, "worker": orjson.dumps({"worker": worker}).decode()}
    if not verdicts:
        trip.read(tables, await _ask(db, tables, _TAKE, taking), worker)
    elif want and all(type(verdict) is Completed for verdict in verdicts):
        trip.read(tables, await _ask(db, tables, _SETTLE_AND_TAKE, taking | _endings(verdicts)), worker)
    else:
        async with db.transaction():
            await _put_back(db, tables, verdicts, trip)
            await _end(db, tables, verdicts, trip)
            if want:
                trip.read(tables, await _ask(db, tables, _TAKE, taking), worker)
    return trip


async def _ask(
    db: Connection, tables: Tables, template: str, values: dict[str, Any]
) -> list[tuple[Any, ...]]:
    values["queue"] = tables.queue
    return await (await db.execute(tables.sql(template), values)).fetchall()


async def _end(db: Connection, tables: Tables, verdicts: Sequence[Verdict], trip: Trip) -> None:
    ending = [verdict for verdict in verdicts if not isinstance(verdict, RetryAt | Released)]
    if ending:
        trip.settled.update(row[0] for row in await _ask(db, tables, _SETTLE, _endings(ending)))
        await _trim(db, tables, ending)


def _endings(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The verdicts as `_ENDING` reads them, and how many completed jobs of before are spared."""
    keep = verdicts[-1].claim.job.options.keep_completed
    rows: list[dict[str, Any]] = []
    room = keep
    for verdict in reversed(verdicts):
        row = _ending(verdict)
        if row["state"] == "completed":
            row["keep"] = room > 0 and verdict.claim.job.options.keep_completed > 0
            room -= row["keep"]
        rows.append(row)
    rows.reverse()
    return {"verdicts": orjson.dumps(rows).decode(), "spared": max(room, 0)}


def _ending(verdict: Verdict) -> dict[str, Any]:
    held = verdict.claim
    row: dict[str, Any] = {"key": held.key, "token": held.token, "state": "cancelled", "keep": True}
    match verdict:
        case Completed(result=result):
            row["state"] = "completed"
            if result is not None:
                row["result"] = orjson.Fragment(clean_json(result))
        case Failed(error=error, letter=letter, stacktrace=stack):
            row |= {"state": "failed", "reason": clean(error), "stack": clean(stack)}
            row |= {"letter": orjson.Fragment(clean_json(letter.body)), "failed_at": letter.failed_at}
        case Expired():
            row["state"] = "expired"
        case RetryAt(error=error, stacktrace=stack):
            row |= {"reason": clean(error), "stack": clean(stack)}
        case Released(reason=reason):
            row["reason"] = clean(reason)
    return row


async def _put_back(db: Connection, tables: Tables, verdicts: Sequence[Verdict], trip: Trip) -> None:
    back = [verdict for verdict in verdicts if isinstance(verdict, RetryAt | Released)]
    if not back:
        return
    returning = {"verdicts": orjson.dumps([_return(verdict) for verdict in back]).decode()}
    for statement, values in ((_STOP, _endings(back)), (_PUT_BACK, returning)):
        trip.settled.update(row[0] for row in await _ask(db, tables, statement, values))


def _return(verdict: RetryAt | Released) -> dict[str, Any]:
    held = verdict.claim
    if isinstance(verdict, RetryAt):
        due, back = verdict.moment, 0
        notes: dict[str, Any] = {"reason": clean(verdict.error), "stack": clean(verdict.stacktrace)}
    else:
        due, back = verdict.until or held.job.run_at, 1
        notes = {"reason": clean(verdict.reason), "slotted": verdict.slotted or None}
    kept = {name: note for name, note in notes.items() if note is not None}
    return {"key": held.key, "token": held.token, "due": due, "back": back, "notes": kept}


async def _trim(db: Connection, tables: Tables, verdicts: Sequence[Verdict]) -> None:
    keep = verdicts[-1].claim.job.options.keep_failed
    kinds = {type(verdict) for verdict in verdicts}
    for kind, state in ((Failed, "failed"), (Expired, "expired"), (Cancelled, "cancelled")):
        if kind in kinds:
            await _ask(db, tables, _TRIM, {"state": state, "keep": keep})


async def trim_completed(db: Connection, tables: Tables, keep: int) -> None:
    """What exchanges that met while trimming left over."""
    await _ask(db, tables, _TRIM, {"state": "completed", "keep": keep})


# ── Leases ────────────────────────────────────────────────────────────────────────────────────────────────────────

_RENEW = """
UPDATE {q} q SET vt = statement_timestamp() + %(lease)s * interval '1 millisecond'
FROM json_to_recordset(%(held)s::json) AS held(key bigint, token timestamptz)
WHERE q.msg_id = held.key AND q.last_read_at = held.token RETURNING q.msg_id
"""
_STALLED = f"""
SELECT msg_id, last_read_at::text, read_ct, message::text, headers::text, {millis("enqueued_at")},
    {millis("last_read_at")}, {millis("last_read_at")}, {millis("statement_timestamp()")}
FROM {{q}} WHERE last_read_at IS NOT NULL AND vt <= statement_timestamp() AND headers ? 'yamchi_id' ORDER BY vt LIMIT {BATCH}
"""


async def renew(db: Connection, tables: Tables, claims: Sequence[Claim], lease: Millis) -> list[str]:
    held = orjson.dumps([{"key": one.key, "token": one.token} for one in claims]).decode()
    cursor = await db.execute(tables.sql(_RENEW), {"lease": lease, "held": held})
    renewed = {row[0] for row in await cursor.fetchall()}
    return [one.job.id for one in claims if one.key in renewed]


async def recover(db: Connection, tables: Tables) -> list[tuple[JobRecord, bool]]:
    """Put back or end what was held for longer than its lease; each job with whether it has now failed."""
    await tend(db, tables)
    if not await (await db.execute(tables.sql(_STALLED))).fetchone():
        return []
    async with db.transaction():
        cursor = await db.execute(tables.sql(_STALLED + " FOR UPDATE SKIP LOCKED"))
        verdicts = [_judge_stalled(tables, row) for row in await cursor.fetchall()]
        trip = await exchange(db, tables, verdicts, 0, 0, "") if verdicts else Trip()
    return [
        (verdict.claim.job, isinstance(verdict, Failed))
        for verdict in verdicts
        if verdict.claim.key in trip.settled
    ]


def _judge_stalled(tables: Tables, row: tuple[Any, ...]) -> Failed | RetryAt:
    *fields, now = row
    held = read_claim(tables.queue, tuple(fields), orjson.loads(fields[4]).get("worker", ""))
    held.job.run_at = now  # its priority is kept: this is when it is due again
    return stalled_verdict(held, now)


_NEXT_DUE = """
SELECT extract(epoch FROM min(vt) - statement_timestamp()) * 1000 FROM (
    SELECT vt FROM {q} WHERE last_read_at IS NULL AND NOT (SELECT paused FROM yamchi.queues WHERE name = %(queue)s)
    ORDER BY vt LIMIT 1) AS first
"""


async def next_due(db: Connection, tables: Tables) -> float | None:
    """In how many milliseconds the next job is due; 0 or less if one is."""
    row = await (await db.execute(tables.sql(_NEXT_DUE), {"queue": tables.queue})).fetchone()
    return None if row is None or row[0] is None else float(row[0])
