"""A queue as the board and the command line show it: counts, pace and what is wrong, in one value."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from yamchi.errors import EngineError
from yamchi.queues.engines.base import Engine
from yamchi.queues.queue import Queue
from yamchi.queues.records import STATES, State
from yamchi.queues.views import Minute, WorkerInfo


@dataclass(frozen=True, slots=True)
class QueueView:
    """What there is to see of a queue now."""

    queue: Queue
    counts: dict[State, int]
    is_paused: bool = False
    dead_letters: int = 0
    history: Sequence[Minute] = ()
    error: str | None = None
    warning: str | None = None
    """Why its jobs do not run, though its engine answers."""

    @property
    def shown_counts(self) -> dict[str, int]:
        return dict[str, int](self.counts.items())


async def view_queue(queue: Queue, minutes: int = 60) -> QueueView:
    """Look at a queue; an engine in trouble is part of the view, not an error."""
    try:
        counts, is_paused, history, letters = await asyncio.gather(
            queue.counts(), queue.is_paused(), queue.history(minutes), queue.dead_letters.list(limit=1)
        )
        warning = await queue.unattended(counts)
    except EngineError as error:
        return QueueView(queue, dict.fromkeys(STATES, 0), error=str(error))
    return QueueView(queue, counts, is_paused, letters.total, history, warning=warning)


async def view_queues(queues: Sequence[Queue], minutes: int = 60) -> list[QueueView]:
    return list(await asyncio.gather(*(view_queue(queue, minutes) for queue in queues)))


async def unattended(queues: Sequence[Queue]) -> dict[str, str]:
    """Queues whose jobs are due while nobody is at work on them, each with the sentence that says so."""
    said = await asyncio.gather(*(_unattended(queue) for queue in queues))
    return {queue.name: why for queue, why in zip(queues, said, strict=True) if why}


async def _unattended(queue: Queue) -> str | None:
    try:
        return await queue.unattended()
    except EngineError:
        return None  # what is said of its engine says it


async def live_workers(queues: Sequence[Queue]) -> list[WorkerInfo]:
    """Workers of all engines that these queues live on; one that works on several is listed once."""
    found: dict[str, WorkerInfo] = {}
    for engine in engines_of(queues):
        try:
            found.update({worker.id: worker for worker in await engine.workers()})
        except EngineError:
            continue  # its queues show what is wrong
    return sorted(found.values(), key=lambda worker: worker.started_at)


async def kept_names(queues: Sequence[Queue]) -> set[str]:
    """Names of all queues that are there on the engines of these, whoever declared them."""
    return {name for engine in engines_of(queues) for name in await _names_on(engine)}


async def _names_on(engine: Engine) -> list[str]:
    try:
        return await engine.queues()
    except EngineError:
        return []  # whoever looks into one of its queues is told why


def engines_of(queues: Sequence[Queue]) -> list[Engine]:
    """Every engine that a queue lives on, once."""
    return list({id(queue.engine): queue.engine for queue in queues}.values())
