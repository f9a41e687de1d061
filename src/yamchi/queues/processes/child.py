"""The program that a child process runs: jobs of one handler, one after the other, until the worker is gone.

The main thread runs the handler; a second one listens, so that a worker that dies takes its children with it and a job
can be stopped while it runs. Whoever stops the service stops the worker: a child minds no signal of its own.
"""

import asyncio
import os
import resource
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from importlib import import_module
from queue import SimpleQueue
from typing import Any, NoReturn

import orjson

from yamchi import errors
from yamchi.observe import logging
from yamchi.queues.handlers import Handler
from yamchi.queues.job import Done, Job
from yamchi.queues.processes.importing import importing
from yamchi.queues.processes.wire import Hello, Start, WorkerConnection, encode_error
from yamchi.queues.records import JobRecord, to_json, writable

HEADROOM_BYTES = 256 * 1024 * 1024
"""Beyond `memory` the worker ends the child; this much beyond it the system refuses to give more."""

_LEVELS: dict[int, Any] = {10: "debug", 20: "info", 30: "warning", 40: "error", 50: "critical"}


class Stopped(BaseException):
    """The worker wants this job to end now."""


class ChildJob(Job[Any]):
    """A job as a handler in a child process sees it: progress and log lines go to the worker, which keeps them."""

    __slots__ = ("_worker",)

    def __init__(self, worker: WorkerConnection, record: JobRecord, data: Any) -> None:
        super().__init__(_NoQueue(record.queue), record, data=data)  # type: ignore[arg-type]
        self._worker = worker

    def progress(self, value: Any) -> Awaitable[None]:
        self.record.progress = orjson.dumps(value)
        self._worker.send("progress", value=value)
        return Done()

    def log(self, *lines: str) -> Awaitable[None]:
        said = [writable(str(line)) for line in lines]
        self.record.logs.extend(said)
        self._worker.send("log", lines=said)
        return Done()


class _NoQueue:
    """Acting on the queue is the worker's part; a handler that wants to do so opens its own application."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> NoReturn:
        raise errors.WrongState(
            f"A handler in a child process can't use job.queue.{name}: use your application's app.queue({self.name!r})."
        )


class Child:
    """Runs jobs, and can be stopped from another thread."""

    def __init__(self, worker: WorkerConnection, handler: Handler) -> None:
        self._worker = worker
        self._handler = handler
        self._runner = asyncio.Runner()
        self._task: asyncio.Task[Any] | None = None
        self._main = threading.get_ident()

    def run(self, record: JobRecord) -> None:
        """Run one job; say that it has begun, and how it ended."""
        self._worker.send("begun")
        try:
            result = self._call(ChildJob(self._worker, record, self._handler.decode(record.payload)))
            if isinstance(result, errors.YamchiError):
                raise result
            self._worker.send("done", result=_checked(record.name, result))
        except MemoryError:
            self._worker.send("memory")
        except (Exception, SystemExit) as error:
            self._worker.send("error", **encode_error(error))

    def stop(self) -> None:
        """From the listening thread: end the job, so that its `finally` blocks run."""
        if self._task is not None:
            self._runner.get_loop().call_soon_threadsafe(self._task.cancel)
        else:
            signal.pthread_kill(self._main, signal.SIGUSR1)

    def _call(self, job: ChildJob) -> Any:
        arguments = (job,) if self._handler.takes_job else ()
        if not self._handler.is_async:
            return self._handler.function(*arguments)
        return self._runner.run(self._as_task(*arguments))

    async def _as_task(self, *arguments: Any) -> Any:
        self._task = asyncio.ensure_future(self._handler.function(*arguments))
        try:
            return await self._task
        except asyncio.CancelledError:
            raise Stopped from None
        finally:
            self._task = None


def main() -> None:
    """What `python -m yamchi.queues.processes.child FD` does."""
    worker = WorkerConnection(socket.socket(fileno=int(sys.argv[1])))
    hello = worker.receive()
    if not isinstance(hello, Hello):
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, _raise_stopped)
    try:
        _limit_memory(hello.memory)
        logging.configure(hello.log_format, _LEVELS.get(hello.log_level, "info"))
        with importing():
            function = _find(hello)
        child = Child(worker, Handler(hello.name, function))
    except (Exception, SystemExit) as error:
        worker.send("unable", **encode_error(error))
        return
    worker.send("ready")
    inbox: SimpleQueue[JobRecord] = SimpleQueue()
    threading.Thread(target=_listen, args=(worker, child, inbox.put), daemon=True).start()
    try:
        while True:
            child.run(inbox.get())
    except (Stopped, BrokenPipeError):
        os._exit(0)


def _listen(worker: WorkerConnection, child: Child, give: Callable[[JobRecord], None]) -> None:
    try:
        while message := worker.receive():
            if isinstance(message, Start):
                give(message.job)
            else:
                child.stop()
    except OSError:
        os._exit(0)
    os._exit(0)  # the worker is gone, and with it the lease


def _raise_stopped(*_: object) -> None:
    raise Stopped


def _limit_memory(memory: int | None) -> None:
    if memory is not None and hasattr(resource, "RLIMIT_DATA"):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = memory + HEADROOM_BYTES
        resource.setrlimit(
            resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard)
        )


def _find(hello: Hello) -> Callable[..., Any]:
    sys.path[:] = hello.path
    names: Any
    if hello.main_file is None:
        names = import_module(hello.module)
    else:
        names = _Names(runpy.run_path(hello.main_file, run_name="__yamchi_child__"))
    for part in hello.function.split("."):
        names = getattr(names, part)
    return names  # type: ignore[no-any-return]


class _Names:
    """A script's names, as attributes."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.__dict__.update(names)


def _checked(name: str, result: Any) -> Any:
    try:
        to_json(result)
    except TypeError as error:
        raise errors.Unrecoverable(f"The result of {name} can't be written as JSON: {error}") from error
    return result


if __name__ == "__main__":
    main()
