"""Media over HTTP: uploads whole and resumable, watermarks, syncs, cleanup, and the pictures themselves."""

from http import HTTPStatus
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, RedirectResponse

from yamchi.errors import InvalidJob
from yamchi.http.access import TheCaller, TheirId, seen_by
from yamchi.http.headers import CONTENT_POLICY, FOR_ANY_PAGE, content_policy
from yamchi.http.pages import board_page
from yamchi.http.paging import PageNumber, PageSize, pages
from yamchi.http.problems import documented
from yamchi.media.files import remove, size_of
from yamchi.media.model import Operation, Picture, Variants, WatermarkJobData
from yamchi.media.multipart import receive_form
from yamchi.media.overlay import Position
from yamchi.media.plugin import STATIC, Media
from yamchi.media.store import UnknownMedia
from yamchi.media.sync import TYPES
from yamchi.plugins import of_request

PROBLEMS = documented(401, 403, 404, 409, 413, 415, 422, 429, 503)
admin = APIRouter(tags=["media"], responses=PROBLEMS)
own = APIRouter(tags=["media"], responses=PROBLEMS)
pages_of_board = APIRouter()
public = APIRouter(tags=["media"], responses=documented(404, 422))

TheMedia = Annotated[Media, Depends(of_request(Media))]
MediaId = Annotated[str, Path(max_length=36)]
FOREVER = "public, max-age=31536000, immutable"


class Accepted(BaseModel):
    """Where the work is, and where the picture will be."""

    jobId: str  # noqa: N815 - the names of the API
    mediaId: str  # noqa: N815


class WatermarkIn(BaseModel):
    """Which watermark, and how."""

    model_config = ConfigDict(extra="forbid")

    mediaId: str | None = Field(default=None, max_length=36, description="As in the address, if at all.")  # noqa: N815
    watermarkId: str = Field(max_length=64)  # noqa: N815
    position: Position = "bottom-right"
    opacity: float = Field(default=0.5, ge=0.1, le=1.0)
    scale: float = Field(default=0.2, ge=0.1, le=1.0)
    variants: Variants = Field(default=None, description="Which of them; all by default.")


class SyncIn(BaseModel):
    """What to sync: these, or all."""

    model_config = ConfigDict(extra="forbid")

    mediaIds: list[Annotated[str, Field(max_length=36)]] | None = Field(  # noqa: N815
        default=None, max_length=10_000, fail_fast=True
    )
    all: bool = False
    operation: Operation = "upload"
    deleteSource: bool = False  # noqa: N815
    priority: int | None = Field(default=None, ge=1, le=10)


class CleanupIn(BaseModel):
    model_config = ConfigDict(extra="forbid")

    olderThanDays: int | None = Field(  # noqa: N815
        default=None, ge=0, le=36_500, description="By default MEDIA_CLEANUP_DAYS."
    )
    status: Literal["soft_deleted"] = "soft_deleted"


# ── In ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@admin.post("/media/upload-async", status_code=202, summary="Upload a picture")
async def upload(media: TheMedia, request: Request) -> Accepted:
    """multipart/form-data: `file`, `entityType`, `userId?`, `metadata?` (JSON). Processing goes on in the background."""
    return await _accept(media, request, None)


@own.post("/users/{user_id}/media", status_code=202, summary="Upload a picture of one's own")
async def upload_own(media: TheMedia, caller: TheCaller, user_id: TheirId, request: Request) -> Accepted:
    """The same for a person's page, with that person's token: up to MEDIA_PERSON_BYTES a day, and 429 beyond."""
    if caller.kind != "person":
        return await _accept(media, request, user_id)
    announced = request.headers.get("content-length", "")
    size = int(announced) if announced.isdecimal() else media.settings.media_max_bytes
    async with media.allowance.taken(user_id, size):
        return await _accept(media, request, user_id)


@own.get("/users/{user_id}/media/{media_id}", summary="A picture of one's own")
async def get_own(media: TheMedia, user_id: TheirId, media_id: MediaId) -> dict[str, Any]:
    """For a page that uploaded it and lost its connection meanwhile."""
    found = await media.store.get(media_id)
    if found.user_id != user_id:
        raise UnknownMedia(f"There is no media {media_id[:64]!r}.")
    return found.to_dict()


