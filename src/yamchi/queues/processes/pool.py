"""The worker's side of child processes: a few of them for one handler, started when they are needed and kept.

The worker holds the lease, keeps progress and logs, and decides. A child that dies, hangs or grows beyond its memory is
ended and replaced; its job fails with a sentence that says which.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from yamchi.errors import Retryable, Unrecoverable
from yamchi.observe.logging import configured_format
from yamchi.perloop import PerLoop
from yamchi.queues.job import Job
from yamchi.queues.processes.limits import ProcessLimits
from yamchi.queues.processes.wire import Hello, Start, Stop, decode_error, packed, receive

STOP_GRACE_SECONDS = 2.0
"""Seconds that a stopped handler has for its `finally` blocks."""

START_SECONDS = 120.0
"""Seconds that a child has to start and to import its function."""

WATCH_SECONDS, LONGEST_WATCH_SECONDS = 0.1, 1.0
"""Seconds between two looks at how much memory a child uses: more where there is much left, as each look costs the children time."""

FAST_GROWTH = 1024**3
"""Bytes a second. A child that grows faster may take more than its memory between two looks, until the system refuses it more."""

RECYCLE_ABOVE = 0.75
"""A child that keeps more than this share of its memory between jobs is replaced."""

_FRUGAL = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "1048576"}
"""glibc keeps an arena for each thread and holds on to large blocks; for one job at a time that is only memory. Yours win."""

_PYTHONS_OWN = sysconfig.get_path("stdlib")

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


Within = Callable[[Awaitable[Any]], Awaitable[Any]]
"""Waits for work no longer than it may."""


class ProcessPool:
    """The child processes of one handler."""

    def __init__(self, queue: str, name: str, function: Callable[..., Any], limits: ProcessLimits) -> None:
        self._hello = partial(_hello, queue, name, function, limits.memory)
        self._limits = limits
        self._free = PerLoop(lambda: asyncio.Semaphore(limits.processes))
        self._idle_children: PerLoop[list[_Child]] = PerLoop(list, _kill_all)
        self._leaving: set[asyncio.Task[None]] = set()

    async def run(self, job: Job[Any], payload: bytes | None = None, *, within: Within | None = None) -> Any:
        """Run a job in a child as soon as one is free, `within` its timeout from then on; what its handler returned.

        With a `payload` the child gets that instead of the job's own data: a part of the work, not all of it.
        """
        free = self._free.get()
        with job.waiting():
            await free.acquire()
        try:
            result = await self._run_in_any(job, payload, within)
        finally:
            free.release()
        await asyncio.sleep(0)  # whoever waits for the child gives it work before this job goes on
        return result

    async def _run_in_any(self, job: Job[Any], payload: bytes | None, within: Within | None) -> Any:
        while idle := self._take_idle():
            try:
                return await self._run_in(idle, job, payload, within)
            except _NeverBegan:
                continue
        with job.waiting():
            child = await _Child.start(self._hello())
        return await self._run_in(child, job, payload, within)

    async def _run_in(
        self, child: "_Child", job: Job[Any], payload: bytes | None, within: Within | None
    ) -> Any:
        is_whole = False
        try:
            running = child.run(job, payload)
            result = await (within(running) if within else running)
            is_whole = True
        except _HandlerFailed as failed:
            is_whole = True
            raise failed.error from None
        finally:
            if is_whole and not child.is_bloated:
                self._idle.append(child)
            else:
                self._retire(child)
        return result

    @property
    def _idle(self) -> "list[_Child]":
        return self._idle_children.get()

    async def close(self) -> None:
        """End all children."""
        here, elsewhere = self._idle_children.take_all()
        for child in here or ():
            self._retire(child)
        for children in elsewhere:
            _kill_all(children)
        await asyncio.gather(*self._leaving)

    def _take_idle(self) -> "_Child | None":
        """One that waits for work. What ended while it waited, as by the system's want of memory, costs no job."""
        while self._idle:
            child = self._idle.pop()
            if child.is_alive:
                return child
            self._retire(child)
        return None

    def _retire(self, child: "_Child") -> None:
        task = asyncio.create_task(child.end())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


def _kill_all(children: "list[_Child]") -> None:
    """Of an event loop that has ended, and what they were spoken to by with it."""
    for child in children:
        child.kill()


