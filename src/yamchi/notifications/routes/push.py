"""Web Push for pages: the key they subscribe with, the browsers of a person, and the two files that do it in a browser."""

from typing import TYPE_CHECKING, Annotated, cast
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from yamchi.clock import isoformat
from yamchi.errors import UnknownJob
from yamchi.fields import Key
from yamchi.http.access import ONE_AT_A_TIME, TheirId
from yamchi.http.problems import documented
from yamchi.notifications.channels.push.subscriptions import BrowserSubscription, Subscription
from yamchi.notifications.routes.dependencies import TheNotifications

if TYPE_CHECKING:
    from yamchi.notifications.channels.push.channel import WebPushChannel

router = APIRouter(tags=["push"], responses=documented(401, 403, 404, 422, 503), dependencies=ONE_AT_A_TIME)
pages = APIRouter(tags=["push"], responses=documented(404))


async def push_of(notifications: TheNotifications) -> "WebPushChannel":
    channel = notifications.channels.get("push")
    if channel is None:
        raise UnknownJob(
            "Web Push is not set up here: make a key with yamchi doctor --make-vapid, and set VAPID_PRIVATE_KEY and VAPID_SUBJECT."
        )
    return cast("WebPushChannel", channel)


Push = Annotated["WebPushChannel", Depends(push_of)]


class KeyOut(BaseModel):
    public_key: str = Field(description="The applicationServerKey, as base64url.")


class BrowserOut(BaseModel):
    """A browser that asked for messages."""

    id: str
    service: str = Field(description="The push service that carries its messages.")
    device: str | None
    created_at: str
    updated_at: str

    @classmethod
    def of(cls, one: Subscription) -> "BrowserOut":
        return cls(
            id=one.subscription_id,
            service=urlsplit(one.endpoint).hostname or "",
            device=one.device,
            created_at=isoformat(one.created_at),
            updated_at=isoformat(one.updated_at),
        )


@pages.get("/push/key", summary="The key that pages subscribe with")
async def show_key(push: Push) -> KeyOut:
    return KeyOut(public_key=push.public_key)


@router.get("/users/{user_id}/push", summary="The browsers of a person")
async def list_browsers(push: Push, user_id: TheirId) -> list[BrowserOut]:
    return [BrowserOut.of(one) for one in await push.subscriptions.of(user_id)]


@router.post(
    "/users/{user_id}/push",
    status_code=201,
    summary="Remember a browser; the same one again changes nothing",
)
async def add_browser(push: Push, user_id: TheirId, browser: BrowserSubscription) -> BrowserOut:
    return BrowserOut.of(await push.subscribe(user_id, browser))


@router.delete("/users/{user_id}/push/{browser_id}", status_code=204, summary="Forget a browser")
async def remove_browser(push: Push, user_id: TheirId, browser_id: Key) -> None:
    if not await push.subscriptions.remove(browser_id, user_id=user_id):
        raise UnknownJob(f"This person has no browser {browser_id}.")
