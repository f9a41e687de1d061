"""What goes over the wire: requests and answers of the API, as the OpenAPI page shows them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from yamchi.clock import isoformat, isoformat_or_none
from yamchi.fields import Name, SpanText, ZonedMoment, few
from yamchi.queues import foreign
from yamchi.queues.options import MOST_ATTEMPTS, MOST_KEPT, Backoff
from yamchi.queues.records import DeadLetter, JobRecord, State
from yamchi.queues.views import WorkerInfo

PREVIEW = 240
"""Characters of a job's data in a list."""

LONGEST_IN_LIST = 4_096
"""Bytes of data that a list has whole: a page may hold hundreds of jobs."""


class Counts(BaseModel):
    """How many jobs are in each state."""

    waiting: int
    delayed: int
    active: int
    completed: int
    failed: int
    cancelled: int
    expired: int


class Minute(BaseModel):
    """What a queue got done in one minute."""

    moment: str
    completed: int
    failed: int


class QueueOut(Counts):
    """A queue as it is now, its counts also by themselves. `history` are the minutes in which something was done, oldest first."""

    name: str = Field(examples=["thumbnails"])
    type: str = Field(description="The engine in use.", examples=["sqlite"])
    paused: bool
    counts: Counts
    dead_letters: int
    concurrency: int = Field(description="Jobs that one worker runs at once.")
    jobs: list[str] = Field(description="Names of the jobs this application handles.")
    history: list[Minute]
    error: str | None = Field(None, description="Why its engine does not answer, if it does not.")
    warning: str | None = Field(None, description="Why its jobs do not run: nobody is at work on them.")


class JobRow(BaseModel):
    """A job in a list; `preview` is the beginning of its data, and `data` all of it where that is short."""

    id: str
    queue: str
    name: str
    state: State
    priority: int
    attempts_made: int
    attempts: int
    progress: Any = None
    failed_reason: str | None = None
    worker: str | None = None
    created_at: str
    run_at: str
    started_at: str | None = None
    finished_at: str | None = None
    data: Any = None
    preview: str

    @classmethod
    def of(cls, job: JobRecord) -> "JobRow":
        """A row for every job: one that can't be shown says so, and does not keep the others from being shown."""
        try:
            return cls._of(job)
        except Exception as error:
            return cls(
                id=str(job.id),
                queue=job.queue,
                name=str(job.name),
                state=job.state,
                priority=0,
                attempts_made=0,
                attempts=0,
                created_at="",
                run_at="",
                preview=f"This job can't be shown: {str(error)[:PREVIEW]}",
            )

    @classmethod
    def _of(cls, job: JobRecord) -> "JobRow":
        return cls(
            id=job.id,
            queue=job.queue,
            name=job.name,
            state=job.state,
            priority=job.priority,
            attempts_made=job.attempts_made,
            attempts=job.options.attempts,
            progress=foreign.shown(job.progress),
            failed_reason=None if job.failed_reason is None else job.failed_reason[:PREVIEW],
            worker=job.worker,
            created_at=isoformat(job.created_at),
            run_at=isoformat(job.run_at),
            started_at=isoformat_or_none(job.started_at),
            finished_at=isoformat_or_none(job.finished_at),
            data=foreign.shown(job.payload) if len(job.payload) <= LONGEST_IN_LIST else None,
            preview=_preview(job.payload),
        )


class JobPage(BaseModel):
    jobs: list[JobRow]
    total: int
    page: int
    pages: int


class JobOut(BaseModel):
    """A whole job. Times are UTC, spans are milliseconds."""

    model_config = ConfigDict(extra="allow")

    id: str
    queue: str
    name: str
    state: State
    data: Any
    result: Any = None
    progress: Any = None
    logs: list[str] = []
    priority: int
    attempts_made: int
    attempts: int
    failed_reason: str | None = None
    stacktrace: str | None = None
    created_at: str
    run_at: str
    started_at: str | None = None
    finished_at: str | None = None


