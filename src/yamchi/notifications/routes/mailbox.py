"""The mailbox: e-mails that are shown on the board because no mail server is set. Their content is shown without scripts."""

from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from yamchi.clock import isoformat
from yamchi.errors import UnknownJob
from yamchi.http.pages import board_page
from yamchi.http.paging import PageNumber, PageSize
from yamchi.http.problems import documented
from yamchi.notifications.plugin import Notifications
from yamchi.notifications.routes.dependencies import TheNotifications

router = APIRouter(tags=["mailbox"], responses=documented(401, 403, 404, 422, 503))
pages = APIRouter(include_in_schema=False)

PAGE = Path(__file__).parents[1] / "static" / "mailbox.html"
LETTER = "/mailbox/{message_id:path}"
HARMLESS = {
    "content-security-policy": "sandbox; default-src 'none'; img-src data: https:; style-src 'unsafe-inline'",
    "x-frame-options": "SAMEORIGIN",
}
"""No scripts, no forms, no requests but for pictures: the letter is looked at, not run."""


@pages.get("/mailbox")
async def mailbox_page(request: Request) -> Response:
    return board_page(request, PAGE)


@router.get("/mailbox", summary="Letters, newest first")
async def list_letters(
    notifications: TheNotifications, page: PageNumber = 1, size: PageSize = 50
) -> list[dict[str, Any]]:
    rows = await notifications.mailbox.list(offset=(page - 1) * size, limit=size)
    return [{**row, "received_at": isoformat(int(str(row["received_at"])))} for row in rows]


@router.get(f"{LETTER}/html", response_class=HTMLResponse, summary="A letter as its reader sees it")
async def show_html(notifications: TheNotifications, message_id: str) -> Response:
    letter = await _letter(notifications, message_id)
    part = letter.get_body(("html", "plain"))
    content = part.get_content() if part else ""
    kind = part.get_content_type() if part else "text/plain"
    return Response(content, headers=HARMLESS, media_type=f"{kind}; charset=utf-8")


@router.get(LETTER, summary="A letter: headers, text and attachments")
async def show_letter(notifications: TheNotifications, message_id: str) -> dict[str, Any]:
    letter = await _letter(notifications, message_id)
    text = letter.get_body(("plain",))
    return {
        "headers": [[name, str(value)] for name, value in letter.items()],
        "text": text.get_content() if text else "",
        "attachments": [part.get_filename() for part in letter.iter_attachments()],
    }


async def _letter(notifications: Notifications, message_id: str) -> EmailMessage:
    raw = await notifications.mailbox.get(message_id)
    if raw is None:
        raise UnknownJob(f"The mailbox has no letter {message_id}.")
    return message_from_bytes(raw, policy=policy.default)
