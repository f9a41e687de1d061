"""Addresses that are left alone: those that reached nobody, and those put here by hand."""

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from yamchi.fields import Address, Key, Note
from yamchi.http.cursors import make_cursor, read_cursor
from yamchi.http.paging import Cursor, Limit
from yamchi.http.problems import documented
from yamchi.notifications.people.suppressions import shown
from yamchi.notifications.routes.dependencies import TheNotifications
from yamchi.notifications.schemas.notification_job import Channel, canonical_channel

router = APIRouter(tags=["suppressions"], responses=documented(401, 403, 404, 422, 503))


class SuppressionIn(BaseModel):
    """An address to leave alone."""

    model_config = ConfigDict(extra="forbid")

    channel: Channel
    address: Address = Field(examples=["gone@example.com"])
    reason: Note = Field(min_length=1, examples=["asked by telephone"])


class SuppressionOut(SuppressionIn):
    """One that is left alone, since when and why."""

    channel: str
    reason: str
    user_id: str | None
    job_id: str | None
    created_at: str


class SuppressionsOut(BaseModel):
    items: list[SuppressionOut]
    next_cursor: str | None = Field(description="Give it as `cursor` to go on; null at the end.")


@router.get("/suppressions", summary="Addresses that are left alone, newest first")
async def list_suppressions(
    notifications: TheNotifications, channel: Key | None = None, cursor: Cursor = None, limit: Limit = 50
) -> SuppressionsOut:
    after = None if cursor is None else read_cursor(cursor, 2)
    rows = await notifications.suppressions.list(channel=channel, after=after, limit=limit + 1)
    last = rows[limit - 1] if len(rows) > limit else None
    return SuppressionsOut(
        items=[SuppressionOut(**shown(row)) for row in rows[:limit]],
        next_cursor=last and make_cursor(last.created_at, last.channel, last.address),
    )


@router.post("/suppressions", status_code=204, summary="Leave an address alone from now on")
async def add_suppression(notifications: TheNotifications, new: SuppressionIn) -> None:
    channel = canonical_channel(new.channel)
    await notifications.suppressions.add(channel, new.address, new.reason)


@router.delete(
    "/suppressions/{channel}/{address:path}", status_code=204, summary="Let an address be used again"
)
async def remove_suppression(notifications: TheNotifications, channel: Key, address: Key) -> None:
    await notifications.suppressions.remove(channel, address)
