"""Named keys: list them, make one (its text is shown once), rotate, revoke. And who the caller is."""

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from yamchi.fields import Name, SpanText
from yamchi.http.access import TheCaller
from yamchi.http.audit import changes
from yamchi.http.paging import PageNumber, PageSize
from yamchi.http.problems import documented
from yamchi.http.scopes import ADMIN
from yamchi.web.routes.board import TheAccess
from yamchi.web.routes.queues import App

router = APIRouter(tags=["access"], responses=documented(401, 403, 404, 422, 503))
callers = APIRouter(tags=["access"], responses=documented(401, 403, 503))


class CallerOut(BaseModel):
    """Who asks."""

    name: str = Field(examples=["key shop"])
    scopes: list[str]
    may_change: bool = Field(description="Whether the board may do anything but look.")
    is_test: bool
    is_session: bool


class KeyIn(BaseModel):
    """A key to make."""

    model_config = ConfigDict(extra="forbid")

    name: Name = Field(max_length=100, examples=["shop"])
    scopes: list[Name] = Field(
        min_length=1,
        max_length=100,
        examples=[["send"]],
        description="send, send:<queue>, people:token, read, admin.",
    )
    test: bool = Field(default=False, description="What it sends stays in the mailbox.")
    expires_in: SpanText | None = Field(default=None, examples=["90d"])


class Rotation(BaseModel):
    """How long the old text still works."""

    model_config = ConfigDict(extra="forbid")

    grace: SpanText = Field(default=0, examples=["1h"])


class KeyRow(BaseModel):
    """A key, without what it says."""

    id: str
    name: str
    scopes: list[str]
    test: bool
    state: str = Field(examples=["in use"])
    created_by: str
    created_at: str
    expires_at: str | None
    last_used_at: str | None = Field(description="To the minute.")
    revoked_at: str | None


class NewKey(KeyRow):
    """A key with its text, which can't be seen again."""

    key: str = Field(examples=["yk_0123456789_…"])


@callers.get("/me", summary="Who the caller is, and what they may")
async def show_caller(caller: TheCaller) -> CallerOut:
    return CallerOut(
        name=caller.name,
        scopes=sorted(caller.scopes),
        may_change=caller.may(ADMIN),
        is_test=caller.is_test,
        is_session=caller.is_session,
    )


@router.get("/keys", summary="Keys that are and were in use, newest first")
async def list_keys(app: App, access: TheAccess, page: PageNumber = 1, size: PageSize = 50) -> list[KeyRow]:
    found = await access.keys.list(offset=(page - 1) * size, limit=size)
    return [KeyRow(**key.to_dict(app.clock.now())) for key in found]


@router.post("/keys", status_code=201, summary="Make a key; its text is in this answer and nowhere else")
async def create_key(app: App, access: TheAccess, caller: TheCaller, new: KeyIn) -> NewKey:
    key, text = await access.keys.create(
        new.name, new.scopes, by=caller.name, is_test=new.test, expires_in=new.expires_in
    )
    return NewKey(key=text, **key.to_dict(app.clock.now()))


@router.post("/keys/{name}/rotate", summary="Make a new text for a key; its sessions of the board end")
async def rotate_key(app: App, access: TheAccess, name: Name, how: Rotation | None = None) -> NewKey:
    key, text = await access.keys.rotate(name, grace=how.grace if how else 0)
    return NewKey(key=text, **key.to_dict(app.clock.now()))


@router.delete("/keys/{name}", status_code=204, summary="Let nobody use a key from now on")
async def revoke_key(request: Request, access: TheAccess, name: Name) -> None:
    changes(request, before=", ".join((await access.keys.revoke(name)).scopes))