class _HandlerFailed(Exception):
    """The handler raised; the child is well."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _NeverBegan(Retryable):
    """The child had ended before it was given the job."""


class _Child:
    """One child process."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        memory: int | None,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._memory = memory
        self._has_outgrown = False

    @classmethod
    async def start(cls, hello: Hello) -> "_Child":
        """A new child that has imported its function."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.to_thread(_spawn, theirs.fileno())
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        child = cls(process, reader, writer, hello.memory)
        try:
            async with asyncio.timeout(START_SECONDS):
                await child._handshake(hello)
        except TimeoutError:
            await child._give_up()
            raise Retryable(
                f"A child process could not import {hello.module}.{hello.function} in {START_SECONDS:g} seconds"
            ) from None
        except BaseException:
            await child._give_up()
            raise
        return child

    async def _give_up(self) -> None:
        self.kill()
        await self._wait()
        self._writer.close()

    async def _handshake(self, hello: Hello) -> None:
        self._writer.write(packed(hello))
        answer = await receive(self._reader)
        if answer is None:
            raise Retryable(
                f"A child process for {hello.name} could not start: it {_ending(await self._wait())}."
            )
        if answer["type"] != "ready":
            why = decode_error(answer)
            kind = Unrecoverable if isinstance(why, Unrecoverable) else Retryable
            raise kind(f"A child process could not import {hello.module}.{hello.function}: {why}")

    async def run(self, job: Job[Any], payload: bytes | None) -> Any:
        """One job, with its progress and log lines passed on as they come."""
        record = job.record if payload is None else job.record.changed(payload=payload)
        watch = asyncio.create_task(self._watch_memory()) if self._memory else None
        has_begun = False
        try:
            self._writer.write(packed(Start(record)))
            while message := await receive(self._reader):
                match message["type"]:
                    case "begun":
                        has_begun = True
                    case "progress":
                        await job.progress(message["value"])
                    case "log":
                        await job.log(*map(str, message["lines"]))
                    case "done":
                        return message["result"]
                    case "memory":
                        self._has_outgrown = True
                        break
                    case _:
                        raise _HandlerFailed(decode_error(message))
        finally:
            if watch:
                watch.cancel()
        raise (Retryable if has_begun else _NeverBegan)(await self._describe_death(job.name))

    async def _describe_death(self, name: str) -> str:
        self.kill()
        code = await self._wait()
        if self._has_outgrown:
            limit = f"{(self._memory or 0) / 1024**2:g} MB"
            return f"{name} used more than its {limit} of memory; the process that ran it was ended"
        return f"The process that ran {name} {_ending(code)}"

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def is_bloated(self) -> bool:
        """Whether it kept so much memory that the next job would have too little."""
        return self._memory is not None and self._resident() > self._memory * RECYCLE_ABOVE

    async def _watch_memory(self) -> None:
        pause = WATCH_SECONDS
        while True:
            await asyncio.sleep(pause)
            left = (self._memory or 0) - self._resident()
            if left < 0:
                self._has_outgrown = True
                self.kill()
                return
            pause = min(max(left / FAST_GROWTH, WATCH_SECONDS), LONGEST_WATCH_SECONDS)

    def _resident(self) -> int:
        """Bytes it has in memory; 0 where the system does not tell."""
        try:
            with open(
                f"/proc/{self._process.pid}/statm", "rb", buffering=0
            ) as file:  # asked ten times a second
                return int(file.read().split()[1]) * _PAGE
        except (OSError, IndexError):
            return 0

    async def end(self) -> None:
        """Stop what runs, give it a moment to clean up, and make sure that it is gone."""
        self._writer.write(packed(Stop()))
        try:
            await asyncio.wait_for(self._wait(), STOP_GRACE_SECONDS)
        except TimeoutError:
            self.kill()
            await self._wait()
        self._writer.close()

    def kill(self) -> None:
        self._process.kill()

    async def _wait(self) -> int:
        """Its exit code. Asked in a thread: asyncio's own watcher loses the code of a child that is killed as it dies."""
        return await asyncio.to_thread(self._process.wait)


def _spawn(connection: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "yamchi.queues.processes.child", str(connection)],
        pass_fds=[connection],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl+C in the terminal is the worker's
        env={**_FRUGAL, **os.environ, "PYTHONPATH": os.pathsep.join(_path_to_begin_with())},
    )


def _path_to_begin_with() -> list[str]:
    """Python's own modules first: the program may have a `queue.py`. Once it has begun, a child looks where its worker does."""
    return sorted(filter(None, sys.path), key=lambda place: not _is_pythons_own(place))


def _is_pythons_own(place: str) -> bool:
    return place.startswith(_PYTHONS_OWN) and "-packages" not in place


def _hello(queue: str, name: str, function: Callable[..., Any], memory: int | None) -> Hello:
    main = sys.modules["__main__"]
    is_script = function.__module__ == "__main__"
    spec = getattr(main, "__spec__", None)
    return Hello(
        queue=queue,
        name=name,
        module=spec.name if is_script and spec else function.__module__,
        function=function.__qualname__,
        main_file=getattr(main, "__file__", None) if is_script and not spec else None,
        path=list(sys.path),
        memory=memory,
        log_level=logging.getLogger().level or logging.WARNING,
        log_format=configured_format(),
    )


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