async def _accept(media: Media, request: Request, owner: str | None) -> Accepted:
    """Of the owner, where the caller is one; else of whom the form names."""
    temp = media.files.new_temp()
    form = await receive_form(request, media.files, temp, media.settings.media_max_bytes)
    try:
        metadata = read_metadata(form.get("metadata"))
    except InvalidJob:
        remove(temp)
        raise
    found, job_id = await media.service.accept(
        temp,
        form.get("entityType") or "default",
        form.filename or "file",
        user_id=owner or form.get("userId"),
        metadata=metadata,
    )
    return Accepted(jobId=job_id, mediaId=found.id)


def read_metadata(text: str | None) -> dict[str, Any]:
    try:
        found = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError:
        raise InvalidJob("metadata: it should be a JSON object.") from None
    if not isinstance(found, dict):
        raise InvalidJob("metadata: it should be a JSON object.")
    return found


# ── Looking after ─────────────────────────────────────────────────────────────────────────────────────────────────


@pages_of_board.get("/media", include_in_schema=False)
async def show_page(request: Request, media: TheMedia) -> Response:
    buckets = [media.bucket.origin] if media.bucket else []
    return board_page(request, STATIC / "media.html", {CONTENT_POLICY: content_policy(*buckets)})


@admin.get("/media", summary="Pictures, newest first")
async def list_media(
    media: TheMedia,
    caller: TheCaller,
    status: Literal["processing", "ready", "failed", "soft_deleted"] | None = None,
    entityType: Annotated[str | None, Query(max_length=32)] = None,  # noqa: N803
    userId: Annotated[str | None, Query(max_length=64)] = None,  # noqa: N803
    page: PageNumber = 1,
    size: PageSize = 50,
) -> dict[str, Any]:
    found, total = await media.store.page(
        status=status, entity_type=entityType, user_id=userId, offset=(page - 1) * size, limit=size
    )
    return {
        "items": await seen_by(caller, [one.to_dict() for one in found]),
        "total": total,
        "page": page,
        "pages": pages(total, size),
    }


@admin.get("/media/queue", summary="The queues of media, as counts")
async def queue_counts(media: TheMedia) -> dict[str, dict[str, Any]]:
    return await media.queue_counts()


@admin.post("/media/sync", status_code=202, summary="Copy pictures to the bucket, back, or away")
async def sync(media: TheMedia, wanted: SyncIn) -> dict[str, Any]:
    how: dict[str, Any] = {"delete_source": wanted.deleteSource, "priority": wanted.priority}
    if wanted.all:
        counts = [count async for count in media.sync.sync_all(wanted.operation, **how)]
        return {"queued": counts[-1] if counts else 0}
    if not wanted.mediaIds:
        raise InvalidJob("mediaIds: name some, or say all: true.")
    jobs = await media.sync.sync(wanted.mediaIds, wanted.operation, **how)
    return {"queued": len(jobs), "jobIds": jobs}


@admin.post("/media/cleanup", summary="Remove for good what was deleted long ago")
async def cleanup(media: TheMedia, wanted: CleanupIn | None = None) -> dict[str, Any]:
    return (await media.cleanup.run((wanted or CleanupIn()).olderThanDays)).to_dict()


@admin.post("/watermarks", status_code=201, summary="Upload a watermark")
async def add_watermark(media: TheMedia, request: Request) -> dict[str, Any]:
    """multipart/form-data: `file`, and `id?` if you want to choose it."""
    temp = media.files.new_temp()
    form = await receive_form(request, media.files, temp, media.settings.media_max_bytes)
    try:
        chosen = _chosen_id(form.get("id"))
    except InvalidJob:
        remove(temp)
        raise
    return await media.watermarks.add(temp, form.filename or "watermark", chosen)


def _chosen_id(text: str | None) -> str | None:
    if text is not None and not (len(text) <= 64 and text.replace("-", "").replace("_", "").isalnum()):
        raise InvalidJob("id: up to 64 letters, digits, - and _.")
    return text


@admin.get("/watermarks", summary="Watermarks")
async def list_watermarks(media: TheMedia) -> list[dict[str, Any]]:
    return [
        {"id": row.id, "name": row.name, "width": row.width, "height": row.height}
        for row in await media.store.watermarks()
    ]


