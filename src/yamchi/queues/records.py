"""A job as the queue core sees it: what is asked for (`NewJob`), what is kept (`JobRecord`), how it ended (`Verdict`).

The payload is bytes of JSON from end to end: it is decoded once, where a handler or a person needs it.
"""

import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count
from operator import attrgetter
from typing import Any, Literal, Self

import orjson
from pydantic import BaseModel

from yamchi.clock import Millis, in_short, isoformat
from yamchi.errors import InvalidJob
from yamchi.observe.logging import mask
from yamchi.queues import foreign
from yamchi.queues.options import DEFAULT_OPTIONS, JobOptions

State = Literal["waiting", "delayed", "active", "completed", "failed", "cancelled", "expired"]
PENDING: tuple[State, ...] = ("waiting", "delayed")
FinishedState = Literal["completed", "failed", "cancelled", "expired"]
FINISHED: tuple[FinishedState, ...] = ("completed", "failed", "cancelled", "expired")
STATES: tuple[State, ...] = ("waiting", "delayed", "active", *FINISHED)

LONGEST_NAME = foreign.LONGEST_NAME
"""Characters of a job's name."""


def to_json(data: Any) -> bytes:
    """Data of a job, or what one returned; models may be anywhere in it."""
    return orjson.dumps(data, default=_plain)


def _plain(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError  # which is told with the type


# ── A job on its way in, and as it is kept ────────────────────────────────────────────────────────────────────────


# Not frozen, though nobody changes one: freezing costs 0.7 µs a job where it is added, and 3 µs where it is claimed.
@dataclass(slots=True)
class NewJob:
    """A job as `add` passes it to an engine. `run_at` None means at once."""

    id: str
    name: str
    payload: bytes
    options: JobOptions = DEFAULT_OPTIONS
    priority: int = 0
    run_at: Millis | None = None
    expires_at: Millis | None = None

    def as_added(self, queue: str, now: Millis) -> "JobRecord":
        """The record of this job when it has just been added."""
        run_at = now if self.run_at is None else self.run_at
        state: State = "delayed" if run_at > now else "waiting"
        return JobRecord(
            self.id,
            queue,
            self.name,
            self.payload,
            state,
            now,
            run_at,
            self.options,
            self.priority,
            self.expires_at,
        )


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
        """The same job to be added again, for example to another engine or from its dead letter."""
        fresh = NewJob(
            self.id, self.name, self.payload, self.options, self.priority, self.run_at, self.expires_at
        )
        return replace(fresh, **changes)

    def log_fields(self, **more: Any) -> dict[str, Any]:
        """The keys of a log line about this job."""
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
    """The job goes back without paying an attempt, due at once or at `until`."""

    claim: Claim
    until: Millis | None = None
    reason: str | None = None
    has_permit: bool = False
    is_said: bool = False
    """The log has the reason already, for all jobs that wait for it."""


Verdict = Completed | RetryAt | Failed | Expired | Cancelled | Released


def last_kept(verdicts: Sequence[Verdict], state: State) -> int:
    """How many jobs of this state to keep, by the options of the last verdict whose job is kept; 0 if there is none."""
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


STEPS_OF_ADDRESSES = (".", "..")
"""Steps of a path: an address that ended with one of these would lead elsewhere."""


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
    is_plain = job_id.isprintable() and " " not in job_id and ":" not in job_id
    if not is_plain or job_id in STEPS_OF_ADDRESSES:
        raise InvalidJob(
            f"The job id {job_id!r} has a space, a colon or a control character, or is a step in an address: use letters, digits, - _ . / @"
        )
    return job_id
