"""The SQL of working: settle and claim.

Cost of an exchange of n completed jobs for n new ones: one statement, one result, one commit. Of each job's rows pgmq's is
updated (claim) and deleted (end), ours is updated (end) and deleted (trimmed). Verdicts that put jobs back, or that end them
badly, cost a few statements more in the same transaction.
"""

import asyncio
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import orjson
from psycopg import AsyncRawCursor

from yamchi.clock import Millis
from yamchi.queues.engines.pgmq.bounds import Micros, Position, Scan, ScanResult
from yamchi.queues.engines.pgmq.connections import Connection
from yamchi.queues.engines.pgmq.rows import (
    SHIFT,
    array,
    clean,
    clean_json,
    instant,
    looked_up,
    micros,
    millis,
    moment,
    priority,
    reads,
    row_of,
    sane,
    still_held,
)
from yamchi.queues.engines.pgmq.rows import claim as read_claim
from yamchi.queues.engines.pgmq.scanning import SEEING, read_scan, seen, span
from yamchi.queues.engines.pgmq.tables import Tables
from yamchi.queues.options import MOST_KEPT
from yamchi.queues.records import (
    Cancelled,
    Claim,
    Completed,
    Expired,
    Failed,
    Released,
    RetryAt,
    State,
    Verdict,
    last_kept,
)

# ── Settling ──────────────────────────────────────────────────────────────────────────────────────────────────────


_STILL_HELD = still_held("said.token")
_ITS_ROW = row_of("e")


_SAID = """
said AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(verdicts)s::json) AS said(
        key bigint, token timestamptz, state text, result json, reason text, stack text, keep boolean,
        letter json, failed_at bigint)
)"""

# Jobs that completed, as nearly all do: arrays are read in a tenth of the time.
_SAID_COMPLETED = """
said AS MATERIALIZED (
    SELECT key, token, 'completed' AS state, CASE WHEN result::text <> 'null' THEN result END AS result,
        NULL AS reason, NULL AS stack, keep, NULL::json AS letter, NULL::bigint AS failed_at
    FROM ROWS FROM (unnest(%(keys)s::bigint[]), unnest(%(tokens)s::timestamptz[]), unnest(%(keeps)s::boolean[]),
        json_array_elements(%(results)s::json)) AS said(key, token, keep, result)
)"""

# One process at a time trims, and the others do not wait for it.
_ENDING = f"""
ended AS (
    DELETE FROM {{q}} q USING said WHERE {looked_up("q.msg_id", "said.key")} AND {_STILL_HELD}
    RETURNING %(queue)s::text AS queue, q.headers->>'yamchi_id' AS id, q.msg_id, q.read_ct, q.enqueued_at, q.last_read_at,
        q.message, q.headers, said.state, said.result, said.reason, said.stack, said.keep, said.letter, said.failed_at
), kept AS (
    UPDATE yamchi.jobs j SET state = e.state, ended = nextval('yamchi.ended'), finished_at = statement_timestamp(),
        started_at = e.last_read_at, run_at = e.last_read_at, enqueued_at = e.enqueued_at, read_ct = e.read_ct,
        message = e.message, headers = e.headers, result = e.result, reason = e.reason, stack = e.stack
    FROM ended e WHERE {_ITS_ROW} AND e.keep
), trimmed AS (
    DELETE FROM yamchi.jobs WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM yamchi.jobs WHERE queue = %(queue)s AND state = 'completed' AND ended >= %(trimmed)s AND ended <= (
            SELECT ended FROM yamchi.jobs WHERE queue = %(queue)s AND state = 'completed' AND ended >= %(trimmed)s
            AND (SELECT pg_try_advisory_xact_lock(hashtext(%(queue)s), 1))
            ORDER BY ended DESC OFFSET %(spared)s LIMIT 1)
        LIMIT 1000)) RETURNING ended
), noted AS (
    INSERT INTO yamchi.minutes AS m
    SELECT %(queue)s, date_trunc('minute', statement_timestamp()), pg_backend_pid(), done, broken FROM (
        SELECT count(*) FILTER (WHERE state = 'completed') AS done, count(*) FILTER (WHERE state = 'failed') AS broken
        FROM ended) AS sums WHERE done + broken > 0
    ON CONFLICT (queue, minute, backend) DO UPDATE
    SET completed = m.completed + excluded.completed, failed = m.failed + excluded.failed
)"""

