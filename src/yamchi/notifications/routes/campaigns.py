"""Campaigns over HTTP: made once, watched, paused, resumed, cancelled; long lists come as a stream."""

import asyncio
from io import TextIOWrapper
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from fastapi import APIRouter, Request

from yamchi.fields import Key
from yamchi.http.access import TheCaller, seen_by
from yamchi.http.paging import PageNumber, PageSize
from yamchi.http.problems import documented
from yamchi.notifications.campaigns.model import CampaignIn
from yamchi.notifications.routes.dependencies import TheNotifications

router = APIRouter(tags=["campaigns"], responses=documented(401, 403, 422, 503))

_CSV_BODY = {
    "requestBody": {"required": True, "content": {"text/csv": {"schema": {"type": "string"}}}},
}


@router.post(
    "/campaigns",
    status_code=202,
    summary="Send to many; the same campaign again changes nothing",
    responses=documented(409),
)
async def create_campaign(notifications: TheNotifications, campaign: CampaignIn) -> dict[str, Any]:
    return await notifications.campaigns.create(campaign)


@router.get("/campaigns", summary="Campaigns with their progress, newest first")
async def list_campaigns(
    notifications: TheNotifications, caller: TheCaller, page: PageNumber = 1, size: PageSize = 50
) -> list[dict[str, Any]]:
    return await seen_by(caller, await notifications.campaigns.list(offset=(page - 1) * size, limit=size))


@router.get("/campaigns/{campaign_id}", summary="One campaign: how far it is", responses=documented(404))
async def show_campaign(
    notifications: TheNotifications, caller: TheCaller, campaign_id: Key
) -> dict[str, Any]:
    return await seen_by(caller, await notifications.campaigns.show(campaign_id))


@router.put(
    "/campaigns/{campaign_id}/audience",
    summary="The list of a campaign made with {upload: true}: a CSV with a column user_id or email; then it begins",
    responses=documented(404, 409, 413),
    openapi_extra=_CSV_BODY,
)
async def upload_audience(
    notifications: TheNotifications, campaign_id: Key, request: Request
) -> dict[str, Any]:
    await notifications.campaigns.get(campaign_id)  # before anybody sends us a long list for nothing
    with TemporaryFile() as kept:
        await _receive(request, kept)
        lines = TextIOWrapper(kept, encoding="utf-8", errors="surrogateescape", newline="")
        return await notifications.campaigns.upload(campaign_id, lines)


@router.post(
    "/campaigns/{campaign_id}/pause", summary="Send nothing more for now", responses=documented(404, 409)
)
async def pause_campaign(notifications: TheNotifications, campaign_id: Key) -> dict[str, Any]:
    return await notifications.campaigns.pause(campaign_id)


@router.post("/campaigns/{campaign_id}/resume", summary="Go on", responses=documented(404, 409))
async def resume_campaign(notifications: TheNotifications, campaign_id: Key) -> dict[str, Any]:
    return await notifications.campaigns.resume(campaign_id)


@router.post(
    "/campaigns/{campaign_id}/cancel", summary="Send nothing more, ever", responses=documented(404, 409)
)
async def cancel_campaign(notifications: TheNotifications, campaign_id: Key) -> dict[str, Any]:
    return await notifications.campaigns.cancel(campaign_id)


async def _receive(request: Request, kept: BinaryIO) -> None:
    """To the disk, piece by piece: a list may be longer than the memory allows."""
    async for piece in request.stream():
        await asyncio.to_thread(kept.write, piece)
    kept.seek(0)
