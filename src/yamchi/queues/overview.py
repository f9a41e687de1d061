"""A queue as the board and the command line show it: counts, pace and what is wrong, in one value."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from yamchi.errors import EngineError
from yamchi.queues.engines.base import Engine, by_engine
from yamchi.queues.queue import Queue
from yamchi.queues.records import STATES
from yamchi.queues.views import Minute, WorkerInfo

T = TypeVar("T")

LOOKED_AT_ONCE = 200
"""Queues."""


@dataclass(frozen=True, slots=True)
class QueueView:
    """The present state of a queue."""

    queue: Queue
    counts: dict[str, int]
    is_paused: bool = False
    dead_letters: int = 0
    history: Sequence[Minute] = ()
    error: str | None = None
    warning: str | None = None
    """Why its jobs do not run, though its engine answers."""


async def view_queue(queue: Queue, minutes: int = 60) -> QueueView:
    """View a queue. If its engine fails, the view says so; no error is raised."""
    try:
        counts, is_paused, history, letters = await asyncio.gather(
            queue.counts(), queue.is_paused(), queue.history(minutes), queue.dead_letters.list(limit=1)
        )
        warning = await queue.unattended(counts)
    except EngineError as error:
        return QueueView(queue, dict.fromkeys(STATES, 0), error=str(error))
    shown = dict[str, int](counts.items())
    return QueueView(queue, shown, is_paused, letters.total, history, warning=warning)


async def view_queues(queues: Sequence[Queue], minutes: int = 60) -> list[QueueView]:
    return await _each(queues, lambda queue: view_queue(queue, minutes))


async def unattended(queues: Sequence[Queue]) -> dict[str, str]:
    """Queues whose due jobs nobody runs, each with a sentence that says so."""
    said = await _each(queues, _unattended)
    return {queue.name: why for queue, why in zip(queues, said, strict=True) if why}


async def _unattended(queue: Queue) -> str | None:
    try:
        return await queue.unattended()
    except EngineError:
        return None  # what is said of its engine says it


async def _each(queues: Sequence[Queue], look: Callable[[Queue], Awaitable[T]]) -> list[T]:
    """Some at a time: another program may have thousands on the same engine, and to begin with all holds up everybody else."""
    found: list[T] = []
    for begin in range(0, len(queues), LOOKED_AT_ONCE):
        found += await asyncio.gather(*map(look, queues[begin : begin + LOOKED_AT_ONCE]))
    return found


async def live_workers(queues: Sequence[Queue]) -> list[WorkerInfo]:
    """The workers of all engines of these queues, each once."""
    found: dict[str, WorkerInfo] = {}
    for engine in engines_of(queues):
        try:
            found.update({worker.id: worker for worker in await engine.workers()})
        except EngineError:
            continue  # its queues show what is wrong
    return sorted(found.values(), key=lambda worker: worker.started_at)


async def kept_names(queues: Sequence[Queue]) -> set[str]:
    """Names of all queues on the engines of these, also of undeclared ones."""
    return {name for engine in engines_of(queues) for name in await _names_on(engine)}


async def _names_on(engine: Engine) -> list[str]:
    try:
        return await engine.queues()
    except EngineError:
        return []  # whoever looks into one of its queues is told why


def engines_of(queues: Sequence[Queue]) -> list[Engine]:
    """Every engine that a queue lives on, once."""
    return [engine for engine, _ in by_engine(queues)]