# Apart from `_ENDING`: usually all are kept, and a part of a statement costs time even if it has nothing to do.
_DROPPED = f"""
dropped AS (
    DELETE FROM yamchi.jobs j USING ended e WHERE {_ITS_ROW} AND NOT e.keep
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

# What was picked is locked, so that it stays in its place until it is taken.
_TAKING = f"""
{SEEING}, picked AS MATERIALIZED (
    SELECT next.place, next.vt FROM (SELECT first, high FROM seen WHERE first IS NOT NULL ORDER BY n) AS band, LATERAL (
        SELECT ctid AS place, vt FROM {{q}} WHERE vt >= band.first AND vt < band.high AND vt <= statement_timestamp()
        AND last_read_at IS NULL AND headers ? 'yamchi_id'
        ORDER BY vt LIMIT %(want)s FOR UPDATE SKIP LOCKED) AS next
    WHERE NOT (SELECT paused FROM yamchi.queues WHERE name = %(queue)s) LIMIT %(want)s
), taken AS (
    UPDATE {{q}} q SET vt = statement_timestamp() + %(lease)s * interval '1 millisecond',
        last_read_at = statement_timestamp(), read_ct = {reads("q.read_ct")} + 1,
        headers = {sane("q")} || %(worker)s::jsonb
    FROM picked WHERE q.ctid = picked.place
    RETURNING q.msg_id, q.read_ct, q.message, q.headers, q.enqueued_at, picked.vt
)"""

_CLAIMS = f"""
SELECT msg_id, read_ct, message::text, headers::text, {millis("enqueued_at")}, {millis("vt")} FROM taken
"""
_TRIMMED = "(SELECT min(ended) FROM trimmed)"
_SETTLED = "(SELECT string_agg(msg_id::text, ',') FROM ended)"

_THEN_TAKE = f"{_TAKING} {_CLAIMS} UNION ALL {seen(_SETTLED, _TRIMMED)}"
_SETTLE_AND_TAKE = f"WITH {_SAID_COMPLETED}, {_ENDING}, {_THEN_TAKE}"
_SETTLE_DROP_AND_TAKE = f"WITH {_SAID_COMPLETED}, {_ENDING}, {_DROPPED}, {_THEN_TAKE}"
_SETTLE = f"WITH {_SAID}, {_ENDING}, {_DROPPED}, {_LETTERS} SELECT msg_id FROM ended"
_TAKE = f"WITH {_TAKING} {_CLAIMS} UNION ALL {seen()}"

# A job that somebody asked to stop does not go back to the queue, whatever its verdict: the first statement takes those.
_STOP = f"""
WITH {_SAID}, {_ENDING.replace(_STILL_HELD, f"{_STILL_HELD} AND q.headers ? 'cancelling'")}, {_DROPPED}
SELECT msg_id FROM ended
"""
_PUT_BACK = f"""
WITH said AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(verdicts)s::json) AS said(
        key bigint, token timestamptz, due bigint, back integer, notes json)
)
UPDATE {{q}} q SET last_read_at = NULL, read_ct = q.read_ct - said.back,
    vt = CASE WHEN {moment("said.due")} > statement_timestamp() THEN {moment("said.due")}
        ELSE {moment("said.due")} - {priority("q.headers")} {SHIFT} END,
    headers = (({sane("q")} - 'slotted' - 'rise' - 'worker') || said.notes::jsonb) ||
        CASE WHEN q.headers ? 'priority' AND {moment("said.due")} > statement_timestamp() THEN '{{"rise": true}}'::jsonb
        ELSE '{{}}'::jsonb END
FROM said WHERE {looked_up("q.msg_id", "said.key")} AND {_STILL_HELD} AND NOT q.headers ? 'cancelling'
RETURNING q.msg_id, {micros("q.vt")}, pg_notify('yamchi_wake', {{table}})
"""
_TRIM = """
DELETE FROM yamchi.jobs WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM yamchi.jobs WHERE queue = %(queue)s AND state = %(state)s AND ended >= %(trimmed)s AND ended <= (
        SELECT ended FROM yamchi.jobs WHERE queue = %(queue)s AND state = %(state)s AND ended >= %(trimmed)s
        ORDER BY ended DESC OFFSET %(keep)s LIMIT 1)
    LIMIT 1000 FOR UPDATE SKIP LOCKED)) RETURNING ended
