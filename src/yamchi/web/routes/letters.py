"""Dead letters: list, show, replay (as they are or mended), purge."""

from fastapi import APIRouter, Request

from yamchi.fields import Key
from yamchi.http.access import TheCaller, seen_by
from yamchi.http.audit import changes
from yamchi.http.bodies import Done, Many, Replay
from yamchi.http.paging import PageNumber, PageSize, Search, pages
from yamchi.http.problems import documented
from yamchi.queues.deadletters import to_dict
from yamchi.web.routes.queues import ThatQueue
from yamchi.web.schemas import LetterOut, LetterRow, LettersOut

router = APIRouter(tags=["dead letters"], responses=documented(401, 403, 404, 422, 503))

LETTER = "/queues/{queue}/dlq/{letter_id:path}"


@router.get("/queues/{queue}/dlq", summary="Dead letters of a queue, newest first")
async def list_letters(
    queue: ThatQueue, caller: TheCaller, q: Search = "", page: PageNumber = 1, size: PageSize = 25
) -> LettersOut:
    found = await queue.dead_letters.list(search=q, offset=(page - 1) * size, limit=size)
    rows = [LetterRow.of(letter) for letter in found.letters]
    for row, preview in zip(rows, await seen_by(caller, [row.preview for row in rows]), strict=True):
        row.preview = preview
    return LettersOut(letters=rows, total=found.total, page=page, pages=pages(found.total, size))


@router.post("/queues/{queue}/dlq/replay-all", summary="Replay every dead letter that holds a job")
async def replay_all(queue: ThatQueue, q: Search = "") -> Done:
    return Done(count=await queue.dead_letters.replay_all(search=q))


@router.post("/queues/{queue}/dlq/purge", summary="Drop these dead letters")
async def purge_many(queue: ThatQueue, which: Many) -> Done:
    return Done(count=await queue.dead_letters.purge(which.ids))


@router.post("/queues/{queue}/dlq/purge-all", summary="Drop every dead letter of the queue")
async def purge_all(queue: ThatQueue) -> Done:
    return Done(count=await queue.dead_letters.purge())


@router.get(LETTER, summary="One dead letter")
async def show_letter(queue: ThatQueue, letter_id: Key, caller: TheCaller) -> LetterOut:
    letter = to_dict(await queue.dead_letters.get(letter_id))
    return LetterOut(**letter | {"body": await seen_by(caller, letter["body"])})


@router.post(
    f"{LETTER}/replay",
    status_code=204,
    summary="Put the job back, with other data if given",
    responses=documented(409),
)
async def replay_letter(queue: ThatQueue, letter_id: Key, mended: Replay | None = None) -> None:
    await queue.dead_letters.replay(letter_id, (mended or Replay()).given)


@router.delete(LETTER, status_code=204, summary="Drop a dead letter")
async def purge_letter(request: Request, queue: ThatQueue, letter_id: Key) -> None:
    letter = await queue.dead_letters.get(letter_id)
    changes(request, before=f"{letter.name}: {letter.error}")
    await queue.dead_letters.purge([letter_id])
