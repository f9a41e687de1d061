"""`Job`: what a handler gets, and what others look at and act on."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from datetime import datetime
from time import perf_counter
from typing import Any, Generic, Protocol, TypedDict, TypeVar, Unpack

import orjson
import structlog

from yamchi.clock import Millis, Span, as_datetime, isoformat_or_none
from yamchi.errors import WrongState
from yamchi.observe.logging import mask
from yamchi.queues import foreign, results
from yamchi.queues.bulkheads import Bulkheads
from yamchi.queues.engines.base import Engine
from yamchi.queues.events import EventType, Listener, Listeners
from yamchi.queues.handlers import decode_json
from yamchi.queues.options import Backoff, BackoffLike
from yamchi.queues.records import Claim, JobRecord, State, writable

log = structlog.get_logger("yamchi.worker")

T = TypeVar("T")

LONGEST_SHOWN = 200
"""Bytes of a job's progress that its log line shows."""


class AddOptions(TypedDict, total=False):
    """What `add` takes beside the data."""

    name: str | None
    id: str | None
    delay: Span | None
    run_at: datetime | None
    priority: int
    attempts: int | None
    backoff: BackoffLike | None
    expires_at: datetime | None
    timeout: Span | None
    keep_completed: int | None
    keep_failed: int | None


class ItsQueue(Protocol):
    """The queue of a job, as far as a job needs it: a `Queue`."""

    name: str
    engine: Engine
    listeners: Listeners

    async def add(
        self, data: Any = None, *, connection: Any = None, **options: Unpack[AddOptions]
    ) -> "Job[Any]": ...
    async def add_many(self, items: Iterable[Any], *, connection: Any = None) -> "list[Job[Any]]": ...
    def on(self, event: EventType, listener: Listener) -> None: ...
    async def job(self, job_id: str) -> "Job[Any]": ...
    async def cancel(self, job_id: str) -> State: ...
    async def remove(self, job_ids: Sequence[str]) -> list[str]: ...
    async def retry(self, job_ids: Sequence[str]) -> list[str]: ...
    async def promote(self, job_ids: Sequence[str]) -> list[str]: ...
    def encode(self, name: str, data: Any) -> bytes: ...


