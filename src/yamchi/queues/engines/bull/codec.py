"""Between a job as Yamchi has it and a BullMQ job: the hash in Redis, the options in it, the arguments of `add`.

Where BullMQ has a word for something it is used: `attempts`, `backoff`, `removeOnComplete`, `removeOnFail`, `delay`,
`priority`. What it has none for stands in the option `yamchi` (a timeout, steps of a backoff) or in hash fields
beginning with `ym`; Node ignores both. A priority of ours, 10 first, is BullMQ's 1 first; none is 0 in both.

Anybody may write a hash. Reading one never fails: what is out of bounds is brought within them (`foreign`), and what is no
job's data is left as it is, for the worker to put it among the dead letters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import msgpack
import orjson

from yamchi.clock import Millis, isoformat
from yamchi.errors import InvalidJob
from yamchi.queues import foreign
from yamchi.queues.options import DEFAULT_OPTIONS, Backoff, JobOptions
from yamchi.queues.records import FINISHED, DeadLetter, JobRecord, NewJob, State

UNLIMITED = foreign.MOST_KEPT
"""How many finished jobs BullMQ keeps when nobody says."""

LONGEST_CACHED = 4_096
"""Bytes of options that are remembered: those of ours are a tenth of that."""

STATES: Mapping[bytes, State] = {
    b"wait": "waiting",
    b"paused": "waiting",
    b"prioritized": "waiting",
    b"waiting-children": "waiting",
    b"delayed": "delayed",
    b"active": "active",
    b"completed": "completed",
    b"failed": "failed",
    b"ym:cancelled": "cancelled",
    b"ym:expired": "expired",
}
BEGUN = ("active", "completed", "failed")
"""States of jobs whose `processedOn` is of the run at hand."""

RESERVED = frozenset({
    "wait", "active", "paused", "prioritized", "delayed", "completed", "failed", "waiting-children", "stalled",
    "stalled-check", "events", "marker", "meta", "id", "pc", "limiter", "repeat",
})  # fmt: skip
Hash = dict[bytes, bytes]
JobArgs = tuple[str, str, bytes, bytes, bytes, str | int]
"""Kind, id, packed arguments, data, packed options, expiry."""


def may_be_job(job_id: str) -> bool:
    """Whether the key of this id could be a job's, and not one of BullMQ's or ours: only its schedulers' ids have colons."""
    return job_id not in RESERVED and (
        ":" not in job_id or (job_id.startswith("repeat:") and job_id.count(":") > 1)
    )


@dataclass(frozen=True, slots=True, eq=False)
class BullOptions:
    """A job's options as both sides need them; decoded once for all jobs that have the same, so told apart by identity."""

    options: JobOptions
    keep_completed: Mapping[str, Any]
    keep_failed: Mapping[str, Any]
    delay: Millis = 0
    says_attempts: bool = True


def packed(value: Any) -> bytes:
    """MessagePack, as BullMQ's scripts take their arguments."""
    return cast("bytes", _pack(value))


_pack = msgpack.Packer().pack  # one for all: a new one for each value costs more than the packing


# ── From us to BullMQ ─────────────────────────────────────────────────────────────────────────────────────────────


def add_args(base: str, job: NewJob, now: Millis) -> JobArgs:
    """What the script `add` wants of a job."""
    if job.id in RESERVED:
        raise InvalidJob(f"The job id {job.id!r} is a name that BullMQ keeps for itself: choose another one.")
    delay = 0 if job.run_at is None else max(job.run_at - now, 0)
    kind = "delayed" if delay else "prioritized" if job.priority else "standard"
    head = packed([base, job.id, job.name, now, None, None, None, None, None])
    opts = _packed_options(job.options, job.priority, delay, job.id)
    return kind, job.id, head, job.payload, opts, "" if job.expires_at is None else job.expires_at


