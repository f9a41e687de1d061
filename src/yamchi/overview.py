"""A queue as the board and the command line show it: counts, pace and what is wrong, in one value."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from yamchi.errors import EngineError
from yamchi.queues.engines.base import Engine, Minute, WorkerInfo
from yamchi.queues.job import STATES, State
from yamchi.queues.queue import Queue


@dataclass(frozen=True, slots=True)
class QueueView:
    """What there is to see of a queue now."""

    queue: Queue
    counts: dict[State, int]
    is_paused: bool = False
    dead_letters: int = 0
    history: Sequence[Minute] = ()
    error: str | None = None

    @property
    def shown_counts(self) -> dict[str, int]:
        return dict[str, int](self.counts.items())


async def view_queue(queue: Queue, minutes: int = 60) -> QueueView:
    """Look at a queue; an engine in trouble is part of the view, not an error."""
    engine, name = queue.engine, queue.name
    try:
        counts, is_paused, history, letters = await asyncio.gather(
            engine.counts(name),
            engine.paused(name),
            engine.history(name, minutes),
            engine.letters(name, "", 0, 1),
        )
    except EngineError as error:
        return QueueView(queue, dict.fromkeys(STATES, 0), error=str(error))
    return QueueView(queue, counts, is_paused, letters.total, history)


async def view_queues(queues: Sequence[Queue], minutes: int = 60) -> list[QueueView]:
    return list(await asyncio.gather(*(view_queue(queue, minutes) for queue in queues)))


async def living_workers(engines: Sequence[Engine]) -> list[WorkerInfo]:
    """Workers of all engines; one that works on several is listed once."""
    found: dict[str, WorkerInfo] = {}
    for engine in engines:
        try:
            found.update({worker.id: worker for worker in await engine.workers()})
        except EngineError:
            continue  # its queues show what is wrong
    return sorted(found.values(), key=lambda worker: worker.started_at)
