"""Waiting for the result of a job: by its event, and by looking at the job in case no event comes."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from yamchi.clock import Millis, Span, describe_span
from yamchi.errors import JobFailed, UnknownJob
from yamchi.queues.engines.base import Engine
from yamchi.queues.events import EventType, Listener, Listeners
from yamchi.queues.options import positive_span
from yamchi.queues.records import FINISHED, JobRecord, State, to_json

FIRST_LOOK: Millis = 50
RAREST_LOOK: Millis = 2_000
"""Looks at the job come at first so soon, then ever more rarely, down to this."""

_waiting: "WeakKeyDictionary[asyncio.Task[Any], asyncio.Event]" = WeakKeyDictionary()
"""By waiting task, the event that makes it look again."""


class Heard(Protocol):
    """The part of a queue that waiting needs."""

    name: str
    engine: Engine
    listeners: Listeners

    def on(self, event: EventType, listener: Listener) -> None: ...


async def finished(queue: Heard, job_id: str, timeout: Span | None) -> JobRecord:
    """The job when it is over, however it ended."""
    span = None if timeout is None else positive_span("timeout", timeout)
    try:
        async with asyncio.timeout(None if span is None else span / 1000):
            return await _wait(queue, job_id)
    except TimeoutError:
        waited = describe_span(span or 0)
        raise TimeoutError(f"Job {job_id} of {queue.name} is not finished after {waited}.") from None


async def _wait(queue: Heard, job_id: str) -> JobRecord:
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    heard: list[JobRecord] = []

    def hear(state: State, job: Any, value: Any = None) -> None:
        """Called by whichever loop the worker has."""
        if job.id == job_id:
            heard.append(_ended(job.record, state, value))
            loop.call_soon_threadsafe(told.set)

    stop = _listen(queue, hear)
    pause = FIRST_LOOK
    try:
        while True:
            record = await queue.engine.get(queue.name, job_id)
            if record is None and heard:
                return heard[-1]
            if record is None:
                raise no_such_job(queue.name, job_id)
            if record.state in FINISHED:
                return record
            told.clear()
            with _noted(told):
                await _either(told, pause)
            pause = min(2 * pause, RAREST_LOOK)
    finally:
        stop()


def no_such_job(queue: str, job_id: str) -> UnknownJob:
    return UnknownJob(f"Queue {queue} has no job {job_id!r}: it never had one, or it is no longer kept.")


@contextmanager
def _noted(told: asyncio.Event) -> Iterator[None]:
    if (task := asyncio.current_task()) is None:
        yield
        return
    _waiting[task] = told
    try:
        yield
    finally:
        _waiting.pop(task, None)


def count_waiting(tasks: Iterable["asyncio.Task[Any]"]) -> int:
    """How many of these tasks wait for the result of a job."""
    return sum(task in _waiting for task in tasks)


def look_again(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Let those of these tasks that wait for a job look at it now."""
    for task in tasks:
        if told := _waiting.get(task):
            told.set()


def _listen(queue: Heard, hear: Callable[..., None]) -> Callable[[], None]:
    listeners = {state: partial(hear, state) for state in FINISHED}
    for state, listener in listeners.items():
        queue.on(state, listener)

    def stop() -> None:
        for state, listener in listeners.items():
            queue.listeners.off(state, listener)

    return stop


def _ended(record: JobRecord, state: State, value: Any) -> JobRecord:
    """A job as its last event describes it: the job itself may not be kept."""
    if state == "completed":
        return record.changed(state=state, result=to_json(value))
    return record.changed(state=state, failed_reason=None if value is None else str(value))


async def _either(told: asyncio.Event, pause: Millis) -> None:
    try:
        async with asyncio.timeout(pause / 1000):
            await told.wait()
    except TimeoutError:
        return


def checked(record: JobRecord) -> JobRecord:
    """The job, if it was completed."""
    if record.state != "completed":
        raise JobFailed(record.queue, record.id, record.state, record.failed_reason)
    return record
