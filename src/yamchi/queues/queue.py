"""`Queue` and `Job`: what users call. Neither knows which engine is behind it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Generic, TypeVar

import orjson

from yamchi.clock import Clock, Millis, Span, as_datetime, isoformat, to_millis, to_moment
from yamchi.errors import InvalidJob, UnknownJob, WrongState
from yamchi.queues.deadletters import DeadLetters
from yamchi.queues.engines.base import Engine
from yamchi.queues.events import Listener, Listeners
from yamchi.queues.handlers import QueueDefinition, decode_json, encode_json
from yamchi.queues.job import (
    Backoff,
    BackoffLike,
    Claim,
    JobOptions,
    JobRecord,
    NewJob,
    State,
    check_id,
    check_timeout,
    new_id,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class New:
    """One job of an `add_many`, where jobs differ in more than their data."""

    data: Any
    name: str | None = None
    id: str | None = None
    delay: Span | None = None
    run_at: datetime | None = None
    priority: int = 0
    attempts: int | None = None
    backoff: BackoffLike | None = None
    expires_at: datetime | None = None
    timeout: Span | None = None
    keep_completed: int | None = None
    keep_failed: int | None = None


class Job(Generic[T]):
    """A job: in a handler, the one at hand; elsewhere, a snapshot with the means to act on it.

    `attempts_made` counts this run too: it is 1 when a job runs for the first time.
    """

    __slots__ = ("_claim", "_data", "_loop", "is_new", "queue", "record")

    def __init__(
        self,
        queue: "Queue",
        record: JobRecord,
        *,
        claim: Claim | None = None,
        data: Any = ...,
        is_new: bool = False,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.queue = queue
        self.record = record
        self.is_new = is_new
        self._claim = claim
        self._data = data
        self._loop = loop

    # ── What it is ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def data(self) -> T:
        if self._data is ...:
            self._data = decode_json(self.record.payload)
        return self._data  # type: ignore[no-any-return]

    @property
    def state(self) -> State:
        return self.record.state

    @property
    def priority(self) -> int:
        return self.record.priority

    @property
    def attempts(self) -> int:
        return self.record.options.attempts

    @property
    def attempts_made(self) -> int:
        return self.record.attempts_made

    @property
    def is_last_attempt(self) -> bool:
        return self.attempts_made >= self.attempts

    @property
    def result(self) -> Any:
        return None if self.record.result is None else orjson.loads(self.record.result)

    @property
    def progress_made(self) -> Any:
        """What `progress` was last told."""
        return None if self.record.progress is None else orjson.loads(self.record.progress)

    @property
    def failed_reason(self) -> str | None:
        return self.record.failed_reason

    @property
    def stacktrace(self) -> str | None:
        return self.record.stacktrace

    @property
    def logs(self) -> list[str]:
        return self.record.logs

    @property
    def worker(self) -> str | None:
        return self.record.worker

    @property
    def created_at(self) -> datetime:
        return as_datetime(self.record.created_at)

    @property
    def run_at(self) -> datetime:
        return as_datetime(self.record.run_at)

    @property
    def expires_at(self) -> datetime | None:
        return _moment(self.record.expires_at)

    @property
    def started_at(self) -> datetime | None:
        return _moment(self.record.started_at)

    @property
    def finished_at(self) -> datetime | None:
        return _moment(self.record.finished_at)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can carry it; times are UTC text."""
        record, options = self.record, self.record.options
        return {
            "id": record.id,
            "queue": record.queue,
            "name": record.name,
            "data": _shown(record.payload),
            "state": record.state,
            "priority": record.priority,
            "attempts_made": record.attempts_made,
            "attempts": options.attempts,
            "backoff": asdict(options.backoff),
            "timeout": options.timeout,
            "keep_completed": options.keep_completed,
            "keep_failed": options.keep_failed,
            "progress": self.progress_made,
            "logs": record.logs,
            "result": self.result,
            "failed_reason": record.failed_reason,
            "stacktrace": record.stacktrace,
            "worker": record.worker,
            **{
                name: None if (moment := getattr(record, name)) is None else isoformat(moment)
                for name in ("created_at", "run_at", "expires_at", "started_at", "finished_at")
            },
        }

    def __repr__(self) -> str:
        return f"<Job {self.record.queue}/{self.record.name} {self.id} {self.state}>"

    # ── What a handler does with it ───────────────────────────────────────────────────────────────────────────────

    def progress(self, value: Any) -> Awaitable[None]:
        """Say how far this job has come: a number or anything JSON can carry."""
        return self._do(self._report(value))

    async def _report(self, value: Any) -> None:
        if self._claim is None:
            raise WrongState(f"Job {self.id} is not running here, so its progress can't be set.")
        self.record.progress = orjson.dumps(value)
        await self.queue.engine.progress(self._claim, self.record.progress)
        self.queue.listeners.emit("progress", self, value)

    def log(self, *lines: str) -> Awaitable[None]:
        """Append lines to this job's log."""
        # A new record: in memory the old one is the engine's own.
        self.record = replace(self.record, logs=[*self.record.logs, *lines])
        return self._do(self.queue.engine.log(self.record.queue, self.id, lines))

    def _do(self, work: Coroutine[Any, Any, None]) -> Awaitable[None]:
        """Async handlers await; plain ones, in their thread, get it done by the time the call returns."""
        if self._loop is None or self._loop is _current_loop():
            return work
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        done.result()
        return _Done()

    # ── What others do with it ────────────────────────────────────────────────────────────────────────────────────

    async def refresh(self) -> "Job[T]":
        """The same job as it is now."""
        return await self.queue.job(self.id)

    async def remove(self) -> None:
        await self._must(self.queue.engine.remove, "removed", "it is running or gone")

    async def retry(self) -> None:
        await self._must(self.queue.engine.retry, "retried", "only a finished job can be")

    async def promote(self) -> None:
        await self._must(self.queue.engine.promote, "promoted", "only a delayed job can be")

    async def cancel(self) -> State:
        """Stop this job: `cancelled` if it had not begun, `active` if it has been asked to stop."""
        return await self.queue.cancel(self.id)

    async def update(self, data: Any) -> None:
        """Replace the data of a job that is not running."""
        payload = self.queue.encode(self.name, data)
        if not await self.queue.engine.update(self.queue.name, self.id, payload):
            raise WrongState(f"Job {self.id} of {self.queue.name} can't be changed: it is running or gone.")

    async def _must(
        self, act: Callable[[str, Sequence[str]], Awaitable[list[str]]], done: str, why: str
    ) -> None:
        if not await act(self.queue.name, [self.id]):
            raise WrongState(f"Job {self.id} of {self.queue.name} can't be {done}: {why}.")


