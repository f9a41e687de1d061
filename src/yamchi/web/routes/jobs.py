"""Jobs: list, show, add, edit, retry, promote, cancel, remove. An id may contain slashes."""

from fastapi import APIRouter, Response

from yamchi.http.bodies import Done, Many
from yamchi.http.paging import PageNumber, PageSize, Search, pages
from yamchi.http.problems import documented
from yamchi.queues.job import State
from yamchi.web.routes.queues import ThatQueue
from yamchi.web.schemas import Edit, JobIn, JobOut, JobPage, JobRow, StateOut

router = APIRouter(tags=["jobs"], responses=documented(401, 403, 404, 422, 503))
senders = APIRouter(tags=["jobs"], responses=documented(401, 404, 422, 503))
"""What a caller with an API token may use."""

JOB = "/queues/{queue}/jobs/{job_id:path}"


@router.get("/queues/{queue}/jobs", summary="Jobs of a queue, by state, searched")
async def list_jobs(
    queue: ThatQueue, state: State | None = None, q: Search = "", page: PageNumber = 1, size: PageSize = 25
) -> JobPage:
    found = await queue.engine.page(queue.name, state, q, (page - 1) * size, size)
    rows = [JobRow.of(job) for job in found.jobs]
    return JobPage(jobs=rows, total=found.total, page=page, pages=pages(found.total, size))


@senders.post(
    "/queues/{queue}/jobs",
    status_code=201,
    summary="Add a job",
    responses=documented(413) | {200: {"description": "The id was there already.", "model": JobOut}},
)
async def add_job(queue: ThatQueue, new: JobIn, response: Response) -> JobOut:
    job = await queue.add(**{field: getattr(new, field) for field in JobIn.model_fields})
    response.status_code = 201 if job.is_new else 200
    return JobOut.model_validate(job.to_dict())


@router.post("/queues/{queue}/retry-all", summary="Put every job of a finished state back")
async def retry_all(queue: ThatQueue, state: State = "failed") -> Done:
    return Done(count=await queue.retry_all(state))


@router.post("/queues/{queue}/remove", summary="Remove these jobs")
async def remove_many(queue: ThatQueue, which: Many) -> Done:
    return Done(count=len(await queue.engine.remove(queue.name, which.ids)))


@router.post("/queues/{queue}/retry", summary="Put these finished jobs back")
async def retry_many(queue: ThatQueue, which: Many) -> Done:
    return Done(count=len(await queue.engine.retry(queue.name, which.ids)))


@router.post("/queues/{queue}/promote", summary="Let these delayed jobs run now")
async def promote_many(queue: ThatQueue, which: Many) -> Done:
    return Done(count=len(await queue.engine.promote(queue.name, which.ids)))


@router.get(JOB, summary="One job with its logs")
async def show_job(queue: ThatQueue, job_id: str) -> JobOut:
    return await _shown(queue, job_id)


@router.patch(JOB, summary="Replace the data of a job", responses=documented(409))
async def edit_job(queue: ThatQueue, job_id: str, edit: Edit) -> JobOut:
    job = await queue.job(job_id)
    await job.update(edit.data)
    if edit.retry:
        await job.retry()
    return await _shown(queue, job_id)


@router.delete(JOB, status_code=204, summary="Remove a job that is not running", responses=documented(409))
async def remove_job(queue: ThatQueue, job_id: str) -> None:
    await (await queue.job(job_id)).remove()


@router.post(f"{JOB}/retry", summary="Put a finished job back", responses=documented(409))
async def retry_job(queue: ThatQueue, job_id: str) -> JobOut:
    await (await queue.job(job_id)).retry()
    return await _shown(queue, job_id)


@router.post(f"{JOB}/promote", summary="Let a delayed job run now", responses=documented(409))
async def promote_job(queue: ThatQueue, job_id: str) -> JobOut:
    await (await queue.job(job_id)).promote()
    return await _shown(queue, job_id)


@router.post(f"{JOB}/cancel", summary="Cancel a job, or ask a running one to stop", responses=documented(409))
async def cancel_job(queue: ThatQueue, job_id: str) -> StateOut:
    job = await queue.job(job_id)
    return StateOut(id=job.id, state=await job.cancel())


async def _shown(queue: ThatQueue, job_id: str) -> JobOut:
    return JobOut.model_validate((await queue.job(job_id)).to_dict())
