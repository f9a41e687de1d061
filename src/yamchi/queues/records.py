"""A job as the queue core sees it: what is asked for (`NewJob`), what is kept (`JobRecord`), how it ended (`Verdict`).

The payload is bytes of JSON from end to end: it is decoded once, where a handler or a person needs it.
"""

import os
import random
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import lru_cache
from itertools import count
from operator import attrgetter
from typing import Any, Literal, Self

import orjson
from pydantic import BaseModel

from yamchi.clock import Millis, Span, in_short, isoformat, to_millis
from yamchi.errors import InvalidJob
from yamchi.observe.logging import mask
from yamchi.queues import foreign

State = Literal["waiting", "delayed", "active", "completed", "failed", "cancelled", "expired"]
PENDING: tuple[State, ...] = ("waiting", "delayed")
FINISHED: tuple[State, ...] = ("completed", "failed", "cancelled", "expired")
STATES: tuple[State, ...] = ("waiting", "delayed", "active", *FINISHED)

MOST_ATTEMPTS, MOST_KEPT = foreign.MOST_ATTEMPTS, foreign.MOST_KEPT
MOST_STEPS = 1_000
"""Bounds of options: what every broker can count to, and more than anybody needs."""

LONGEST_NAME = foreign.LONGEST_NAME
"""Characters of a job's name."""


def to_json(data: Any) -> bytes:
    """Data of a job, or what one returned; models may be anywhere in it."""
    return orjson.dumps(data, default=_plain)


