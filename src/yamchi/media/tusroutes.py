"""Uploads that may break off, over HTTP (tus 1.0): for the product's backend, and for a person's own page or phone."""

from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Header, Request, Response
from starlette.exceptions import HTTPException

from yamchi.http.access import TheCaller, TheirId
from yamchi.http.problems import documented
from yamchi.media import uploads
from yamchi.media.plugin import Media
from yamchi.media.routes import MediaId, TheMedia, admin, own, pages_of_board, public, read_metadata
from yamchi.media.uploads import Upload
from yamchi.plugins import Routes

VERSION = "1.0.0"
TUS = {"Tus-Resumable": VERSION, "Cache-Control": "no-store"}
OURS, THEIRS = "/media/tus", "/users/{user_id}/media/tus"

Length = Annotated[int, Header(alias="Upload-Length", ge=0, le=2**53)]
Offset = Annotated[int, Header(alias="Upload-Offset", ge=0, le=2**53)]
About = Annotated[str, Header(alias="Upload-Metadata", max_length=8_192)]


async def check_version(tus_resumable: Annotated[str, Header()] = VERSION) -> None:
    if tus_resumable != VERSION:
        raise HTTPException(
            HTTPStatus.PRECONDITION_FAILED, f"Send Tus-Resumable: {VERSION}.", {"Tus-Version": VERSION}
        )


SPOKEN: dict[str, Any] = {
    "response_class": Response,
    "dependencies": [Depends(check_version)],
    "responses": documented(HTTPStatus.PRECONDITION_FAILED),
}


# ── For the backend ───────────────────────────────────────────────────────────────────────────────────────────────


@admin.options(OURS, status_code=204, response_class=Response, summary="What the resumable upload can do")
async def tus_options(media: TheMedia) -> Response:
    return _abilities(media)


@admin.post(OURS, status_code=201, summary="Begin a resumable upload", **SPOKEN)
async def tus_create(media: TheMedia, upload_length: Length, about: About = "") -> Response:
    """`Upload-Metadata`: `filename`, `entityType`, `userId`, `metadata` (JSON), each as base64."""
    return await _begin(media, upload_length, about, None, "/api/admin/media/tus")


@admin.head(OURS + "/{upload_id}", summary="How far an upload is", **SPOKEN)
async def tus_head(media: TheMedia, upload_id: MediaId) -> Response:
    return await _tell(media, upload_id, None)


@admin.patch(OURS + "/{upload_id}", status_code=204, summary="Send the next part", **SPOKEN)
async def tus_patch(media: TheMedia, upload_id: MediaId, request: Request, offset: Offset) -> Response:
    """`application/offset+octet-stream`. With the last part the picture is accepted: `X-Media-Id` and `X-Job-Id` name it."""
    return await _append(media, upload_id, None, request, offset)


@admin.delete(OURS + "/{upload_id}", status_code=204, summary="Give up an upload", **SPOKEN)
async def tus_delete(media: TheMedia, upload_id: MediaId) -> Response:
    return await _drop(media, upload_id, None)


# ── For a person ──────────────────────────────────────────────────────────────────────────────────────────────────


@own.options(THEIRS, status_code=204, response_class=Response, summary="What the resumable upload can do")
async def tus_options_own(media: TheMedia, user_id: TheirId) -> Response:
    return _abilities(media)


@own.post(THEIRS, status_code=201, summary="Begin a resumable upload of one's own", **SPOKEN)
async def tus_create_own(
    media: TheMedia, caller: TheCaller, user_id: TheirId, upload_length: Length, about: About = ""
) -> Response:
    """With that person's token, from a page or a phone; it counts for the day as a whole upload does (429)."""
    place, is_person = f"/api/v1/users/{user_id}/media/tus", caller.kind == "person"
    return await _begin(media, upload_length, about, user_id, place, is_counted=is_person)


@own.head(THEIRS + "/{upload_id}", summary="How far an upload of one's own is", **SPOKEN)
async def tus_head_own(media: TheMedia, user_id: TheirId, upload_id: MediaId) -> Response:
    return await _tell(media, upload_id, user_id)


@own.patch(THEIRS + "/{upload_id}", status_code=204, summary="Send the next part of one's own", **SPOKEN)
async def tus_patch_own(
    media: TheMedia, user_id: TheirId, upload_id: MediaId, request: Request, offset: Offset
) -> Response:
    return await _append(media, upload_id, user_id, request, offset)


@own.delete(THEIRS + "/{upload_id}", status_code=204, summary="Give up an upload of one's own", **SPOKEN)
async def tus_delete_own(media: TheMedia, user_id: TheirId, upload_id: MediaId) -> Response:
    return await _drop(media, upload_id, user_id)


# ── The same for both ─────────────────────────────────────────────────────────────────────────────────────────────


def _abilities(media: Media) -> Response:
    most = str(media.settings.media_max_bytes)
    can = {"Tus-Version": VERSION, "Tus-Extension": "creation,termination", "Tus-Max-Size": most}
    return Response(status_code=204, headers={**TUS, **can})


async def _begin(
    media: Media, length: int, about: str, owner: str | None, place: str, *, is_counted: bool = False
) -> Response:
    said = uploads.read_metadata(about)
    read_metadata(said.get("metadata"))
    media.service.check_announced(length, said.get("entityType", "default"))
    upload_id = await media.resumable.create(length, about, owner, is_counted=is_counted)
    return Response(status_code=201, headers={**TUS, "Location": f"{place}/{upload_id}"})


async def _tell(media: Media, upload_id: str, owner: str | None) -> Response:
    upload = await media.resumable.find(upload_id, owner)
    offset = media.resumable.offset(upload)
    headers = await _accept_if_whole(media, upload, offset)
    return Response(headers={**headers, "Upload-Length": str(upload.length)})


async def _append(media: Media, upload_id: str, owner: str | None, request: Request, offset: int) -> Response:
    if request.headers.get("content-type") != "application/offset+octet-stream":
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send application/offset+octet-stream.")
    upload = await media.resumable.find(upload_id, owner)
    offset = await media.resumable.append(upload, offset, request.stream())
    return Response(status_code=204, headers=await _accept_if_whole(media, upload, offset))


async def _drop(media: Media, upload_id: str, owner: str | None) -> Response:
    upload = await media.resumable.find(upload_id, owner)
    if upload.media_id is None:
        await media.resumable.drop(upload)
    return Response(status_code=204, headers=TUS)


async def _accept_if_whole(media: Media, upload: Upload, offset: int) -> dict[str, str]:
    headers = {**TUS, "Upload-Offset": str(offset)}
    if offset < upload.length:
        return headers
    about = upload.metadata

    async def accept(file: Path) -> tuple[str, str]:
        found, job_id = await media.service.accept(
            file,
            about.get("entityType", "default"),
            about.get("filename", "file"),
            user_id=upload.owner or about.get("userId"),
            metadata=read_metadata(about.get("metadata")),
            media_id=upload.id,
        )
        return found.id, job_id

    done = await media.resumable.finish(upload, accept)
    return {**headers, "X-Media-Id": str(done.media_id), "X-Job-Id": str(done.job_id)}


ROUTES = (
    Routes(pages_of_board, prefix="", access="public"),
    Routes(admin, prefix="/api/admin"),
    Routes(own, access="person"),
    Routes(public, prefix="", access="public"),
)
