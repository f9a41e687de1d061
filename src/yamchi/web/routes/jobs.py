"""Jobs: list, show, add, edit, retry, promote, cancel, remove. An id may contain slashes."""

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from yamchi.fields import Key
from yamchi.http.access import TheCaller, seen_by
from yamchi.http.audit import changes
from yamchi.http.bodies import Done, Many
from yamchi.http.paging import EMPTY_IS_ABSENT, PageNumber, PageSize, Search, pages
from yamchi.http.problems import documented
from yamchi.http.scopes import ADMIN, SEND, Caller, id_of_test
from yamchi.queues.records import State
from yamchi.web.routes.queues import ThatQueue
from yamchi.web.schemas import Edit, JobIn, JobOut, JobPage, JobRow, OfState, StateOut

router = APIRouter(tags=["jobs"], responses=documented(401, 403, 404, 422, 503))
senders = APIRouter(tags=["jobs"], responses=documented(401, 403, 404, 422, 503))
"""What a caller that may only send may use."""

JOB = "/queues/{queue}/jobs/{job_id:path}"


@router.get("/queues/{queue}/jobs", summary="Jobs of a queue, by state, searched")
async def list_jobs(
    queue: ThatQueue,
    caller: TheCaller,
    state: Annotated[State | None, EMPTY_IS_ABSENT] = None,
    q: Search = "",
    page: PageNumber = 1,
    size: PageSize = 25,
) -> JobPage:
    found = await queue.page(state, search=q, offset=(page - 1) * size, limit=size)
    rows = [JobRow.of(job) for job in found.jobs]
    shown = await seen_by(caller, [(row.preview, row.data) for row in rows])
    for row, (preview, data) in zip(rows, shown, strict=True):
        row.preview, row.data = preview, data
    return JobPage(jobs=rows, total=found.total, page=page, pages=pages(found.total, size))


@senders.post(
    "/queues/{queue}/jobs",
    status_code=201,
    summary="Add a job; who may only send is told its id and state",
    responses=documented(413)
    | {200: {"description": "The id was there already.", "model": JobOut | StateOut}},
)
async def add_job(queue: ThatQueue, caller: TheCaller, new: JobIn, response: Response) -> JobOut | StateOut:
    fields = {field: getattr(new, field) for field in JobIn.model_fields}
    job = await queue.add(**fields | await _from_outside(queue, caller, new))
    response.status_code = 201 if job.is_new else 200
    if caller.may(ADMIN):
        return JobOut.model_validate(job.to_dict())
    return StateOut(id=job.id, state=job.state)


async def _from_outside(queue: ThatQueue, caller: Caller, new: JobIn) -> dict[str, Any]:
    """What is taken from outside in another form: data by the queue's own rule, and a test under an id of its own."""
    if not caller.may(ADMIN) and (new.keep_completed is not None or new.keep_failed is not None):
        raise HTTPException(
            HTTPStatus.FORBIDDEN,
            "keep_completed and keep_failed say what is kept of everybody's jobs: only an admin may give them.",
        )
    is_closed = queue.definition.is_own or queue.definition.is_foreign
    if is_closed and not caller.names(f"{SEND}:{queue.name}"):
        whose = "the application's own" if queue.definition.is_own else "another program's"
        raise HTTPException(
            HTTPStatus.FORBIDDEN,
            f"The queue {queue.name} is {whose}: a key needs the scope {SEND}:{queue.name} to add to it.",
        )
    take_in = queue.definition.take_in
    if caller.is_test and take_in is None:
        raise HTTPException(
            HTTPStatus.FORBIDDEN,
            f"A test key can't add to {queue.name}: what its jobs do could not be kept from leaving.",
        )
    changed: dict[str, Any] = {}
    if take_in is not None:
        changed["data"] = await take_in(new.data, caller.is_test)
    if caller.is_test and new.id is not None:
        changed["id"] = id_of_test(new.id, "-")
    if new.id is None and queue.definition.id_in is not None:
        changed["id"] = queue.definition.id_in(changed.get("data", new.data))
    return changed


@router.post("/queues/{queue}/retry-all", summary="Put every job of a finished state back")
async def retry_all(queue: ThatQueue, which: OfState | None = None, state: State | None = None) -> Done:
    return Done(count=await queue.retry_all(state or (which or OfState()).state))


@router.post("/queues/{queue}/remove", summary="Remove these jobs")
async def remove_many(queue: ThatQueue, which: Many) -> Done:
    return Done(count=len(await queue.remove(which.ids)))


@router.post("/queues/{queue}/retry", summary="Put these finished jobs back")
async def retry_many(queue: ThatQueue, which: Many) -> Done:
    return Done(count=len(await queue.retry(which.ids)))


@router.post("/queues/{queue}/promote", summary="Let these delayed jobs run now")
async def promote_many(queue: ThatQueue, which: Many) -> Done:
    return Done(count=len(await queue.promote(which.ids)))


@router.get(JOB, summary="One job with its logs")
async def show_job(queue: ThatQueue, job_id: Key, caller: TheCaller) -> JobOut:
    return JobOut.model_validate(await seen_by(caller, (await queue.job(job_id)).to_dict()))


@router.patch(JOB, summary="Replace the data of a job", responses=documented(409))
async def edit_job(request: Request, queue: ThatQueue, job_id: Key, edit: Edit) -> JobOut:
    job = await queue.job(job_id)
    changes(request, before=job.record.payload, after=edit.data)
    await job.update(edit.data)
    if edit.retry:
        await job.retry()
    return await _shown(queue, job_id)


@router.delete(JOB, status_code=204, summary="Remove a job that is not running", responses=documented(409))
async def remove_job(request: Request, queue: ThatQueue, job_id: Key) -> None:
    job = await queue.job(job_id)
    changes(request, before=f"{job.name}, {job.state}")
    await job.remove()


@router.post(f"{JOB}/retry", summary="Put a finished job back", responses=documented(409))
async def retry_job(queue: ThatQueue, job_id: Key) -> JobOut:
    await (await queue.job(job_id)).retry()
    return await _shown(queue, job_id)


@router.post(f"{JOB}/promote", summary="Let a delayed job run now", responses=documented(409))
async def promote_job(queue: ThatQueue, job_id: Key) -> JobOut:
    await (await queue.job(job_id)).promote()
    return await _shown(queue, job_id)


@router.post(f"{JOB}/cancel", summary="Cancel a job, or ask a running one to stop", responses=documented(409))
async def cancel_job(queue: ThatQueue, job_id: Key) -> StateOut:
    job = await queue.job(job_id)
    return StateOut(id=job.id, state=await job.cancel())


async def _shown(queue: ThatQueue, job_id: Key) -> JobOut:
    return JobOut.model_validate((await queue.job(job_id)).to_dict())