"""


class ExchangeResult:
    """What an exchange brought: numbers of the messages settled, new claims, what was seen, and where messages were put back."""

    __slots__ = ("claims", "put_back", "seen", "settled", "taken", "trimmed")

    def __init__(self) -> None:
        self.settled: set[int] = set()
        self.claims: list[Claim] = []
        self.taken: list[Micros] = []
        self.put_back: list[Micros] = []
        self.seen: ScanResult | None = None
        self.trimmed: int | None = None

    def read(self, tables: Tables, rows: Sequence[tuple[Any, ...]], worker: str) -> None:
        """Claims, and the row of `seen`."""
        taken = [row for row in rows if row[1] is not None]
        (found,) = (row for row in rows if row[1] is None)
        self.trimmed, self.seen = found[0], read_scan(found)
        if found[3] is not None:
            self.settled.update(map(int, found[3].split(",")))
        taken.sort(key=_BY_TURN)  # RETURNING promises no order
        token, started = instant(self.seen.at), self.seen.at // 1_000  # all of them were taken at this moment
        self.claims = [read_claim(tables.queue, row, token, started, worker) for row in taken]
        self.taken = [row[5] * 1_000 - 500 for row in taken]  # they were rounded to the nearest millisecond


_BY_TURN = itemgetter(5, 0)
"""By `vt`, which has the priority in it."""


async def exchange(
    db: Connection, tables: Tables, verdicts: Sequence[Verdict], want: int, lease: Millis, worker: str, position: Position,
    *, was_woken: bool = False,
) -> ExchangeResult:  # fmt: skip
    scan = position.bounds.begin(was_woken=was_woken)
    result = await _exchange(db, tables, verdicts, want, lease, worker, position, scan)
    if result.trimmed is not None:
        position.trimmed["completed"].since = result.trimmed
    if result.seen:
        position.bounds.finish(scan, result.seen, result.taken)
    for vt in result.put_back:
        position.bounds.lower(vt)
    return result


async def _exchange(
    db: Connection, tables: Tables, verdicts: Sequence[Verdict], want: int, lease: Millis, worker: str, position: Position,
    scan: Scan,
) -> ExchangeResult:  # fmt: skip
    result = ExchangeResult()
    taking = {
        "want": want,
        "lease": lease,
        "worker": orjson.dumps({"worker": worker}).decode(),
        **span(scan),
    }
    if not verdicts:
        result.read(tables, await ask(db, tables, _TAKE, taking), worker)
    elif want and (completed := _if_all_completed(verdicts)):
        keeps, limits = _kept(completed, position)
        template = _SETTLE_AND_TAKE if all(keeps) else _SETTLE_DROP_AND_TAKE
        settling = taking | _completions(completed, keeps) | limits
        result.read(tables, await ask(db, tables, template, settling), worker)
    else:
        async with db.transaction():
            await _put_back(db, tables, verdicts, result, position)
            await _end(db, tables, verdicts, result, position)
            if want:
                result.read(tables, await ask(db, tables, _TAKE, taking), worker)
    return result


def _if_all_completed(verdicts: Sequence[Verdict]) -> list[Completed] | None:
    completed = [verdict for verdict in verdicts if type(verdict) is Completed]
    return completed if len(completed) == len(verdicts) else None


async def ask(db: Connection, tables: Tables, template: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What a statement answers. It is sent as it is: psycopg would read one as long as ours anew each time."""
    values["queue"] = tables.queue
    statement, names = tables.numbered(template)
    cursor = AsyncRawCursor(db)
    await cursor.execute(statement, [values[name] for name in names])
    return await cursor.fetchall()


async def _end(
    db: Connection, tables: Tables, verdicts: Sequence[Verdict], result: ExchangeResult, position: Position
) -> None:
    ending = [verdict for verdict in verdicts if not isinstance(verdict, RetryAt | Released)]
    if ending:
        result.settled.update(row[0] for row in await ask(db, tables, _SETTLE, _endings(ending, position)))
        await _trim(db, tables, ending, position)


