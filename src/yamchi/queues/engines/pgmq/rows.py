"""Between rows and `JobRecord`s: what of a job rides in a message's headers, and how times become milliseconds.

The envelope (`yamchi_id name options priority expires_at`) is written when a job is added. Notes (`worker reason stack
progress slotted cancelling rise`) come and go while it is pending. Of another program's headers only `name` is used.

Anybody may write a row, with any headers and any moments: what SQL says here about either holds for all there are, and
reading a row never fails (see `foreign`).
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from yamchi.clock import Millis
from yamchi.queues import foreign
from yamchi.queues.options import JobOptions
from yamchi.queues.records import Claim, JobRecord, NewJob

STEP: Millis = 10 * 365 * 86_400_000
"""How far back a step of priority moves a message that is due."""

SHIFT = f"* {STEP} * interval '1 millisecond'"
"""SQL behind a priority: how far back it moves a message that is due."""

NOTES = "'worker' - 'reason' - 'stack' - 'progress' - 'slotted' - 'cancelling' - 'rise'"
OURS = f"{NOTES} - 'name' - 'options' - 'priority' - 'expires_at'"


NOW = "statement_timestamp()"
"""SQL for the moment of a statement."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ANCIENT, _FAR = "'1000-01-01 UTC'::timestamptz", "'9999-12-31 UTC'::timestamptz"
_LONG_AGO = (datetime(1000, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def millis(column: str) -> str:
    """SQL for a moment in our milliseconds; infinity is the end of the calendar."""
    return f"(date_part('epoch', {_bounded(column)}) * 1000)::bigint"


def _bounded(column: str) -> str:
    if column == NOW:
        return NOW
    return f"CASE WHEN {column} < {_ANCIENT} THEN {_ANCIENT} WHEN {column} > {_FAR} THEN {_FAR} ELSE {column} END"


def moment(millis: str) -> str:
    """SQL for a moment of PostgreSQL, exact to the millisecond."""
    return f"(to_timestamp(0) + {millis} * interval '1 millisecond')"


def micros(column: str) -> str:
    """SQL for a moment to the microsecond; what is older than anybody's clock is just that old."""
    return f"(extract(epoch FROM {_bounded(column)}) * 1000000)::bigint"


def instant(micros: int | None, otherwise: str = "-infinity") -> str:
    """A moment of PostgreSQL, exact to the microsecond; another one if there is none, or it is older than anybody's clock."""
    if micros is None or micros <= _LONG_AGO:
        return otherwise
    return (_EPOCH + timedelta(microseconds=micros)).isoformat()


def instants(micros: Iterable[int | None]) -> str:
    """An array of moments for `given_instant`: PostgreSQL reads numbers ten times as fast as dates."""
    return array(["NULL" if one is None or one <= _LONG_AGO else str(one) for one in micros])


def given_instant(micros: str, otherwise: str) -> str:
    """SQL for a moment of PostgreSQL, exact to the microsecond; another one if there is none."""
    seconds = f"{micros} / 1000000 * interval '1 second'"
    rest = f"mod({micros}, 1000000) * interval '1 microsecond'"
    return f"coalesce(to_timestamp(0) + {seconds} + {rest}, '{otherwise}')"


def array(values: Iterable[str]) -> str:
    """An array as PostgreSQL reads it."""
    return "{" + ",".join(values) + "}"


def looked_up(column: str, value: str) -> str:
    """SQL that joins a table by a column with an index, one lookup for each value.

    Where a table was empty when it was last analyzed, PostgreSQL takes it for empty however long it has grown. With a plain `=`,
    which can be merged by, reading its whole index in order then seems as good as a few lookups; with this it is no choice.
    """
    return f"{column} = ANY(ARRAY[{value}])"


def row_of(source: str) -> str:
    """SQL that joins `yamchi.jobs j` to a source of queues and ids, one lookup for each."""
    return f"{looked_up('j.queue', f'{source}.queue')} AND j.id = {source}.id"


def still_held(token: str) -> str:
    """SQL for a message that is held by this token, which is never null.

    Not `=`, which would also say that it is held by somebody: PostgreSQL takes that for a reason to walk over all that ever were.
    """
    return f"q.last_read_at IS NOT DISTINCT FROM {token}"


def priority(headers: str) -> str:
    """SQL for the priority in some headers, where it is one."""
    return f"CASE WHEN {headers}->>'priority' ~ '^([1-9]|10)$' THEN ({headers}->>'priority')::int ELSE 0 END"


def raised(vt: str, headers: str) -> str:
    """SQL for where a message that is due stands among others, by its priority."""
    return f"CASE WHEN {vt} < {_ANCIENT} THEN {vt} ELSE {vt} - {priority(headers)} {SHIFT} END"


def reads(count: str) -> str:
    """SQL for how often a message was read, whatever somebody wrote there."""
    return f"least(greatest({count}, 0), {foreign.MOST_ATTEMPTS})"


def sane(row: str) -> str:
    """SQL for the headers of a message that can be claimed: an object that has an id."""
    headers, number = f"{row}.headers", f"{row}.msg_id"
    return (
        f"CASE WHEN length({headers}->>'yamchi_id') BETWEEN 1 AND {foreign.LONGEST_ID} "
        f"AND jsonb_typeof({headers}->'yamchi_id') = 'string' THEN {headers} "
        f"ELSE CASE WHEN jsonb_typeof({headers}) = 'object' THEN {headers} ELSE '{{}}'::jsonb END "
        f"|| jsonb_build_object('yamchi_id', 'msg-' || {number}) END"
    )


def envelope(job: NewJob) -> dict[str, Any]:
    """What a job is, beside its data."""
    headers: dict[str, Any] = {"yamchi_id": job.id, "name": job.name}
    if (options := job.options.encode()) is not None:
        headers["options"] = options
    if job.priority:
        headers["priority"] = job.priority
    if job.expires_at is not None:
        headers["expires_at"] = job.expires_at
    return headers


def compact(text: str | None) -> bytes:
    """jsonb prints spaces; payloads here have none."""
    if text is None:
        return b"null"
    try:
        return orjson.dumps(orjson.loads(text))
    except (orjson.JSONDecodeError, TypeError):  # nested deeper than one of them goes
        return text.encode()


def run_at(vt: Millis, headers: dict[str, Any]) -> Millis:
    """When a pending job is or was due, its priority taken off."""
    due = vt if "rise" in headers or "priority" not in headers else vt + STEP * _priority(headers)
    return (
        due if foreign.EARLIEST <= due <= foreign.LATEST else min(max(due, foreign.EARLIEST), foreign.LATEST)
    )


def claim(queue: str, row: Sequence[Any], token: str, started: Millis, worker: str) -> Claim:
    """A claim from (msg_id, reads, message, headers, enqueued, due)."""
    msg_id, reads, message, envelope, enqueued, due = row
    headers = read_headers(envelope)
    get = headers.get
    own = get("yamchi_id")
    job = JobRecord(
        own if type(own) is str and own else f"msg-{msg_id}", queue, foreign.name(get("name")), compact(message), "active", enqueued,
        run_at(due, headers), JobOptions.decode(get("options")), _priority(headers) if "priority" in headers else 0,
        foreign.moment(headers["expires_at"]) if "expires_at" in headers else None, reads,
        _progress(headers) if "progress" in headers else None, None, None, None, started, None, worker,
    )  # fmt: skip
    return Claim(job, token, msg_id, "slotted" in headers)


def read_headers(text: str | None) -> dict[str, Any]:
    """Headers, if they are an object."""
    try:
        headers = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError:
        return {}
    return headers if isinstance(headers, dict) else {}


def _priority(headers: dict[str, Any]) -> int:
    given = headers.get("priority", 0)
    return given if type(given) is int and 0 < given <= 10 else 0


def said(headers: dict[str, Any], name: str) -> str | None:
    """A text among the headers."""
    given = headers.get(name)
    return foreign.text(given) if isinstance(given, str) else None


COLUMNS = (
    "id, state, headers, message, read_ct, enqueued, due, started, finished, result, reason, stack, logs"
)

PENDING = (
    "coalesce(q.headers->>'yamchi_id', q.msg_id::text) AS id, "
    "CASE WHEN q.last_read_at IS NOT NULL THEN 'active' WHEN q.vt > statement_timestamp() THEN 'delayed' "
    "ELSE 'waiting' END AS state, q.headers::text AS headers, q.message::text AS message, q.read_ct, "
    f"{millis('q.enqueued_at')} AS enqueued, {millis('q.vt')} AS due, {millis('q.last_read_at')} AS started, "
    "NULL::bigint AS finished, NULL AS result, NULL AS reason, NULL AS stack"
)
ENDED = (
    "j.id, j.state, j.headers::text AS headers, j.message::text AS message, j.read_ct, "
    f"{millis('j.enqueued_at')} AS enqueued, {millis('j.run_at')} AS due, {millis('j.started_at')} AS started, "
    f"{millis('j.finished_at')} AS finished, j.result::text AS result, j.reason, j.stack"
)


def record(queue: str, row: tuple[Any, ...]) -> JobRecord:
    """A job from a row of `COLUMNS`."""
    (id, state, envelope, message, read_ct, enqueued, due, started, finished, result, reason, stack, logs) = (
        row
    )
    headers = _ours(envelope)
    return JobRecord(
        foreign.text(id, foreign.LONGEST_ID), queue, foreign.name(headers.get("name")), compact(message), state, enqueued,
        _due(state, due, started, headers), JobOptions.decode(headers.get("options")), _priority(headers),
        foreign.moment(headers.get("expires_at")), foreign.whole(read_ct, 0, 0, foreign.MOST_ATTEMPTS), _progress(headers),
        foreign.json(result.encode()) if result is not None else None,
        reason if finished else said(headers, "reason"), stack if finished else said(headers, "stack"),
        started, finished, said(headers, "worker"), list(logs or ()),
    )  # fmt: skip


def _ours(text: str | None) -> dict[str, Any]:
    """Headers of a job; those of a message that was not yet taken up mean nothing to us."""
    headers = read_headers(text)
    return headers if "yamchi_id" in headers else {}


def _due(state: str, due: Millis, started: Millis | None, headers: dict[str, Any]) -> Millis:
    if state in ("waiting", "delayed"):
        return run_at(due, headers)
    return started if started is not None else due


def _progress(headers: dict[str, Any]) -> bytes | None:
    try:
        return foreign.json(orjson.dumps(headers["progress"])) if "progress" in headers else None
    except TypeError:  # nested too deep
        return None


def clean(text: str | None) -> str | None:
    """Text that PostgreSQL can keep: it knows no NUL and no half of a surrogate pair."""
    return None if text is None else text.replace("\0", "").encode("utf-8", "replace").decode()


def clean_json(body: bytes) -> bytes:
    """JSON that jsonb can keep."""
    return orjson.dumps(_without_nul(orjson.loads(body))) if b"\\u0000" in body else body


def _without_nul(value: Any) -> Any:
    match value:
        case str():
            return value.replace("\0", "")
        case list():
            return [_without_nul(item) for item in value]
        case dict():
            return {_without_nul(key): _without_nul(item) for key, item in value.items()}
    return value
