"""The audit: who changed what, when, from where."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from yamchi.clock import isoformat, to_moment
from yamchi.http.paging import Limit
from yamchi.http.problems import documented
from yamchi.web.routes.board import TheAccess

router = APIRouter(tags=["access"], responses=documented(401, 403, 422, 503))

Part = Annotated[str | None, Query(max_length=200, description="Any part of it.")]


class AuditRow(BaseModel):
    """One change."""

    id: int
    moment: str
    who: str = Field(examples=["key shop"])
    address: str | None = Field(description="Where it came from.")
    action: str = Field(examples=["POST /api/queues/{queue}/pause"])
    target: str | None = Field(examples=["/api/queues/hello/pause"])
    before: str | None = Field(description="In short, without secrets.")
    after: str | None
    outcome: str | None = Field(description="The status of the answer; null if the process ended before it.")

    @classmethod
    def of(cls, row: dict[str, Any]) -> "AuditRow":
        kept = {
            name: row[name] for name in ("who", "address", "action", "target", "before", "after", "outcome")
        }
        return cls(id=row["entry_id"], moment=isoformat(row["moment"]), **kept)


class AuditOut(BaseModel):
    items: list[AuditRow]
    next_cursor: str | None = Field(description="Give it as `cursor` to go on; null at the end.")


@router.get("/audit", summary="Changes, newest first")
async def list_changes(
    access: TheAccess,
    who: Annotated[str | None, Query(max_length=200, examples=["key shop"])] = None,
    action: Part = None,
    target: Part = None,
    since: datetime | None = None,
    until: datetime | None = None,
    cursor: Annotated[
        int | None, Query(ge=1, le=2**62, description="`next_cursor` of the page before.")
    ] = None,
    limit: Limit = 50,
) -> AuditOut:
    rows = await access.audit.page(
        who=who,
        action=action,
        target=target,
        since=None if since is None else to_moment(since),
        until=None if until is None else to_moment(until),
        below=cursor,
        limit=limit,
    )
    more = str(rows[-1]["entry_id"]) if len(rows) == limit else None
    return AuditOut(items=[AuditRow.of(row) for row in rows], next_cursor=more)
