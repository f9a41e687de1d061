"""A thread with a connection that does the work of many callers in one transaction.

Work is handed over as plain functions of the connection. What one iteration of an event loop asks for, and everything that
arrives while a commit is on its way to the disk, goes into the next transaction together: a thousand concurrent callers
cost one fsync, not a thousand. If a transaction fails, its functions are run again one by one, so that each caller gets
its own result or error, except that a database which is away is so for all of them; a function must therefore do nothing but
speak to the database.
"""

import asyncio
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from yamchi.errors import EngineUnavailable

C = TypeVar("C")
T = TypeVar("T")
Op = Callable[[C], T]
Transact = Callable[[C, Sequence[Op[C, Any]]], list[Any]]
"""Runs all of the functions in one transaction. Raises if one fails, and then none has an effect."""

Request = tuple[Op[Any, Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]

GROUP = 2_000
"""At most this many functions share a transaction, so that nobody waits long for others' work."""


class GroupCommit(Generic[C]):
    """One connection and its thread. `explain` turns a failure into the caller's error."""

    def __init__(
        self, name: str, connection: C, transact: Transact[C], explain: Callable[[Exception], Exception]
    ) -> None:
        self._connection = connection
        self._transact = transact
        self._explain = explain
        self._inbox: queue.SimpleQueue[list[Request] | None] = queue.SimpleQueue()
        self._outgoing: dict[asyncio.AbstractEventLoop, list[Request]] = {}
        self._is_stopped = False
        self._stopping = threading.Lock()
        """Held while the inbox gets something: nothing comes after the None that ends the thread."""
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    async def run(self, op: Op[C, T]) -> T:
        """Do this in the next transaction; returns when that is committed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        outgoing = self._outgoing.get(loop)
        if outgoing is None:
            outgoing = self._outgoing[loop] = []
            loop.call_soon(self._hand_over, loop)
        outgoing.append((op, future, loop))
        return await future

    def stop(self) -> None:
        """Finish the work handed over, then end the thread. Later work is refused."""
        with self._stopping:
            self._is_stopped = True
            self._inbox.put(None)
        self._thread.join()

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        requests = self._outgoing.pop(loop)
        with self._stopping:
            if not self._is_stopped:
                self._inbox.put(requests)
                return
        _resolve([(future, EngineUnavailable("The database was closed.")) for _, future, _ in requests])

    def _serve(self) -> None:
        while (requests := self._next_group()) is not None:
            _answer(self._commit(requests))

    def _next_group(self) -> list[Request] | None:
        requests = self._inbox.get()
        if requests is None:
            return None
        while len(requests) < GROUP:
            try:
                more = self._inbox.get_nowait()
            except queue.Empty:
                break
            if more is None:
                self._inbox.put(None)
                break
            requests.extend(more)
        return requests

    def _commit(self, requests: list[Request]) -> list[tuple[Request, Any]]:
        try:
            results = self._transact(self._connection, [op for op, _, _ in requests])
        except Exception as error:
            if len(requests) == 1:
                return [(requests[0], self._explain(error))]
            return self._commit_each(requests)
        return list(zip(requests, results, strict=True))

    def _commit_each(self, requests: list[Request]) -> list[tuple[Request, Any]]:
        """Do the work one by one. Once the database is found to be away, the rest gets the same error without waiting for it again."""
        answers: list[tuple[Request, Any]] = []
        for request in requests:
            answers += self._commit([request])
            if isinstance(answers[-1][1], EngineUnavailable):
                return answers + [(other, answers[-1][1]) for other in requests[len(answers) :]]
        return answers


def _answer(answers: list[tuple[Request, Any]]) -> None:
    """Wake each event loop once for all of its answers."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = defaultdict(list)
    for (_, future, loop), result in answers:
        by_loop[loop].append((future, result))
    for loop, resolved in by_loop.items():
        with suppress(RuntimeError):  # it was closed, and nobody waits there any more
            loop.call_soon_threadsafe(_resolve, resolved)


def _resolve(resolved: list[tuple["asyncio.Future[Any]", Any]]) -> None:
    for future, result in resolved:
        if future.done():
            continue
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)
