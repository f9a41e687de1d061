"""People: where they are reached, what they want, what they will get and got, and forgetting them."""

from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from yamchi.errors import UnknownJob
from yamchi.http.access import ONE_AT_A_TIME, TheCaller, TheirId, seen_by
from yamchi.http.audit import changes
from yamchi.http.paging import Cursor, Limit
from yamchi.http.problems import documented
from yamchi.notifications.channels.base import Recipient
from yamchi.notifications.people.preferences import Preferences
from yamchi.notifications.people.recipients import User
from yamchi.notifications.routes.dependencies import TheNotifications
from yamchi.notifications.sending.history import HistoryPage

router = APIRouter(tags=["users"], responses=documented(401, 403, 404, 422, 503))

own = APIRouter(tags=["users"], responses=documented(401, 403, 404, 422, 503), dependencies=ONE_AT_A_TIME)
"""What a person's own pages may use too, with a token of `POST /users/{user_id}/token`: a preference center."""

ONE = "/users/{user_id}"


class UserOut(BaseModel):
    """A person, as kept."""

    user_id: UUID
    email: str | None
    phone: str | None
    telegram_id: str | None
    locale: str | None
    timezone: str | None
    attributes: dict[str, Any]

    @classmethod
    def of(cls, user_id: UUID, known: Recipient) -> "UserOut":
        fields: dict[str, Any] = {name: getattr(known, name) for name in User.model_fields}
        return cls(user_id=user_id, **fields)


class DeliveryOut(BaseModel):
    """A message to a person: what became of it or will, when, and why it is so."""

    job_id: str
    channel: str
    template_code: str
    status: str
    when: str | None = Field(
        description="When it is due, or was sent or given up; null: as soon as possible."
    )
    why: str | None = Field(description="What it waits for, why it was skipped, or what went wrong.")
    attempts: int
    event_id: str | None
    campaign_id: str | None
    created_at: str


class DeliveriesOut(BaseModel):
    items: list[DeliveryOut]
    next_cursor: str | None = Field(description="Give it as `cursor` to go on; null at the end.")

    @classmethod
    def of(cls, page: HistoryPage) -> "DeliveriesOut":
        items = [DeliveryOut.model_validate(item) for item in page.items]
        return cls(items=items, next_cursor=page.next_cursor)


class ErasedOut(BaseModel):
    """What was found of a person: messages called off, deliveries and events emptied; features may add to it."""

    model_config = ConfigDict(extra="allow")

    cancelled: int
    deliveries: int
    events: int


@router.put(ONE, summary="Make or replace a person; what they chose stays")
async def put_user(request: Request, notifications: TheNotifications, user_id: UUID, user: User) -> UserOut:
    changes(request, after=f"fields: {', '.join(sorted(user.model_fields_set)) or 'none'}")
    return UserOut.of(user_id, await notifications.recipients.put(str(user_id), user))


@router.get(ONE, summary="A person")
async def show_user(notifications: TheNotifications, caller: TheCaller, user_id: UUID) -> UserOut:
    known = await notifications.recipients.get(str(user_id))
    if known is None:
        raise UnknownJob(f"There is no user {user_id}.")
    found = UserOut.of(user_id, known)
    return found.model_copy(update={"attributes": await seen_by(caller, found.attributes)})


@router.delete(
    ONE,
    summary="Erase a person: what says who they are is gone, the counts stay",
    responses=documented(409),
)
async def erase_user(notifications: TheNotifications, user_id: UUID) -> ErasedOut:
    found = await notifications.app.erase(str(user_id))
    if not any(found.values()):
        raise UnknownJob(f"There is no user {user_id}.")
    return ErasedOut.model_validate(found)


@own.get(f"{ONE}/preferences", summary="What a person chose; everything is on by default")
async def show_preferences(notifications: TheNotifications, user_id: TheirId) -> Preferences:
    return await notifications.preferences.get(user_id)


@own.put(f"{ONE}/preferences", summary="Replace what a person chose")
async def put_preferences(
    request: Request, notifications: TheNotifications, user_id: TheirId, chosen: Preferences
) -> Preferences:
    before = await notifications.preferences.get(user_id)
    changes(request, before=before.model_dump(mode="json"))
    await notifications.preferences.put(user_id, chosen)
    return await notifications.preferences.get(user_id)


@router.get(f"{ONE}/pending", summary="What a person will get, soonest first, and what it waits for")
async def list_pending(
    notifications: TheNotifications, user_id: UUID, cursor: Cursor = None, limit: Limit = 50
) -> DeliveriesOut:
    return DeliveriesOut.of(await notifications.history.pending(str(user_id), cursor, limit))


@router.get(f"{ONE}/history", summary="What a person got or did not get, newest first, and why")
async def list_history(
    notifications: TheNotifications, user_id: UUID, cursor: Cursor = None, limit: Limit = 50
) -> DeliveriesOut:
    return DeliveriesOut.of(await notifications.history.past(str(user_id), cursor, limit))
