"""Listeners to a queue's events, of this process and, where the engine can tell, of others."""

import asyncio
import inspect
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal

import structlog

EventType = Literal["completed", "failed", "progress", "stalled", "error", "retrying", "cancelled", "expired"]
EVENT_TYPES: tuple[str, ...] = (
    "completed", "failed", "progress", "stalled", "error", "retrying", "cancelled", "expired",
)  # fmt: skip
Listener = Callable[..., Any]

log = structlog.get_logger("yamchi.events")


class Listeners:
    """The listeners of one queue."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._by_type: dict[str, list[Listener]] = defaultdict(list)
        self._running: set[asyncio.Task[None]] = set()

    def on(self, event: str, listener: Listener) -> None:
        if event not in EVENT_TYPES:
            raise ValueError(f"There is no event {event!r}: choose from {', '.join(EVENT_TYPES)}.")
        self._by_type[event].append(listener)

    def off(self, event: str, listener: Listener) -> None:
        """Stop calling this listener."""
        self._by_type[event].remove(listener)
        if not self._by_type[event]:
            del self._by_type[event]

    def wants(self, event: str) -> bool:
        return bool(self._by_type.get(event))

    @property
    def any(self) -> bool:
        return bool(self._by_type)

    def emit(self, event: str, *arguments: Any) -> None:
        """Call every listener. A failure is logged and does not affect the others."""
        for listener in tuple(self._by_type.get(event, ())):
            try:
                outcome = listener(*arguments)
                if inspect.isawaitable(outcome):
                    self._follow(event, outcome)
            except Exception:
                log.exception("a listener failed", queue=self._queue, on=event)

    def _follow(self, event: str, outcome: Any) -> None:
        async def finish() -> None:
            try:
                await outcome
            except Exception:
                log.exception("a listener failed", queue=self._queue, on=event)

        task = asyncio.ensure_future(finish())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def settle(self) -> None:
        """Wait for listeners that are still running."""
        await asyncio.gather(*self._running)