class Queue:
    """A queue: add jobs, look at them, act on them. Get one with `app.queue(name)`."""

    def __init__(self, definition: QueueDefinition, engine: Engine, clock: Clock) -> None:
        self.definition = definition
        self.name = definition.name
        self.engine = engine
        self.listeners = Listeners(definition.name)
        self.dead_letters = DeadLetters(definition, engine)
        self._clock = clock

    # ── Adding ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def add(
        self,
        data: Any = None,
        *,
        name: str | None = None,
        id: str | None = None,
        delay: Span | None = None,
        run_at: datetime | None = None,
        priority: int = 0,
        attempts: int | None = None,
        backoff: BackoffLike | None = None,
        expires_at: datetime | None = None,
        timeout: Span | None = None,
        keep_completed: int | None = None,
        keep_failed: int | None = None,
    ) -> Job[Any]:
        """Add one job. When this returns, the job is safe. The same id again is the same job (`is_new` tells)."""
        new = New(
            data,
            name,
            id,
            delay,
            run_at,
            priority,
            attempts,
            backoff,
            expires_at,
            timeout,
            keep_completed,
            keep_failed,
        )
        return (await self.add_many([new]))[0]

    async def add_many(self, items: Iterable[Any]) -> list[Job[Any]]:
        """Add many jobs in one go, each given by its data or as `New(data, id=…, delay=…)`."""
        now = self._clock.now()
        jobs = [self._new_job(item if isinstance(item, New) else New(item), now) for item in items]
        if not jobs:
            return []
        created = await self.engine.add(self.name, jobs)
        added: list[Job[Any]] = [
            Job(self, self._as_added(job, now), is_new=is_new)
            for job, is_new in zip(jobs, created, strict=True)
        ]
        return [job if job.is_new else await self._existing(job) for job in added]

    async def _existing(self, job: Job[Any]) -> Job[Any]:
        record = await self.engine.get(self.name, job.id)
        return Job(self, record) if record else job

    def _as_added(self, job: NewJob, now: Millis) -> JobRecord:
        run_at = now if job.run_at is None else job.run_at
        state: State = "delayed" if run_at > now else "waiting"
        return JobRecord(
            job.id,
            self.name,
            job.name,
            job.payload,
            state,
            now,
            run_at,
            job.options,
            job.priority,
            job.expires_at,
        )

    def _new_job(self, new: New, now: Millis) -> NewJob:
        name = new.name or self.definition.default_name
        payload = self.encode(name, new.data)
        return NewJob(
            id=new_id(now) if new.id is None else check_id(new.id),
            name=name,
            payload=payload,
            options=self._options(new),
            priority=_check_priority(new.priority),
            run_at=_due(new, now),
            expires_at=None if new.expires_at is None else to_moment(new.expires_at),
        )

    def encode(self, name: str, data: Any) -> bytes:
        """Data as it will lie on the broker, checked against the handler's model and the size limit."""
        definition = self.definition
        payload = definition.handler(name).encode(data) if definition.handlers else encode_json(data)
        if len(payload) > definition.max_bytes:
            raise InvalidJob(
                f"The data of {self.name}/{name} is {len(payload):,} bytes, more than the {definition.max_bytes:,} allowed: "
                "keep large things in a file or object store and put their address in the job."
            )
        return payload

    def _options(self, new: New) -> JobOptions:
        given: dict[str, Any] = {}
        for option in ("attempts", "keep_completed", "keep_failed"):
            if (value := getattr(new, option)) is not None:
                given[option] = value
        if new.backoff is not None:
            given["backoff"] = Backoff.parse(new.backoff)
        if new.timeout is not None:
            given["timeout"] = check_timeout(new.timeout)
        return replace(self.definition.options, **given) if given else self.definition.options

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def job(self, job_id: str) -> Job[Any]:
        """One job with its logs."""
        record = await self.engine.get(self.name, job_id)
        if record is None:
            raise UnknownJob(
                f"Queue {self.name} has no job {job_id!r}: it never had one, or it is no longer kept."
            )
        return Job(self, record)

    async def jobs(
        self, state: State | None = None, *, search: str = "", offset: int = 0, limit: int = 50
    ) -> list[Job[Any]]:
        """Jobs of one state, or of all, whose id, name or data contains `search`."""
        page = await self.engine.page(self.name, state, search, offset, limit)
        return [Job(self, record) for record in page.jobs]

    async def stats(self) -> dict[str, Any]:
        """{waiting, active, delayed, completed, failed, type}"""
        counts = await self.engine.counts(self.name)
        shown = {state: counts[state] for state in ("waiting", "active", "delayed", "completed", "failed")}
        return {**shown, "type": self.engine.type}

    def on(self, event: str, listener: Listener) -> None:
        """Call `listener` on "completed" (job, result), "failed" (job, error), "progress" (job, progress),
        "stalled" (job) or "error" (error), wherever the engine can tell."""
        self.listeners.on(event, listener)

    # ── Acting ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def cancel(self, job_id: str) -> State:
        """Cancel a job that waits; ask a running one to stop. The state it is in now."""
        outcome = await self.engine.cancel(self.name, [job_id])
        if job_id not in outcome:
            raise WrongState(f"Job {job_id} of {self.name} can't be cancelled: it has finished or is gone.")
        return outcome[job_id]

    async def pause(self) -> None:
        """Let nobody start a job of this queue, in any process; running ones finish."""
        await self.engine.pause(self.name)

    async def resume(self) -> None:
        await self.engine.resume(self.name)

    async def is_paused(self) -> bool:
        return await self.engine.paused(self.name)

    async def clean(self, state: State = "completed", *, older_than: Span = 0, limit: int = 10_000) -> int:
        """Remove jobs of a state that have been in it for at least `older_than`; how many went."""
        if state == "active":
            raise WrongState("Running jobs can't be cleaned away; cancel them instead.")
        return await self.engine.clean(self.name, state, to_millis(older_than), limit)

    async def drain(self, *, delayed: bool = False) -> int:
        """Remove every waiting job, and delayed ones too if asked; how many went."""
        states: list[State] = ["waiting", "delayed"] if delayed else ["waiting"]
        gone = 0
        for state in states:
            while cleaned := await self.engine.clean(self.name, state, 0, 10_000):
                gone += cleaned
        return gone

    async def retry_all(self, state: State = "failed") -> int:
        """Put every job of a finished state back; how many went."""
        retried = 0
        while page := (await self.engine.page(self.name, state, "", 0, 1_000)).jobs:
            back = await self.engine.retry(self.name, [job.id for job in page])
            retried += len(back)
            if not back:
                break
        return retried


class _Done:
    """Something to await that is already over."""

    def __await__(self) -> Any:
        return iter(())


def _current_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _moment(moment: Millis | None) -> datetime | None:
    return None if moment is None else as_datetime(moment)


def _shown(payload: bytes) -> Any:
    """Data for people: as JSON if it is, else the text itself."""
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        return payload.decode("utf-8", "backslashreplace")


def _due(new: New, now: Millis) -> Millis | None:
    if new.delay is not None and new.run_at is not None:
        raise InvalidJob("Give either delay or run_at, not both.")
    if new.run_at is not None:
        return to_moment(new.run_at)
    return None if new.delay is None else now + _check_span("delay", new.delay)


def _check_span(what: str, span: Span) -> Millis:
    length = to_millis(span)
    if length < 0:
        raise InvalidJob(f"{what} can't be negative, but is {span!r}.")
    return length


def _check_priority(priority: int) -> int:
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 10:
        raise InvalidJob(f"priority must be a whole number from 1 (low) to 10 (high), not {priority!r}.")
    return priority