class Job(Generic[T]):
    """A job: in a handler, the one that runs; elsewhere, a snapshot with methods that act on the job.

    `attempts_made` counts this run too: it is 1 when a job runs for the first time.
    """

    __slots__ = ("_bulkheads", "_claim", "_data", "_loop", "is_new", "queue", "record")

    def __init__(
        self,
        queue: ItsQueue,
        record: JobRecord,
        *,
        claim: Claim | None = None,
        data: Any = ...,
        is_new: bool = False,
        bulkheads: Bulkheads | None = None,
    ) -> None:
        self.queue = queue
        self.record = record
        self.is_new = is_new
        self._claim = claim
        self._data = data
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bulkheads = bulkheads

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
    def backoff(self) -> Backoff:
        return self.record.options.backoff

    @property
    def attempts_made(self) -> int:
        return self.record.attempts_made

    @property
    def is_last_attempt(self) -> bool:
        return self.attempts_made >= self.attempts

    @property
    def returned(self) -> Any:
        """What the handler had returned when this snapshot was taken; `result` waits for it."""
        return None if self.record.result is None else orjson.loads(self.record.result)

    @property
    def progress_made(self) -> Any:
        """The last value that was given to `progress`."""
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
            "data": foreign.shown(record.payload),
            "state": record.state,
            "priority": record.priority,
            "attempts_made": record.attempts_made,
            "attempts": options.attempts,
            "backoff": asdict(options.backoff),
            "timeout": options.timeout,
            "keep_completed": options.keep_completed,
            "keep_failed": options.keep_failed,
            "progress": foreign.shown(record.progress),
            "logs": record.logs,
            "result": foreign.shown(record.result),
            "failed_reason": record.failed_reason,
            "stacktrace": record.stacktrace,
            "worker": record.worker,
            **{
                name: isoformat_or_none(getattr(record, name))
                for name in ("created_at", "run_at", "expires_at", "started_at", "finished_at")
            },
        }

    def __repr__(self) -> str:
        return f"<Job {self.record.queue}/{self.record.name} {self.id} {self.state}>"

    # ── What a handler does with it ───────────────────────────────────────────────────────────────────────────────

    def progress(self, value: Any) -> Awaitable[None]:
        """Report how far this job has come: a number, or anything that JSON can carry."""
        return self._do(self._report(value))

    async def _report(self, value: Any) -> None:
        if self._claim is None:
            raise WrongState(f"Job {self.id} is not running here, so its progress can't be set.")
        self.record.progress = orjson.dumps(value)
        await self.queue.engine.progress(self._claim, self.record.progress)
        shown = self.record.progress[:LONGEST_SHOWN].decode(errors="replace")
        log.debug(f"[{self.queue.name}:{self.queue.engine.type}] progress of {self.name} {self.id}: {shown}")
        self.queue.listeners.emit("progress", self, value)

    def holding(self, name: str) -> AbstractContextManager[None]:
        """`with job.holding("provider"):` around a call of another service, so that a slow service stops only its own jobs.

        As many jobs as the queue has slots may hold one name. A further job goes back to the queue for a while, which costs no
        attempt. A job that holds a name for longer than a second lends its slot to jobs of other names.
        """
        if self._bulkheads is None:
            return nullcontext()
        held = self._bulkheads.hold(name)
        return held if self._loop is None or self._loop is _current_loop() else self._held_there(held)

    @contextmanager
    def _held_there(self, held: AbstractContextManager[None]) -> Iterator[None]:
        """For a plain handler, which runs in a thread: bulkheads belong to the event loop."""
        self._do(_call(held.__enter__))
        try:
            yield
        finally:
            self._do(_call(held.__exit__, None, None, None))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a wait for a free child process: the lease is kept, and the timeout does not run."""
        claim, began = self._claim, perf_counter()
        if claim is None:
            yield
            return
        claim.is_waiting = True
        try:
            yield
        finally:
            claim.waited += perf_counter() - began
            claim.is_waiting = False  # last: the lease keeper's thread reads both

    def log(self, *lines: str) -> Awaitable[None]:
        """Append lines to this job's log; what looks like a secret is masked."""
        lines = tuple(writable(mask(str(line))) for line in lines)
        # A new record: in memory the old one is the engine's own.
        self.record = self.record.changed(logs=[*self.record.logs, *lines])
        return self._do(self.queue.engine.log(self.record.queue, self.id, lines))

    def _do(self, work: Coroutine[Any, Any, None]) -> Awaitable[None]:
        """Async handlers await the result. For plain handlers, which run in a thread, the work is done when this returns."""
        if self._loop is None or self._loop is _current_loop():
            return work
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        done.result()
        return Done()

    # ── What others do with it ────────────────────────────────────────────────────────────────────────────────────

    async def result(self, timeout: Span | None = None) -> Any:
        """Wait until this job has ended; what its handler returned.

        Raises `JobFailed` if it failed, was cancelled or expired, and `TimeoutError` if it takes longer than `timeout`.
        """
        self.record = await results.finished(self.queue, self.id, timeout)
        results.checked(self.record)
        return self.returned

    async def refresh(self) -> "Job[T]":
        """The same job as it is now."""
        return await self.queue.job(self.id)

    async def remove(self) -> None:
        await self._must(self.queue.remove, "removed", "it is running or gone")

    async def retry(self) -> None:
        await self._must(self.queue.retry, "retried", "only a finished job can be")

    async def promote(self) -> None:
        await self._must(self.queue.promote, "promoted", "only a delayed job can be")

    async def cancel(self) -> State:
        """Cancel this job: its state is then `cancelled`, or still `active` if it was running and has been asked to stop."""
        return await self.queue.cancel(self.id)

    async def update(self, data: Any) -> None:
        """Replace the data of a job that is not running."""
        payload = self.queue.encode(self.name, data)
        if not await self.queue.engine.update(self.queue.name, self.id, payload):
            raise WrongState(f"Job {self.id} of {self.queue.name} can't be changed: it is running or gone.")

    async def _must(self, act: Callable[[Sequence[str]], Awaitable[list[str]]], done: str, why: str) -> None:
        if not await act([self.id]):
            raise WrongState(f"Job {self.id} of {self.queue.name} can't be {done}: {why}.")


async def _call(function: Callable[..., Any], *arguments: Any) -> None:
    function(*arguments)


class Done:
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


HandlerFunction = Callable[[Job[Any]], Any] | Callable[[], Any]
"""What `@app.job` and `@app.cron` stand above: a function of the job, or of nothing."""