class JobIn(BaseModel):
    """A job to add. A span is seconds, or text such as "30m"."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"data": {"name": "you"}, "delay": "30s", "priority": 5}]},
    )

    data: Any = None
    name: Name | None = Field(None, description="Which of the queue's jobs; the first one by default.")
    id: Name | None = Field(None, description="The same id again is the same job.")
    delay: SpanText | None = Field(
        default=None, examples=["5m"], description='Text such as "30s" or "5m", or a number of seconds.'
    )
    run_at: ZonedMoment | None = None
    priority: int = Field(0, ge=0, le=10, description="Higher first.")
    attempts: int | None = Field(None, ge=1, le=MOST_ATTEMPTS)
    backoff: Annotated[str | float | list[str | float] | dict[str, Any] | None, few(1_000)] = Field(
        None, examples=["exponential", ["1m", "5m", "15m"]]
    )
    expires_at: ZonedMoment | None = None
    timeout: SpanText | None = None
    keep_completed: int | None = Field(None, ge=0, le=MOST_KEPT)
    keep_failed: int | None = Field(None, ge=0, le=MOST_KEPT)

    @field_validator("backoff")
    @classmethod
    def _is_backoff(cls, value: Any) -> Any:
        if value is not None:
            Backoff.parse(value)
        return value


class Edit(BaseModel):
    """New data of a job that is not running. With `retry` a finished one is also put back."""

    model_config = ConfigDict(extra="forbid")

    data: Any
    retry: bool = False


NotRunning = Literal["waiting", "delayed", "completed", "failed", "cancelled", "expired"]


class Clean(BaseModel):
    """Which jobs to remove: those that have been in `state` for at least `older_than`."""

    model_config = ConfigDict(extra="forbid")

    state: NotRunning = "completed"
    older_than: SpanText = 0
    limit: int = Field(10_000, ge=1, le=1_000_000)


class OfState(BaseModel):
    """Jobs of which state; in the address it may stand as well."""

    model_config = ConfigDict(extra="forbid")

    state: State = "failed"


class StateOut(BaseModel):
    """The state the job is in now."""

    id: str
    state: State


class LetterRow(BaseModel):
    """A dead letter in a list."""

    id: str
    name: str | None
    error: str
    failed_at: str
    preview: str

    @classmethod
    def of(cls, letter: DeadLetter) -> "LetterRow":
        return cls(
            id=str(letter.id),
            name=None if letter.name is None else str(letter.name),
            error=str(letter.error)[:PREVIEW],
            failed_at=isoformat(letter.failed_at),
            preview=_preview(letter.body),
        )


class LettersOut(BaseModel):
    letters: list[LetterRow]
    total: int
    page: int
    pages: int


class LetterOut(BaseModel):
    """A whole dead letter: `body` holds the `job` with its data, or the `raw_value` of what never was one."""

    id: str
    queue: str
    name: str | None
    error: str
    failed_at: str
    body: Any


class WorkerOut(BaseModel):
    """A worker seen alive of late."""

    id: str
    host: str
    pid: int
    queues: list[str]
    running: list[str] = Field(description="Ids of the jobs it runs.")
    started_at: str
    seen_at: str

    @classmethod
    def of(cls, worker: WorkerInfo) -> "WorkerOut":
        return cls(
            id=worker.id,
            host=worker.host,
            pid=worker.pid,
            queues=list(worker.queues),
            running=list(worker.running),
            started_at=isoformat(worker.started_at),
            seen_at=isoformat(worker.seen_at),
        )


class EngineHealth(BaseModel):
    type: str
    queues: list[str]
    ok: bool
    error: str | None = None


class ServiceHealth(BaseModel):
    """A background service of this process, such as the sweeper or the work of a queue."""

    name: str = Field(examples=["event sweeper"])
    state: Literal["running", "failing", "finished"] = Field(
        description="One that is failing starts again by itself, after a pause that grows up to a minute."
    )
    failures: int = Field(description="How often it failed since the process started.")
    error: str | None = Field(None, description="Why it failed last; null when it has run well since.")


class CheckOut(BaseModel):
    """What a feature says of a part of itself; `ok` null means that it is missing but not needed."""

    what: str
    ok: bool | None
    found: str


class Ready(BaseModel):
    """Whether work can be taken now, and nothing else."""

    ready: bool


class Readiness(BaseModel):
    """Whether work can be taken now, engine by engine.

    A channel whose provider is down, or a service that is starting again, does not make it unready.
    """

    ready: bool
    engines: list[EngineHealth]
    channels: dict[str, str] = {}
    services: list[ServiceHealth] = []
    checks: list[CheckOut] = []


def _preview(payload: bytes) -> str:
    return payload[: PREVIEW * 4].decode("utf-8", "replace")[:PREVIEW]
