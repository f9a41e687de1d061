"""`app.sync`: the same queues for code without an event loop, such as a view of Django or Flask, a script, or a plain handler.

Calls run on the event loop where the engine is open, or where the application is used, if there is one, else on that of a thread
of their own.
"""

import asyncio
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, wait
from functools import partial
from time import monotonic
from typing import Any, TypeVar, Unpack

from yamchi.errors import EngineUnavailable
from yamchi.queues.deadletters import DeadLetters
from yamchi.queues.forking import begin_anew_after_fork
from yamchi.queues.job import AddOptions, Job
from yamchi.queues.queue import Queue
from yamchi.queues.transactions import run_at_once, transactional

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]
Run = Callable[[Work[Any]], Any]

LOOK_SECONDS = 1.0
"""How often a thread that waits looks whether the loop that works for it is still there."""

BLOCKED_SECONDS = 30.0
"""How long a loop may take to begin what it was handed."""

BLOCKED = (
    "The event loop on which the application is used has begun nothing for {:g} s, so app.sync can't either: something in its "
    "thread waits, such as a TestClient in an async test. Nothing was done."
)

TOO_LATE = (
    "app.sync can't be used any more: the interpreter ends, and its threads stand still. "
    "Call it before the program ends; in an atexit function it is too late to begin."
)


class Background:
    """A thread with an event loop, begun when it is first needed; a forked process gets one of its own."""

    def __init__(self) -> None:
        self.begin_anew()
        begin_anew_after_fork(self)

    def begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop, self._thread = _begin_thread()
            return self._loop

    def stop(self) -> None:
        """When this returns, nobody takes the loop for one that runs: what is handed to it as it stops is never done."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop and thread:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()


def _begin_thread() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_serve, args=[loop], name="yamchi-sync", daemon=True)
    try:
        thread.start()
    except BaseException:
        loop.close()
        raise
    return loop, thread


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    while tasks := asyncio.all_tasks(loop):  # who waits for one of them is told
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks))
    loop.close()


class Sync:
    """What `app.sync` is. `close` lets go of what the calls opened; a process that ends need not call it."""

    def __init__(
        self,
        queue: Callable[[str], Queue],
        close: Callable[[], Coroutine[Any, Any, None]],
        home: Callable[[], asyncio.AbstractEventLoop | None],
    ) -> None:
        self._queue = queue
        self._close = close
        self._home = home
        self._background = Background()

    def queue(self, name: str) -> "SyncQueue":
        """A declared queue, whose methods return when they are done."""
        queue = self._queue(name)
        return SyncQueue(queue, partial(self._run_for, queue))

    def _run_for(self, queue: Queue, work: Work[T]) -> T:
        try:
            return self._run_where_it_is_open(queue, work)
        except RuntimeError as error:
            if threading.main_thread().is_alive():
                raise
            raise RuntimeError(TOO_LATE) from error

    def _run_where_it_is_open(self, queue: Queue, work: Work[T]) -> T:
        loop = self._loop_of(queue)
        try:
            return _run(work, loop)
        except EngineUnavailable:
            if not loop.is_running() or (opened_on := self._loop_of(queue)) is loop:
                raise
            return _run(work, opened_on)  # a worker began to open it at the same moment

    def _loop_of(self, queue: Queue) -> asyncio.AbstractEventLoop:
        for home in (getattr(queue.engine, "home", None), self._home()):
            if home and home.is_running():
                return home
        return self._background.loop()

    def close(self) -> None:
        _run(self._close, self._background.loop())
        self._background.stop()


def _run(work: Work[T], loop: asyncio.AbstractEventLoop) -> T:
    if _is_in_event_loop():
        raise RuntimeError(
            "app.sync waits, and would stop the event loop that runs here: use await app.queue(…)."
        )
    decided = threading.Lock()  # taken by the loop that begins it, or else by the caller who gives it up

    async def begin() -> T:
        if not decided.acquire(blocking=False):
            raise asyncio.CancelledError
        return await work()

    return _wait(asyncio.run_coroutine_threadsafe(begin(), loop), loop, decided)


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _wait(answer: "Future[T]", loop: asyncio.AbstractEventLoop, decided: threading.Lock) -> T:
    """What is handed to a loop as it ends, or to one whose thread waits for us, may never be done, and nobody else would tell."""
    deadline = monotonic() + BLOCKED_SECONDS
    while not (answer.done() or loop.is_closed() or sys.is_finalizing()):
        if monotonic() > deadline and decided.acquire(blocking=False):
            raise RuntimeError(BLOCKED.format(BLOCKED_SECONDS))
        wait([answer], LOOK_SECONDS)
    if answer.done() and not answer.cancelled():
        return answer.result()
    if sys.is_finalizing():
        raise RuntimeError(TOO_LATE)
    raise RuntimeError("app.sync was closed before this was done.")


class _Blocking:
    """Something whose coroutine methods are called and waited for."""

    def __init__(self, target: Any, run: Run) -> None:
        self._target = target
        self._run = run

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not inspect.iscoroutinefunction(found):
            return self._wrap(found)
        return lambda *given, **options: self._wrap(self._run(lambda: found(*given, **options)))

    def _wrap(self, value: Any) -> Any:
        match value:
            case Job():
                return SyncJob(value, self._run)
            case DeadLetters():
                return _Blocking(value, self._run)
            case list():
                return [self._wrap(one) for one in value]
        return value

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *dir(self._target)]

    def __repr__(self) -> str:
        return repr(self._target)


class SyncJob(_Blocking):
    """A `Job` whose methods return when they are done: `job.result(timeout=5)`, `job.retry()`."""


class SyncQueue(_Blocking):
    """A `Queue` whose methods return when they are done."""

    def add(self, data: Any = None, *, connection: Any = None, **options: Unpack[AddOptions]) -> SyncJob:
        """Add one job. With a connection, in its transaction; it is used in the thread that calls."""
        queue: Queue = self._target
        job = self._within(connection, lambda: queue.add(data, connection=connection, **options))
        return SyncJob(job, self._run)

    def add_many(self, items: Iterable[Any], *, connection: Any = None) -> list[SyncJob]:
        """Add many jobs in one go, with a connection as `add` does."""
        queue: Queue = self._target
        listed = list(items)  # it may be asked for twice
        jobs = self._within(connection, lambda: queue.add_many(listed, connection=connection))
        return [SyncJob(job, self._run) for job in jobs]

    def _within(self, connection: Any, work: Work[T]) -> T:
        if connection is not None:
            self._run(lambda: _make_ready(self._target))
            return run_at_once(work())
        added: T = self._run(work)
        return added


async def _make_ready(queue: Queue) -> None:
    await queue.engine.open()
    await transactional(queue.engine).ready(queue.name)
