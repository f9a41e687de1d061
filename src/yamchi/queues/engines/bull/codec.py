"""Between a job as Yamchi has it and a BullMQ job: the hash in Redis, the options in it, the arguments of `add`.

Where BullMQ has a word for something it is used: `attempts`, `backoff`, `removeOnComplete`, `removeOnFail`, `delay`,
`priority`. What it has none for stands in the option `yamchi` (a timeout, steps of a backoff) or in hash fields
beginning with `ym`; Node ignores both. A priority of ours, 10 first, is BullMQ's 1 first; none is 0 in both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import msgpack
import orjson

from yamchi.clock import Millis
from yamchi.errors import InvalidJob
from yamchi.queues.job import (
    DEFAULT_OPTIONS,
    FINISHED,
    Backoff,
    DeadLetter,
    JobOptions,
    JobRecord,
    NewJob,
    State,
)

UNLIMITED = 1 << 31
"""How many finished jobs BullMQ keeps when nobody says."""

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
class Terms:
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


def terms_of(fields: Hash, job_id: bytes) -> Terms:
    # The id is the one thing in which the options of like jobs differ.
    text = fields.get(b"opts", b"{}").replace(b'"jobId":"%b"' % job_id, b'"jobId":""')
    return _read_terms(text)


@lru_cache(maxsize=4096)
def _read_terms(text: bytes) -> Terms:
    opts = _object(text)
    ours = opts.get("yamchi")
    extra: dict[str, Any] = ours if isinstance(ours, dict) else {}
    keep_completed, keep_failed = _keep(opts.get("removeOnComplete")), _keep(opts.get("removeOnFail"))
    options = JobOptions(
        attempts=max(_whole(opts.get("attempts"), 1), 1),
        backoff=_backoff(opts.get("backoff"), extra),
        timeout=extra.get("timeout"),
        keep_completed=_count(keep_completed),
        keep_failed=_count(keep_failed),
    )
    terms_options = DEFAULT_OPTIONS if options == DEFAULT_OPTIONS else options
    says_attempts = _whole(opts.get("attempts"), 0) > 0
    return Terms(terms_options, keep_completed, keep_failed, _whole(opts.get("delay"), 0), says_attempts)


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _whole(value: Any, default: int) -> int:
    return int(value) if isinstance(value, int | float) else default


def _keep(value: Any) -> Mapping[str, Any]:
    """`removeOn…` as BullMQ's worker reads it: true removes, a number keeps so many, nothing keeps all."""
    match value:
        case bool():
            return {"count": 0 if value else -1}
        case int() | float():
            return {"count": int(value)}
        case dict():
            return value
    return {"count": -1}


def _count(keep: Mapping[str, Any]) -> int:
    count = _whole(keep.get("count"), -1)
    return count if count >= 0 else UNLIMITED


def _backoff(value: Any, extra: Mapping[str, Any]) -> Backoff:
    longest = extra.get("longest", Backoff().longest)
    if steps := extra.get("steps"):
        return Backoff("steps", steps=tuple(steps), jitter=extra.get("jitter", 0.0), longest=longest)
    match value:
        case int() | float():
            return Backoff("fixed", int(value), longest=longest)
        case {"type": "fixed" | "exponential" as kind}:
            delay, jitter = _whole(value.get("delay"), 0), value.get("jitter") or 0.0
            return Backoff(kind, delay, jitter=min(max(float(jitter), 0.0), 1.0), longest=longest)
        case {"delay": int() | float() as delay}:
            return Backoff("fixed", int(delay), longest=longest)  # a strategy that only its Node worker knows
    return Backoff("fixed", 0)  # BullMQ tries again at once where nothing is said


def record(queue: str, job_id: str, fields: Hash, state: State, score: float | None = None) -> JobRecord:
    """A job hash as it is kept."""
    get = fields.get
    terms = terms_of(fields, job_id.encode())
    created_at = int(get(b"timestamp", b"0"))
    priority = int(get(b"priority", b"0"))
    finished = get(b"finishedOn")
    result = get(b"returnvalue") if state == "completed" else None
    return JobRecord(
        job_id,
        queue,
        get(b"name", b"").decode(),
        get(b"data", b""),
        state,
        created_at,
        int(score) >> 12 if score is not None and state == "delayed" else created_at + terms.delay,
        terms.options,
        _our_priority(priority) if priority else 0,
        _moment(get(b"ymExpiresAt")),
        int(get(b"atm", b"0")) + int(get(b"stc", b"0")) + (state == "active"),
        get(b"progress"),
        None if result == b"null" else result,
        None if state == "completed" else _text(get(b"failedReason")),
        None if state == "completed" else _last_trace(get(b"stacktrace")),
        _moment(get(b"processedOn")),
        _moment(finished) if state in FINISHED else None,
        _text(get(b"pb")),
    )


def claimed(queue: str, job_id: str, fields: Hash, terms: Terms, worker: str) -> JobRecord:
    """A job just claimed: the same, with what can't be there yet left out."""
    get = fields.get
    created_at = int(get(b"timestamp", b"0"))
    priority = get(b"priority", b"0")
    return JobRecord(
        job_id,
        queue,
        get(b"name", b"").decode(),
        get(b"data", b""),
        "active",
        created_at,
        created_at + terms.delay,
        terms.options,
        0 if priority == b"0" else _our_priority(int(priority)),
        _moment(get(b"ymExpiresAt")),
        int(get(b"atm", b"0")) + int(get(b"stc", b"0")) + 1,
        get(b"progress"),
        None,
        _text(get(b"failedReason")),
        _last_trace(get(b"stacktrace")),
        int(get(b"processedOn", b"0")),
        None,
        worker,
    )


def _our_priority(priority: int) -> int:
    return max(11 - priority, 1)


def _moment(value: bytes | None) -> Millis | None:
    return int(float(value)) if value else None


def _text(value: bytes | None) -> str | None:
    return value.decode("utf-8", "backslashreplace") if value else None


def traces(value: bytes | None) -> list[str]:
    """The stack of each failed attempt, as BullMQ keeps them."""
    if not value:
        return []
    try:
        kept = orjson.loads(value)
    except orjson.JSONDecodeError:
        return []
    return [str(trace) for trace in kept if trace] if isinstance(kept, list) else []


def _last_trace(value: bytes | None) -> str | None:
    return kept[-1] if value and (kept := traces(value)) else None


def letter(queue: str, letter_id: str, fields: Hash) -> DeadLetter:
    body = fields.get(b"data", b"{}")
    error = _text(fields.get(b"ymError")) or str(_object(body).get("error_message", ""))
    name = _text(fields.get(b"name"))
    return DeadLetter(letter_id, queue, name, body, error, int(fields.get(b"timestamp", b"0")))
