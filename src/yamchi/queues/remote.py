"""Passes events of other processes to the listeners of this one."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import orjson
import structlog

from yamchi.clock import Millis
from yamchi.errors import EngineError
from yamchi.queues.engines.base import Engine, Event
from yamchi.queues.job import Job
from yamchi.queues.queue import Queue
from yamchi.queues.records import JobRecord
from yamchi.queues.services import Services

log = structlog.get_logger("yamchi.events")

RETRY: Millis = 1_000


class RemoteEvents:
    """Follows the event streams of the engines behind some queues, if somebody listens to one of them."""

    def __init__(self, queues: Mapping[str, Queue], services: Services) -> None:
        self._queues = queues
        self._services = services
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._is_wanted = self._is_started = False
        services.add("job events", self._start_if_wanted)

    def want(self) -> None:
        """Somebody listens: start now if an event loop runs, else with the worker."""
        self._is_wanted = True
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            self.start()

    async def _start_if_wanted(self) -> None:
        """A service of workers. Not without a listener: a worker on Redis that reads all events costs a third more."""
        if self._is_wanted:
            self.start()

    def start(self) -> None:
        """Follow every engine that is not followed yet."""
        self._is_started = True
        for queue in self._queues.values():
            engine = queue.engine
            if engine.can.events and not self._is_followed(engine):
                following = self._services.keep(f"events of {engine.type}", partial(self._follow, engine))
                self._tasks[id(engine)] = asyncio.create_task(following, name="remote-events")

    def _is_followed(self, engine: Engine) -> bool:
        """Whether a task follows this engine. Such a task ends with its event loop."""
        task = self._tasks.get(id(engine))
        return task is not None and not task.done() and not task.get_loop().is_closed()

    async def stop(self) -> bool:
        """Stop following; whether this was started. Tasks on the event loop of `app.sync` are cancelled and not awaited."""
        was_started, self._is_started = self._is_started, False
        tasks, self._tasks = self._tasks, {}
        here, mine = asyncio.get_running_loop(), []
        for task in tasks.values():
            if (loop := task.get_loop()) is here:
                task.cancel()
                mine.append(task)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)
        await asyncio.gather(*mine, return_exceptions=True)
        return was_started

    async def _follow(self, engine: Engine) -> None:
        while True:
            try:
                async for event in engine.events():
                    await self._deliver(event)
            except EngineError as error:
                log.warning("events of other processes can't be read; trying again", error=str(error))
            await asyncio.sleep(RETRY / 1000)

    async def _deliver(self, event: Event) -> None:
        queue = self._queues.get(event.queue)
        if queue is None or not queue.listeners.wants(event.type):
            return
        record = await queue.engine.get(event.queue, event.job_id)
        job = Job[object](queue, record or _remembered(event))
        arguments = () if event.value is None and event.type == "stalled" else (_value(event),)
        queue.listeners.emit(event.type, job, *arguments)


def _value(event: Event) -> object:
    return None if event.value is None else orjson.loads(event.value)


def _remembered(event: Event) -> JobRecord:
    """A job that is no longer kept, as its event describes it."""
    state = event.type if event.type in ("completed", "failed", "cancelled", "expired") else "active"
    return JobRecord(event.job_id, event.queue, event.name, b"null", state, 0, 0)