@admin.get("/media/{media_id}", summary="A picture, its variants and its placeholder")
async def get_media(media: TheMedia, caller: TheCaller, media_id: MediaId) -> dict[str, Any]:
    found = await media.store.get(media_id)
    shown = await seen_by(caller, found.to_dict())
    return {**shown, "duplicateOf": await media.store.same_as(found) if found.hash else None}


@admin.delete("/media/{media_id}", summary="Delete a picture; it can be restored until the cleanup")
async def delete_media(media: TheMedia, media_id: MediaId) -> dict[str, Any]:
    return (await media.store.soft_delete(media_id)).to_dict()


@admin.post("/media/{media_id}/restore", summary="Take a deleted picture back")
async def restore_media(media: TheMedia, media_id: MediaId) -> dict[str, Any]:
    return (await media.store.restore(media_id)).to_dict()


@admin.post(
    "/media/{media_id}/reprocess", status_code=202, summary="Make all variants anew from the original"
)
async def reprocess_media(media: TheMedia, media_id: MediaId) -> Accepted:
    return Accepted(jobId=await media.service.reprocess(media_id), mediaId=media_id)


@admin.post("/media/{media_id}/watermark", status_code=202, summary="Put a watermark over a picture")
async def watermark_media(media: TheMedia, media_id: MediaId, how: WatermarkIn) -> dict[str, str]:
    if how.mediaId not in (None, media_id):
        raise InvalidJob("mediaId: it is another one than in the address.")
    data = WatermarkJobData.model_validate({**how.model_dump(), "mediaId": media_id})
    return {"jobId": await media.watermarks.apply(data)}


@admin.delete("/media/{media_id}/watermark", status_code=202, summary="Take a picture's watermark off")
async def unmark_media(media: TheMedia, media_id: MediaId) -> dict[str, str]:
    """It is made anew from its original."""
    return {"jobId": await media.watermarks.take_off(media_id)}


# ── Out ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@public.get("/media/{media_id}/{variant}", response_class=FileResponse, summary="A picture")
@public.head("/media/{media_id}/{variant}", include_in_schema=False)
async def show(
    media: TheMedia, media_id: MediaId, variant: Annotated[str, Path(max_length=128)], request: Request
) -> Response:
    """By the address in `variants` or `srcset`, which never changes; the bare name of a variant leads to it.

    What a page names may have changed meanwhile: for a day the old address still shows what it did.
    """
    found = await media.store.get(media_id)
    if found.status == "soft_deleted":
        raise HTTPException(HTTPStatus.NOT_FOUND, "This picture was deleted.")
    for one in found.variants:
        if variant == one.name:
            return RedirectResponse(
                found.url_of(one), 302, {**FOR_ANY_PAGE, "cache-control": "public, max-age=60"}
            )
        if variant == one.address:
            return await _picture(media, request, found, one.file, one.is_synced)
    former = f"{media_id}-{variant}"
    if await media.store.is_retired(found.key_of(former)):
        return await _picture(media, request, found, former, media.bucket is not None)
    raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such variant of this picture.")


async def _picture(media: Media, request: Request, found: Picture, file: str, is_synced: bool) -> Response:
    """From here, or by leading to the bucket. Its type is ours to say, and its name has the hash of its content."""
    path = media.files.public_file(found.entity_type, file)
    if size_of(path):
        tag = f'"{path.stem.rpartition("-")[2]}"'
        headers = {
            **FOR_ANY_PAGE,
            "etag": tag,
            "cache-control": FOREVER,
            "x-content-type-options": "nosniff",
        }
        known = request.headers.get("if-none-match", "")
        if known == "*" or tag in [one.strip().removeprefix("W/") for one in known.split(",")]:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return FileResponse(path, media_type=TYPES[path.suffix], headers=headers)
    if is_synced and media.bucket:
        url = await media.bucket.url_of(found.key_of(file))
        return RedirectResponse(url, 302, {**FOR_ANY_PAGE, "cache-control": "private, max-age=600"})
    raise HTTPException(HTTPStatus.NOT_FOUND, "The file of this picture is gone.")
