"""Calls a handler: with decoded data, within its timeout, in a thread or a child process if it needs one."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from yamchi.clock import Millis, describe_span
from yamchi.errors import Retryable
from yamchi.queues.bulkheads import Bulkheads
from yamchi.queues.handlers import Handler
from yamchi.queues.job import Job
from yamchi.queues.processes.limits import ProcessLimits
from yamchi.queues.processes.pool import ProcessPool
from yamchi.queues.queue import Queue
from yamchi.queues.records import Claim

MOST_THREADS = 10_000
"""Each is made when it is needed: there are as many as jobs run, those among them that have lent their slot."""


class Named(Protocol):
    """A job, or what stands for one, as far as a sentence needs it."""

    @property
    def name(self) -> str: ...


class Executor:
    """Calls the handlers of one queue. A thread can't be stopped: `stuck_threads` counts those whose job is over already."""

    def __init__(self, queue: Queue, bulkheads: Bulkheads, on_return: Callable[[], None]) -> None:
        self.stuck_threads = 0
        self._bulkheads = bulkheads
        self._queue = queue
        self._on_return = on_return
        self._threads: ThreadPoolExecutor | None = None
        self._processes: dict[str, ProcessPool] = {}

    def call(self, claim: Claim) -> Awaitable[Any]:
        """What the handler returns; bad data never reaches it. On the hot path no coroutine but the handler's is made."""
        handler = self._queue.definition.handler(claim.job.name)
        data = handler.decode(claim.job.payload)
        job: Job[Any] = Job(self._queue, claim.job, claim=claim, data=data, bulkheads=self._bulkheads)
        timeout = claim.job.options.timeout
        if handler.limits:
            return self._pool_of(handler, handler.limits).run(job, within=partial(run_within, timeout, job))
        call = self._invoke(handler, job)
        return call if timeout is None else run_within(timeout, job, call)

    def _invoke(self, handler: Handler, job: Job[Any]) -> Awaitable[Any]:
        arguments = (job,) if handler.takes_job else ()
        if handler.is_async:
            return handler.function(*arguments)  # type: ignore[no-any-return]
        return self._in_thread(handler, job, arguments)

    async def close(self) -> None:
        """End the child processes."""
        await asyncio.gather(*(pool.close() for pool in self._processes.values()))

    def _pool_of(self, handler: Handler, limits: ProcessLimits) -> ProcessPool:
        if handler.name not in self._processes:
            self._processes[handler.name] = ProcessPool(
                self._queue.name, handler.name, handler.function, limits
            )
        return self._processes[handler.name]

    async def _in_thread(self, handler: Handler, job: Job[Any], arguments: tuple[Any, ...]) -> Any:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix=f"handler-{self._queue.name}")
        job._loop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        future = self._threads.submit(context.run, handler.function, *arguments)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            self._note_stuck(future)
            raise

    def _note_stuck(self, future: "Future[Any]") -> None:
        """The slot stays taken until the thread ends, even if the job has its verdict."""
        if future.done():
            return
        self.stuck_threads += 1
        loop = asyncio.get_running_loop()

        def ended(_: "Future[Any]") -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._note_return)

        future.add_done_callback(ended)

    def _note_return(self) -> None:
        self.stuck_threads -= 1
        self._on_return()


async def run_within(timeout: Millis | None, job: Named, work: Awaitable[Any]) -> Any:
    """The result of the work. Raises `Retryable` after the timeout."""
    try:
        async with asyncio.timeout(None if timeout is None else timeout / 1000) as limit:
            return await work
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise Retryable(
            f"{job.name} took longer than its timeout of {describe_span(timeout or 0)}"
        ) from error