def _packed_options(options: JobOptions, priority: int, delay: Millis, job_id: str) -> bytes:
    count, body = _packed_common(options)
    extra: dict[str, Any] = {"jobId": job_id}
    if priority:
        extra["priority"] = 11 - priority
    if delay:
        extra["delay"] = delay
    # A MessagePack map of up to 15 entries is one byte of count and then the entries: the common ones are packed once.
    return bytes((0x80 | count + len(extra),)) + body + packed(extra)[1:]


@lru_cache(maxsize=1024)
def _packed_common(options: JobOptions) -> tuple[int, bytes]:
    common: dict[str, Any] = {
        "attempts": options.attempts,
        "backoff": _bull_backoff(options.backoff),
        "removeOnComplete": _bull_keep(options.keep_completed),
        "removeOnFail": _bull_keep(options.keep_failed),
    }
    if extra := _extra(options):
        common["yamchi"] = extra
    return len(common), packed(common)[1:]


def _bull_backoff(backoff: Backoff) -> dict[str, Any]:
    """As Node knows it: of steps it gets the first, since an unknown kind would make its worker fail."""
    if backoff.steps:
        return {"type": "fixed", "delay": backoff.steps[0]}
    shown: dict[str, Any] = {"type": backoff.kind, "delay": backoff.delay}
    return {**shown, "jitter": backoff.jitter} if backoff.jitter else shown


def _bull_keep(count: int) -> dict[str, int]:
    return {"count": -1 if count >= UNLIMITED else count}


def _extra(options: JobOptions) -> dict[str, Any]:
    backoff, extra = options.backoff, dict[str, Any]()
    if options.timeout is not None:
        extra["timeout"] = options.timeout
    if backoff.steps:
        extra |= {"steps": list(backoff.steps), "jitter": backoff.jitter}
    if backoff.longest != Backoff().longest:
        extra["longest"] = backoff.longest
    return extra


def letter_args(base: str, letter: DeadLetter) -> tuple[bytes, bytes, bytes]:
    """A dead letter as a job of the queue `<queue>.dlq`: packed arguments, data, packed options."""
    name = letter.name or ""
    dlq = f"{base[:-1]}.dlq:"
    head = packed([dlq, letter.id, name, letter.failed_at, None, None, None, None, None])
    return head, letter.body, packed({"attempts": 1, "jobId": letter.id})


def pack_fields(fields: Mapping[str, str | int]) -> bytes:
    """Hash fields to set along with a move, as BullMQ's scripts take them; Redis's Lua reads no MessagePack of bytes."""
    return packed([part for pair in fields.items() for part in pair]) if fields else b""


# ── From BullMQ to us ─────────────────────────────────────────────────────────────────────────────────────────────


def as_hash(flat: list[bytes]) -> Hash:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def is_sound(fields: Hash) -> bool:
    """Whether BullMQ's scripts can count in this hash, and need not look for the job's parent."""
    get = fields.get
    return (
        (get(b"priority", b"0") == b"0" or _is_count(fields[b"priority"]))
        and (b"atm" not in fields or _is_count(fields[b"atm"]))
        and (b"stc" not in fields or _is_count(fields[b"stc"]))
        and b"parentKey" not in fields
        and b"parent" not in fields
    )


def _is_count(value: bytes) -> bool:
    return len(value) <= 7 and value.isdigit()


def bull_options_of(fields: Hash, job_id: bytes) -> BullOptions:
    # The id is the one thing in which the options of like jobs differ.
    text = fields.get(b"opts", b"{}").replace(b'"jobId":"%b"' % job_id, b'"jobId":""')
    return _read_bull_options(text) if len(text) <= LONGEST_CACHED else _read_bull_options.__wrapped__(text)