def _endings(verdicts: Sequence[Verdict], position: Position) -> dict[str, Any]:
    """The verdicts as `_SAID` reads them."""
    keeps, limits = _kept(verdicts, position)
    rows = [
        _completion(verdict, keep=keep) if isinstance(verdict, Completed) else _ending(verdict)
        for verdict, keep in zip(verdicts, keeps, strict=True)
    ]
    return {"verdicts": orjson.dumps(rows).decode(), **limits}


def _completions(verdicts: Sequence[Completed], keeps: Sequence[bool]) -> dict[str, Any]:
    """The verdicts as `_SAID_COMPLETED` reads them."""
    results = [b"null" if verdict.result is None else clean_json(verdict.result) for verdict in verdicts]
    return {
        "keys": array([str(verdict.claim.key) for verdict in verdicts]),
        "tokens": array([f'"{verdict.claim.token}"' for verdict in verdicts]),
        "keeps": array(["t" if keep else "f" for keep in keeps]),
        "results": f"[{b','.join(results).decode()}]",
    }


def _kept(verdicts: Sequence[Verdict], position: Position) -> tuple[list[bool], dict[str, int]]:
    """Which of those that completed are kept, and for the trim how many of before are spared and from where on it looks."""
    keeps: list[bool] = []
    room = last_kept(verdicts, "completed") or MOST_KEPT
    for verdict in reversed(verdicts):
        keep = type(verdict) is Completed and room > 0 and verdict.claim.job.options.keep_completed > 0
        room -= keep
        keeps.append(keep)
    keeps.reverse()
    return keeps, {"spared": max(room, 0), "trimmed": position.trimmed["completed"].since or 0}


def _completion(verdict: Completed, *, keep: bool) -> dict[str, Any]:
    held = verdict.claim
    row = {"key": held.key, "token": held.token, "state": "completed", "keep": keep}
    if verdict.result is not None:
        row["result"] = orjson.Fragment(clean_json(verdict.result))
    return row


def _ending(verdict: Verdict) -> dict[str, Any]:
    held = verdict.claim
    keep = held.job.options.keep_failed > 0
    row: dict[str, Any] = {"key": held.key, "token": held.token, "state": "cancelled", "keep": keep}
    match verdict:
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


async def _put_back(
    db: Connection, tables: Tables, verdicts: Sequence[Verdict], result: ExchangeResult, position: Position
) -> None:
    back = [verdict for verdict in verdicts if isinstance(verdict, RetryAt | Released)]
    if not back:
        return
    returning = {"verdicts": orjson.dumps([_return(verdict) for verdict in back]).decode()}
    result.settled.update(row[0] for row in await ask(db, tables, _STOP, _endings(back, position)))
    for key, vt, _ in await ask(db, tables, _PUT_BACK, returning):
        result.settled.add(key)
        result.put_back.append(vt)


def _return(verdict: RetryAt | Released) -> dict[str, Any]:
    held = verdict.claim
    if isinstance(verdict, RetryAt):
        due, back = verdict.moment, 0
        notes: dict[str, Any] = {"reason": clean(verdict.error), "stack": clean(verdict.stacktrace)}
    else:
        due, back = verdict.until or held.job.run_at, 1
        notes = {"reason": clean(verdict.reason), "slotted": verdict.has_permit or None}
    kept = {name: note for name, note in notes.items() if note is not None}
    return {"key": held.key, "token": held.token, "due": due, "back": back, "notes": kept}


_BADLY_ENDED: Sequence[tuple[type[Verdict], State]] = (
    (Failed, "failed"), (Expired, "expired"), (Cancelled, "cancelled"),
)  # fmt: skip


async def _trim(db: Connection, tables: Tables, verdicts: Sequence[Verdict], position: Position) -> None:
    kinds = {type(verdict) for verdict in verdicts}
    for kind, state in _BADLY_ENDED:
        if kind in kinds and (keep := last_kept(verdicts, state)):
            await trim(db, tables, state, keep, position)


async def trim(db: Connection, tables: Tables, state: State, keep: int, position: Position) -> None:
    """Drop the oldest of those that ended, beyond how many are kept."""
    sweep, now = position.trimmed[state], asyncio.get_running_loop().time
    began, since = now(), sweep.begin(now())
    rows = await ask(db, tables, _TRIM, {"state": state, "keep": keep, "trimmed": since or 0})
    sweep.finish(since, min((row[0] for row in rows), default=sweep.since), began, now())
