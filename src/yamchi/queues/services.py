"""Background services: what runs for ever beside the jobs, such as a sweeper or the scheduler of cron jobs.

A service that fails is logged and started again, whatever it raised, after a pause that grows with each failure. It never
ends the process, and `/readyz` shows how it fares. A service that returns is finished, and is not started again.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import structlog

from yamchi.clock import Clock, Millis, describe_span
from yamchi.errors import ConfigurationError, YamchiError

log = structlog.get_logger("yamchi.services")

FIRST_PAUSE: Millis = 500
LONGEST_PAUSE: Millis = 60_000

STEADY: Millis = 60_000
"""A service that has run for this long is well again: after its next failure it starts again quickly."""

ServiceFunction = Callable[[], Coroutine[Any, Any, None]]
ServiceState = Literal["running", "failing", "finished"]
OnFailure = Callable[[str], None]
"""Told the name of a service each time it fails."""


class Service:
    """One background service of this process: what it does, and how it fares."""

    def __init__(
        self,
        name: str,
        function: ServiceFunction,
        clock: Clock,
        on_failure: OnFailure = lambda name: None,
    ) -> None:
        self.name = name
        self.state: ServiceState = "running"
        self.failures = 0
        self._function = function
        self._clock = clock
        self._on_failure = on_failure
        self._began = clock.now()
        self._in_a_row = 0
        self._error: str | None = None

    @property
    def error(self) -> str | None:
        """Why it failed last; None when it has run well for a while since."""
        return None if self.state == "running" and self._has_been_steady else self._error

    @property
    def _has_been_steady(self) -> bool:
        return self._clock.now() - self._began >= STEADY

    async def run(self) -> None:
        """Run it until it returns or this is cancelled; raises nothing else."""
        while True:
            self.begin()
            try:
                await self._function()
            except BaseException as error:
                if isinstance(error, GeneratorExit) or _is_being_cancelled(error):
                    raise
                pause = self.fail(error)
            else:
                self.state = "finished"
                return
            await self._clock.sleep(pause)

    def begin(self) -> None:
        """Note that it runs. Called by `run`, and by a service that has a thread of its own."""
        self.state, self._began = "running", self._clock.now()

    def fail(self, error: BaseException) -> Millis:
        """Note and log a failure; how long to wait before starting again."""
        self._in_a_row = 1 if self._has_been_steady else self._in_a_row + 1
        pause: Millis = min(FIRST_PAUSE << min(self._in_a_row - 1, 20), LONGEST_PAUSE)
        said = str(error) or type(error).__name__
        self.state, self._error = "failing", said
        self.failures += 1
        log.error(
            f"The service {self.name!r} failed and starts again in {describe_span(pause)}: {said}",
            exc_info=None if isinstance(error, YamchiError) else error,
        )
        self._on_failure(self.name)
        return pause


class Services:
    """The background services of an application. A worker runs them; each process may have one worker or several."""

    def __init__(self, clock: Clock, on_failure: OnFailure = lambda name: None) -> None:
        self._clock = clock
        self._on_failure = on_failure
        self._declared: dict[str, ServiceFunction] = {}
        self._queues: dict[str, frozenset[str]] = {}
        self._running: list[Service] = []

    def add(self, name: str, function: ServiceFunction, *, queues: Iterable[str] = ()) -> None:
        """Declare a service; workers made from now on run it, or only those that work on one of these queues.

        The same one again changes nothing.
        """
        if self._declared.setdefault(name, function) != function:
            raise ConfigurationError(f"There is a service {name!r} already: give this one another name.")
        self._queues[name] = frozenset(queues)

    def declared(self, queues: Iterable[str]) -> Mapping[str, ServiceFunction]:
        """Those that a worker of these queues runs."""
        mine = frozenset(queues)
        return {
            name: function
            for name, function in self._declared.items()
            if not self._queues[name] or self._queues[name] & mine
        }

    @property
    def running(self) -> list[Service]:
        """The services that run in this process now, as they fare."""
        return list(self._running)

    @contextmanager
    def watching(self, name: str, function: ServiceFunction) -> Iterator[Service]:
        """A service that the caller runs; it is shown among the others while this lasts."""
        service = Service(name, function, self._clock, self._on_failure)
        self._running.append(service)
        try:
            yield service
        finally:
            self._running.remove(service)

    async def keep(self, name: str, function: ServiceFunction) -> None:
        """Run one service, declared or not, until it returns or this is cancelled."""
        with self.watching(name, function) as service:
            await service.run()


def _is_being_cancelled(error: BaseException) -> bool:
    """Whether somebody wants the service to stop. One that met a cancelled future of its own has failed instead."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and bool(task and task.cancelling())