@lru_cache(maxsize=4096)
def _read_bull_options(text: bytes) -> BullOptions:
    opts = _object(text)
    ours = opts.get("yamchi")
    extra: dict[str, Any] = ours if isinstance(ours, dict) else {}
    keep_completed, keep_failed = _keep(opts.get("removeOnComplete")), _keep(opts.get("removeOnFail"))
    timeout = extra.get("timeout")
    options = JobOptions(
        attempts=_whole(opts.get("attempts"), 1, 1, foreign.MOST_ATTEMPTS),
        backoff=_backoff(opts.get("backoff"), extra),
        timeout=_whole(timeout, 0, 0, foreign.LONGEST_SPAN) if isinstance(timeout, int) else None,
        keep_completed=_count(keep_completed),
        keep_failed=_count(keep_failed),
    )
    known = DEFAULT_OPTIONS if options == DEFAULT_OPTIONS else options
    says_attempts = _whole(opts.get("attempts"), 0, 0, 1) > 0
    return BullOptions(
        known,
        keep_completed,
        keep_failed,
        _whole(opts.get("delay"), 0, 0, foreign.LATEST),
        says_attempts,
    )


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _whole(value: Any, default: int, least: int, most: int) -> int:
    """As BullMQ takes it: a number, and not text that looks like one."""
    return foreign.whole(value, default, least, most) if isinstance(value, int | float) else default


def _span(value: Any) -> Millis:
    return _whole(value, 0, 0, foreign.LONGEST_SPAN)


def _keep(value: Any) -> Mapping[str, int]:
    """`removeOn…` as BullMQ's worker reads it: true removes, a number keeps so many, nothing keeps all."""
    match value:
        case bool():
            return {"count": 0 if value else -1}
        case int() | float():
            return {"count": _whole(value, -1, -1, UNLIMITED)}
        case dict():
            known = {name: value[name] for name in ("age", "count", "limit") if name in value}
            return {name: _whole(one, -1, -1, UNLIMITED) for name, one in known.items()}
    return {"count": -1}


def _count(keep: Mapping[str, int]) -> int:
    count = keep.get("count", -1)
    return count if count >= 0 else UNLIMITED


def _backoff(value: Any, extra: Mapping[str, Any]) -> Backoff:
    known = foreign.backoff(extra)
    longest = known.get("longest", Backoff().longest)
    if known.get("steps"):
        return Backoff("steps", steps=known["steps"], jitter=known.get("jitter", 0.0), longest=longest)
    match value:
        case int() | float():
            return Backoff("fixed", _span(value), longest=longest)
        case {"type": "fixed" | "exponential" as kind}:
            jitter = foreign.backoff(value).get("jitter", 0.0)
            return Backoff(kind, _span(value.get("delay")), jitter=jitter, longest=longest)
        case {"delay": int() | float() as delay}:
            return Backoff(
                "fixed", _span(delay), longest=longest
            )  # a strategy that only its Node worker knows
    return Backoff("fixed", 0)  # BullMQ tries again at once where nothing is said


def record(queue: str, job_id: str, fields: Hash, state: State, score: float | None = None) -> JobRecord:
    """A job hash as it is kept."""
    get = fields.get
    bull_options = bull_options_of(fields, job_id.encode())
    created_at = _created(get(b"timestamp"))
    run_at = _due(fields, created_at, bull_options, has_begun=state in BEGUN)
    if score is not None and state == "delayed":
        run_at = foreign.whole(score / 4096, 0, 0, foreign.LATEST)
    result = get(b"returnvalue") if state == "completed" else None
    return JobRecord(
        job_id,
        queue,
        foreign.name(get(b"name", b"")),
        get(b"data", b""),
        state,
        created_at,
        run_at,
        bull_options.options,
        _our_priority(get(b"priority", b"0")),
        foreign.moment(get(b"ymExpiresAt") or None),
        _made(fields) + (state == "active"),
        foreign.json(get(b"progress")),
        None if result == b"null" else foreign.json(result),
        None if state == "completed" else _text(get(b"failedReason")),
        None if state == "completed" else _last_trace(get(b"stacktrace")),
        foreign.moment(get(b"processedOn")),
        foreign.moment(get(b"finishedOn")) if state in FINISHED else None,
        _text(get(b"pb")),
    )


