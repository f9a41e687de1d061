"""Queues: look at them, pause, resume, clean."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from yamchi.app import Yamchi
from yamchi.clock import isoformat
from yamchi.discovery import all_queues, find_queue
from yamchi.errors import UnknownQueue
from yamchi.fields import Name
from yamchi.http.access import TheCaller
from yamchi.http.audit import changes
from yamchi.http.bodies import Done
from yamchi.http.problems import documented
from yamchi.observe.logging import mask
from yamchi.queues.overview import QueueView, live_workers, view_queue, view_queues
from yamchi.queues.queue import Queue
from yamchi.web.schemas import Clean, Counts, Minute, NotRunning, QueueOut, WorkerOut

router = APIRouter(tags=["queues"], responses=documented(401, 403, 404, 422, 503))


async def yamchi_of(request: Request) -> Yamchi:
    """The application behind this server."""
    app: Yamchi = request.app.state.yamchi
    return app


App = Annotated[Yamchi, Depends(yamchi_of)]
Minutes = Annotated[int, Query(ge=1, le=1440, description="Length of the history.")]


async def named_queue(app: App, caller: TheCaller, queue: Name) -> Queue:
    try:
        return await find_queue(app, queue)
    except UnknownQueue:
        if caller.may_look:
            raise
        raise UnknownQueue(f"There is no queue {queue!r}.") from None  # a sender is not told of others


ThatQueue = Annotated[Queue, Depends(named_queue)]


@router.get("/queues", summary="All queues with their counts")
async def list_queues(app: App, minutes: Minutes = 60) -> list[QueueOut]:
    return [_shown(view) for view in await view_queues(await all_queues(app), minutes)]


@router.get("/queues/{queue}", summary="One queue")
async def show_queue(queue: ThatQueue, minutes: Minutes = 60) -> QueueOut:
    return _shown(await view_queue(queue, minutes))


@router.post("/queues/{queue}/pause", summary="Let nobody start a job of this queue")
async def pause(request: Request, queue: ThatQueue) -> QueueOut:
    changes(request, before="paused" if await queue.is_paused() else "running", after="paused")
    await queue.pause()
    return _shown(await view_queue(queue))


@router.post("/queues/{queue}/resume", summary="Let jobs start again")
async def resume(request: Request, queue: ThatQueue) -> QueueOut:
    changes(request, before="paused" if await queue.is_paused() else "running", after="running")
    await queue.resume()
    return _shown(await view_queue(queue))


@router.post("/queues/{queue}/clean", summary="Remove old jobs of one state", responses=documented(409))
async def clean(queue: ThatQueue, what: Clean | None = None, state: NotRunning | None = None) -> Done:
    what = what or Clean()
    gone = await queue.clean(state or what.state, older_than=what.older_than, limit=what.limit)
    return Done(count=gone)


@router.post("/queues/{queue}/drain", summary="Remove every waiting job")
async def drain(queue: ThatQueue, delayed: bool = False) -> Done:
    return Done(count=await queue.drain(delayed=delayed))


@router.get("/workers", summary="Workers seen alive of late", tags=["workers"])
async def list_workers(app: App) -> list[WorkerOut]:
    return [WorkerOut.of(worker) for worker in await live_workers(app.queues)]


def _shown(view: QueueView) -> QueueOut:
    queue = view.queue
    return QueueOut(
        **view.counts,
        name=queue.name,
        type=queue.type,
        paused=view.is_paused,
        counts=Counts.model_validate(view.counts),
        dead_letters=view.dead_letters,
        concurrency=queue.definition.concurrency,
        jobs=list(queue.definition.handlers),
        history=[
            Minute(moment=isoformat(minute.moment), completed=minute.completed, failed=minute.failed)
            for minute in view.history
        ],
        error=mask(view.error),
        warning=view.warning,
    )