def _plain(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError  # which is told with the type


# ── Options ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a failed job waits before its next attempt.

    `steps` are taken one by one, the last one repeating; without steps, `delay` is `fixed` or doubles (`exponential`).
    `jitter` 0.2 spreads each wait by up to 20 % either way, so that a crowd does not come back at once.
    """

    kind: Literal["fixed", "exponential", "steps"] = "exponential"
    delay: Millis = 1_000
    steps: tuple[Millis, ...] = ()
    jitter: float = 0.0
    longest: Millis = 86_400_000

    @classmethod
    def parse(cls, value: "BackoffLike") -> "Backoff":
        """Accepts a `Backoff`, "fixed", "exponential", {"type", "delay", "jitter"}, a span, or spans: a list, or "1m, 5m, 15m".

        {"kind", "delay", …} is a backoff as jobs show it, in milliseconds.
        """
        match value:
            case Backoff():
                return value
            case "fixed":
                return cls(kind="fixed")
            case "exponential":
                return cls(kind="exponential")
            case Mapping() if "kind" in value:
                return cls._from_mapping(_as_given(value))
            case Mapping():
                return cls._from_mapping(value)
            case str() if "," in value:
                return cls.parse(value.split(",", MOST_STEPS))
            case str() | int() | float() | timedelta():
                return cls(kind="fixed", delay=_backoff_span(value))
        if not isinstance(value, Sequence) or not 0 < len(value) <= MOST_STEPS:
            raise InvalidJob(f"backoff needs 1 to {MOST_STEPS:,} steps, such as ['1m', '5m'].")
        return cls(kind="steps", steps=tuple(map(_backoff_span, value)))

    @classmethod
    def _from_mapping(cls, value: Mapping[str, Any]) -> "Backoff":
        kind, jitter = value.get("type", "exponential"), value.get("jitter", 0)
        if kind not in ("fixed", "exponential", "steps"):
            raise InvalidJob(
                f"backoff type {in_short(kind)} is unknown: use 'fixed', 'exponential' or 'steps'."
            )
        if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter <= 1:
            raise InvalidJob(f"backoff jitter must be between 0 and 1, not {in_short(jitter)}.")
        if kind == "steps" or value.get("steps"):
            steps = value.get("steps", ())
            return replace(cls.parse(steps if isinstance(steps, list | tuple) else ()), jitter=jitter)
        return cls(kind=kind, delay=positive_span("backoff delay", value.get("delay", 1)), jitter=jitter)

    def wait(self, attempts_made: int) -> Millis:
        """How long to wait after this many attempts (1 after the first)."""
        attempt = max(attempts_made, 1)
        if self.steps:
            base = self.steps[min(attempt, len(self.steps)) - 1]
        else:
            base = self.delay * (2 ** min(attempt - 1, 40) if self.kind == "exponential" else 1)
        base = min(base, self.longest)
        return round(base * random.uniform(1 - self.jitter, 1 + self.jitter)) if self.jitter else base


def _as_given(shown: Mapping[str, Any]) -> dict[str, Any]:
    """A backoff that a job shows, as one is given: its milliseconds are seconds there."""
    try:
        spans = {
            "delay": shown.get("delay", 1_000) / 1000,
            "steps": [one / 1000 for one in shown.get("steps", ())],
        }
    except TypeError as error:
        raise InvalidJob(
            "backoff with a kind has its delay and steps in milliseconds, as numbers."
        ) from error
    return {"type": shown["kind"], "jitter": shown.get("jitter", 0), **spans}


BackoffLike = Backoff | str | Mapping[str, Any] | Sequence[Span] | Span


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How a job is to be run and kept. Equal options are stored as the same text, so decoding is cached."""

    attempts: int = 3
    backoff: Backoff = Backoff()
    timeout: Millis | None = None
    keep_completed: int = 100
    keep_failed: int = 50

    def __post_init__(self) -> None:
        _check_count("attempts", self.attempts, 1, MOST_ATTEMPTS)
        _check_count("keep_completed", self.keep_completed, 0, MOST_KEPT)
        _check_count("keep_failed", self.keep_failed, 0, MOST_KEPT)

    def keep(self, state: State) -> int:
        """How many jobs that ended so are kept; 0 is said of this job alone, not of those before it."""
        return self.keep_completed if state == "completed" else self.keep_failed

    def encode(self) -> str | None:
        """Compact JSON of what differs from the defaults; None when nothing does."""
        return None if self is DEFAULT_OPTIONS else _encode_options(self)

    @staticmethod
    def decode(text: str | None) -> "JobOptions":
        if not text or not isinstance(text, str):
            return DEFAULT_OPTIONS
        return _decode_options(text) if len(text) <= LONGEST_CACHED else _decode_options.__wrapped__(text)


def _check_count(what: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidJob(f"{what} must be a whole number from {least} to {most:,}, not {in_short(value)}.")


DEFAULT_OPTIONS = JobOptions()
LONGEST_CACHED = 4_096
"""Characters of options that are remembered: those of ours are a tenth of that."""


@lru_cache(maxsize=1024)
def _encode_options(options: JobOptions) -> str | None:
    if options == DEFAULT_OPTIONS:
        return None
    return orjson.dumps({name: getattr(options, name) for name in JobOptions.__slots__}).decode()


@lru_cache(maxsize=1024)
def _decode_options(text: str) -> JobOptions:
    """Never refuses: on a broker that others can write to, the text may be anything."""
    try:
        fields = orjson.loads(text)
    except (orjson.JSONDecodeError, TypeError):
        return DEFAULT_OPTIONS
    known = foreign.options(fields)
    if isinstance(fields, dict) and (backoff := foreign.backoff(fields.get("backoff"))):
        known["backoff"] = Backoff(**backoff)
    return JobOptions(**known)


def check_timeout(span: Span) -> Millis:
    """How long a run may take, if that is any time at all."""
    length = positive_span("timeout", span)
    if length == 0:
        raise InvalidJob(f"timeout must be longer than nothing, not {span!r}.")
    return length


def positive_span(what: str, span: Span) -> Millis:
    """A span that an option gives; the sentence names the option if it can't be used."""
    try:
        length = to_millis(span)
    except InvalidJob as error:
        raise InvalidJob(f"{what}: {error}") from error
    if length < 0:
        raise InvalidJob(f"{what} can't be negative, but is {in_short(span)}.")
    return length


def _backoff_span(span: Span) -> Millis:
    try:
        return positive_span("backoff", span)
    except InvalidJob as error:
        raise InvalidJob(
            f"{error} A backoff is such a span, 'fixed', 'exponential', or steps: ['1m', '5m', '15m']."
        ) from error


# ── A job on its way in, and as it is kept ────────────────────────────────────────────────────────────────────────


# Not frozen, though nobody changes one: freezing costs 0.7 µs a job where it is added, and 3 µs where it is claimed.
@dataclass(slots=True)
class NewJob:
    """What `add` hands to an engine. `run_at` None means at once."""

    id: str
    name: str
    payload: bytes
    options: JobOptions = DEFAULT_OPTIONS
    priority: int = 0
    run_at: Millis | None = None
    expires_at: Millis | None = None


@dataclass(slots=True)
class JobRecord:
    """Everything an engine knows of a job. `attempts_made` counts deliveries, the present one included."""

    id: str
    queue: str
    name: str
    payload: bytes
    state: State
    created_at: Millis
    run_at: Millis
    options: JobOptions = DEFAULT_OPTIONS
    priority: int = 0
    expires_at: Millis | None = None
    attempts_made: int = 0
    progress: bytes | None = None
    result: bytes | None = None
    failed_reason: str | None = None
    stacktrace: str | None = None
    started_at: Millis | None = None
    finished_at: Millis | None = None
    worker: str | None = None
    logs: list[str] = field(default_factory=list)

    def changed(self, **changes: Any) -> "JobRecord":
        """The same with other values, at a third of what `dataclasses.replace` costs."""
        job = JobRecord(*_values_of(self))
        for name, value in changes.items():
            setattr(job, name, value)
        return job

    def as_new(self, **changes: Any) -> NewJob:
        """The same job to be added afresh, for example to another engine or from its dead letter."""
        fresh = NewJob(
            self.id, self.name, self.payload, self.options, self.priority, self.run_at, self.expires_at
        )
        return replace(fresh, **changes)

    def log_fields(self, **more: Any) -> dict[str, Any]:
        """What a log line about this job has as keys, beside its sentence."""
        return {"queue": self.queue, "job": self.name, "id": self.id, "attempt": self.attempts_made, **more}


_values_of = attrgetter(*(one.name for one in fields(JobRecord)))


@dataclass(slots=True)
class Claim:
    """A job taken by a worker until its lease ends. Only the holder of `token` can settle or renew it.

    `key` is the engine's own handle (a row number, a broker's position). `has_permit` says that the job already
    has a permit under a rate limit per key, so that it does not ask for one again. `is_waiting` says that it waits for a
    free child process, and `waited` how many seconds it has: its timeout does not run meanwhile.
    """

    job: JobRecord
    token: str
    key: Any = None
    has_permit: bool = False
    is_waiting: bool = False
    waited: float = 0.0


# ── How a run ended ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Completed:
    claim: Claim
    result: bytes | None = None


@dataclass(slots=True)
class RetryAt:
    """The attempt failed; another is due at `moment`."""

    claim: Claim
    moment: Millis
    error: str
    stacktrace: str | None = None


@dataclass(slots=True)
class Failed:
    """The job is over, and `letter` is its dead letter."""

    claim: Claim
    error: str
    letter: "DeadLetter"
    stacktrace: str | None = None


@dataclass(slots=True)
class Expired:
    claim: Claim


@dataclass(slots=True)
class Cancelled:
    claim: Claim


@dataclass(slots=True)
class Released:
    """The job goes back without having cost an attempt: at once, or to wait until `until`."""

    claim: Claim
    until: Millis | None = None
    reason: str | None = None
    has_permit: bool = False


Verdict = Completed | RetryAt | Failed | Expired | Cancelled | Released


def last_kept(verdicts: Sequence[Verdict], state: State) -> int:
    """How many jobs that ended so stay, by the last of these that is kept itself; 0 if none of them is."""
    return first_kept((verdict.claim.job.options for verdict in reversed(verdicts)), state)


def first_kept(options: Iterable[JobOptions], state: State) -> int:
    return next((keep for one in options if (keep := one.keep(state))), 0)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A job that will not be run again, as others can read it: `body` is the JSON of SPEC 3.2.

    The id is the job's id, so a job has at most one letter; a message that was no job gets an id of its own.
    """

    id: str
    queue: str
    name: str | None
    body: bytes
    error: str
    failed_at: Millis

    @classmethod
    def of_job(cls, job: JobRecord, error: str, moment: Millis) -> Self:
        """For a job whose attempts are used up, or that can never succeed."""
        if not _is_json(job.payload):
            return cls.of_raw(job, error, moment)
        whole = {"job": orjson.Fragment(job.payload), "error_message": error, "failed_at": isoformat(moment)}
        return cls(job.id, job.queue, job.name, orjson.dumps(whole), error, moment)

    @classmethod
    def of_raw(cls, job: JobRecord, error: str, moment: Millis) -> Self:
        """For a message that is not JSON or has the wrong shape; the raw value is kept as it came."""
        raw = job.payload.decode("utf-8", "backslashreplace")
        whole = {"raw_value": raw, "error_message": error, "failed_at": isoformat(moment)}
        return cls(job.id, job.queue, job.name, orjson.dumps(whole), error, moment)


def storable(text: str, longest: int) -> str:
    """Text that every engine can keep: without secrets, cut, and without what UTF-8 or PostgreSQL can't write."""
    text = mask(text)
    cut = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return writable(cut)


def writable(text: str) -> str:
    """Text without what UTF-8 or PostgreSQL can't write, such as the odd bytes in a file's name."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _is_json(payload: bytes) -> bool:
    try:
        orjson.loads(payload)
    except orjson.JSONDecodeError:
        return False
    return True


# ── Ids ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_sequence = count()
_process = secrets.token_hex(6)


def _forget_parent() -> None:
    global _process
    _process = secrets.token_hex(6)


os.register_at_fork(after_in_child=_forget_parent)


def new_id(moment: Millis) -> str:
    """An id that sorts by time, so that an index of a million ids is appended to, not shuffled."""
    return f"{moment:012x}{next(_sequence) & 0xFFFFFFFF:08x}{_process}"


_UNFIT = re.compile(r"[:\s]")


def check_name(name: str) -> str:
    """The name of a job, if every engine can keep it."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise InvalidJob(
            f"A job's name must be text of 1 to {LONGEST_NAME} characters on one line, not {in_short(name)}."
        )
    return name


def check_priority(priority: int) -> int:
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 10:
        raise InvalidJob(
            f"priority must be a whole number from 1 (low) to 10 (high), not {in_short(priority)}."
        )
    return priority


def check_id(job_id: str) -> str:
    """The id, if every engine can keep it."""
    if not isinstance(job_id, str) or not 0 < len(job_id) <= 255:
        raise InvalidJob(f"A job id must be text of 1 to 255 characters, not {str(job_id)[:40]!r}.")
    if not job_id.isprintable() or _UNFIT.search(job_id):
        raise InvalidJob(
            f"The job id {job_id!r} has a space, a colon or a control character: use letters, digits, - _ . / @"
        )
    return job_id
