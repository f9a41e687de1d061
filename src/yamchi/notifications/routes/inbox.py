"""The inbox of a person, for the person's own pages and for the admin, and the token that such a page needs."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from yamchi.clock import describe_span, isoformat, to_millis
from yamchi.errors import InvalidJob
from yamchi.fields import Key, SpanText
from yamchi.http.access import ONE_AT_A_TIME, TheirId
from yamchi.http.bodies import Done
from yamchi.http.problems import documented
from yamchi.notifications.inbox.store import Action, View
from yamchi.notifications.people.tokens import LIFE, LONGEST_LIFE
from yamchi.notifications.routes.dependencies import TheNotifications

router = APIRouter(tags=["inbox"], responses=documented(401, 403, 404, 422, 503), dependencies=ONE_AT_A_TIME)
senders = APIRouter(tags=["inbox"], responses=documented(401, 403, 422, 503))
"""What a key that may mint tokens may use."""

Limit = Annotated[int, Query(ge=1, le=100, description="At most; a page of long messages has fewer.")]
Cursor = Annotated[str | None, Query(max_length=200, description="`next_cursor` of the page before.")]


class Link(BaseModel):
    text: str
    url: str


class ItemOut(BaseModel):
    """A message in the inbox."""

    id: str
    title: str | None
    text: str
    url: str | None
    buttons: list[Link]
    category: str
    template_code: str
    is_urgent: bool
    is_archived: bool
    created_at: str
    read_at: str | None


class InboxOut(BaseModel):
    """A page of messages, newest first."""

    items: list[ItemOut]
    next_cursor: str | None = Field(description="Give it as `cursor` to go on; null at the end.")
    unread: int = Field(description="Unread messages in the inbox, counted up to 1,000.")


class UnreadOut(BaseModel):
    unread: int = Field(description="Counted up to 1,000.")


class TokenIn(BaseModel):
    expires_in: SpanText = Field(default="15m", examples=["15m"], description="At most a day.")


class TokenOut(BaseModel):
    user_id: UUID
    token: str
    expires_at: str


@senders.post("/users/{user_id}/token", status_code=201, summary="Mint a token for a person's pages")
async def mint_token(
    notifications: TheNotifications, user_id: UUID, request: TokenIn | None = None
) -> TokenOut:
    life = LIFE if request is None else to_millis(request.expires_in)
    if not 0 < life <= LONGEST_LIFE:
        raise InvalidJob(f"expires_in must be more than nothing, and at most {describe_span(LONGEST_LIFE)}.")
    token, expires_at = await notifications.persons.mint(str(user_id), life)
    return TokenOut(user_id=user_id, token=token, expires_at=isoformat(expires_at))


@router.get("/users/{user_id}/inbox", summary="Messages in a person's inbox, newest first")
async def list_inbox(
    notifications: TheNotifications,
    user_id: TheirId,
    view: View = "inbox",
    cursor: Cursor = None,
    limit: Limit = 20,
) -> InboxOut:
    page = await notifications.inbox.page(user_id, view=view, cursor=cursor, limit=limit)
    unread = await notifications.inbox.unread([user_id])
    items = [ItemOut.model_validate(item) for item in page.items]
    return InboxOut(items=items, next_cursor=page.next_cursor, unread=unread[user_id])


@router.get("/users/{user_id}/inbox/unread", summary="How many messages are unread")
async def count_unread(notifications: TheNotifications, user_id: TheirId) -> UnreadOut:
    return UnreadOut(unread=(await notifications.inbox.unread([user_id]))[user_id])


@router.post("/users/{user_id}/inbox/read-all", summary="Mark every message as read")
async def read_all(notifications: TheNotifications, user_id: TheirId) -> Done:
    return Done(count=await notifications.inbox.read_all(user_id))


@router.post("/users/{user_id}/inbox/{message_id}/{action}", summary="Mark one message, or put it away")
async def change_item(
    notifications: TheNotifications, user_id: TheirId, message_id: Key, action: Action
) -> ItemOut:
    return ItemOut.model_validate(await notifications.inbox.change(user_id, message_id, action))