def claimed(queue: str, job_id: str, fields: Hash, bull_options: BullOptions, worker: str) -> JobRecord:
    """A job just claimed: the same, with what can't be there yet left out. Most fields are not there at all."""
    get = fields.get
    created_at = _created(get(b"timestamp"))
    priority, expires_at, progress = get(b"priority", b"0"), get(b"ymExpiresAt"), get(b"progress")
    reason, traces_left = get(b"failedReason"), get(b"stacktrace")
    return JobRecord(
        job_id,
        queue,
        _name(get(b"name", b"")),
        get(b"data", b""),
        "active",
        created_at,
        _due(fields, created_at, bull_options, has_begun=True),
        bull_options.options,
        0 if priority == b"0" else _our_priority(priority),
        foreign.moment(expires_at) if expires_at else None,
        _made(fields) + 1,
        None if progress is None else foreign.json(progress),
        None,
        foreign.text(reason) if reason else None,
        _last_trace(traces_left) if traces_left else None,
        _created(get(b"processedOn")),
        None,
        worker,
    )


def _due(fields: Hash, created_at: Millis, bull_options: BullOptions, *, has_begun: bool) -> Millis:
    """When a job is due for the run at hand: BullMQ forgets it once the job is no longer delayed, so we note what moved it.

    Bull Board promotes without a word of when: then it was due when it began. What put it off came after the run before.
    """
    moved = foreign.moment(fields.get(b"ymDue"))
    if not moved and not bull_options.delay:
        return created_at
    due = moved or created_at + bull_options.delay
    started_at = foreign.moment(fields.get(b"processedOn")) if has_begun or not moved else None
    return min(due, started_at or foreign.LATEST)


def _name(name: bytes) -> str:
    return _known_name(name) if len(name) <= foreign.LONGEST_NAME else foreign.name(name)


_known_name = lru_cache(maxsize=1024)(foreign.name)


def failures(fields: Hash) -> int:
    """How many attempts have failed."""
    return _counted(fields.get(b"atm", b"0"))


def _made(fields: Hash) -> int:
    failed, stalled = fields.get(b"atm"), fields.get(b"stc")
    return (_counted(failed) if failed else 0) + (_counted(stalled) if stalled else 0)


def _counted(value: bytes) -> int:
    # Nearly always a digit or two, and this is on the way of every job.
    return (
        int(value)
        if len(value) < 6 and value.isdigit()
        else foreign.whole(value, 0, 0, foreign.MOST_ATTEMPTS)
    )


def _created(value: bytes | None) -> Millis:
    if value is not None and len(value) == 13 and value.isdigit():
        return int(value)
    return foreign.moment(value) or 0


def _our_priority(priority: bytes) -> int:
    if priority == b"0":
        return 0
    number = foreign.whole(priority, 0, 0, 1 << 21)
    return min(max(11 - number, 1), 10) if number else 0


def _text(value: bytes | None) -> str | None:
    return foreign.text(value) if value else None


def traces(value: bytes | None) -> list[str]:
    """The stack of each failed attempt, as BullMQ keeps them."""
    if not value:
        return []
    try:
        kept = orjson.loads(value)
    except orjson.JSONDecodeError:
        return []
    return (
        [foreign.text(trace) for trace in kept if trace and isinstance(trace, str)]
        if isinstance(kept, list)
        else []
    )


def _last_trace(value: bytes | None) -> str | None:
    return kept[-1] if value and value != b"[]" and (kept := traces(value)) else None


def letter(queue: str, letter_id: str, fields: Hash) -> DeadLetter:
    """A dead letter; one that another program wrote and that is none is shown as a raw value."""
    body = fields.get(b"data", b"{}")
    said, failed_at = _object(body), _created(fields.get(b"timestamp"))
    error = _text(fields.get(b"ymError")) or foreign.text(str(said.get("error_message", "")))
    if not said and body != b"{}":
        raw = {"raw_value": foreign.text(body), "error_message": error, "failed_at": isoformat(failed_at)}
        body = orjson.dumps(raw)
    return DeadLetter(letter_id, queue, _text(fields.get(b"name")), body, error, failed_at)
