"""Leads over HTTP: Tilda's webhook, the list, one lead with its log, changes, and all of them as CSV."""

import csv
import hmac
import io
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import parse_qsl

import orjson
import structlog
from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, StreamingResponse

from yamchi.csvfiles import as_csv_text
from yamchi.errors import InvalidJob
from yamchi.fields import JsonObject, Locale, Name, Timezone
from yamchi.http.access import TheCaller, seen_by
from yamchi.http.cursors import next_cursor, read_place
from yamchi.http.paging import Cursor, Limit
from yamchi.http.problems import documented
from yamchi.leads.contacts import MOST_FIELDS
from yamchi.leads.listening import is_secret
from yamchi.leads.model import NAMES, Lead, UnknownLead
from yamchi.leads.plugin import FORM_LIMIT, Leads
from yamchi.notifications.routes.users import ErasedOut
from yamchi.plugins import Routes, of_request

log = structlog.get_logger("yamchi.leads")

router = APIRouter(tags=["leads"], responses=documented(401, 403, 404, 409, 422, 503))
webhooks = APIRouter(tags=["leads"], responses=documented(403, 404, 413, 422, 503))

TheLeads = Annotated[Leads, Depends(of_request(Leads))]
LeadId = Annotated[str, Path(max_length=64)]
Status = Annotated[
    str | None, Query(max_length=64, description="Only those of this status, for example NEW.")
]

COLUMNS = tuple(name for name in NAMES if name != "extra")


class LeadOut(BaseModel):
    """A lead. Moments are UTC."""

    id: str
    source: str = Field(examples=["tilda"])
    name: str | None
    email: str | None
    phone: str | None = Field(examples=["+77010000000"])
    tg_id: str | None
    locale: str | None
    timezone: str | None
    status: str = Field(examples=["NEW"])
    bot_activated: bool
    confirmed: bool
    email_1_sent: bool
    email_1_sent_at: str | None
    email_2_sent: bool
    lesson_datetime: str | None
    zoom_link: str | None
    zoom_meeting_id: str | None
    taken_by: str | None
    taken_at: str | None
    extra: dict[str, Any] = Field(description="Other fields of the form, and those that scenarios set.")
    created_at: str
    updated_at: str


class LeadsOut(BaseModel):
    items: list[LeadOut]
    next_cursor: str | None = Field(description="Give it as `cursor` to go on; null at the end.")


class LogLineOut(BaseModel):
    at: str
    text: str = Field(examples=["EMAIL_1_SENT"])
    data: dict[str, Any]


class LeadDetail(LeadOut):
    log: list[LogLineOut]


class LeadChange(BaseModel):
    """What to change; what is left out stays."""

    model_config = ConfigDict(extra="forbid")

    name: Name | None = None
    email: Annotated[str, Field(max_length=320)] | None = None
    phone: Annotated[str, Field(max_length=64)] | None = Field(default=None, examples=["8 701 000 00 00"])
    tg_id: Annotated[str, Field(max_length=32, pattern=r"^-?[0-9]+$", coerce_numbers_to_str=True)] | None = (
        None
    )
    locale: Locale | None = None
    timezone: Timezone | None = None
    status: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^\w+$")] = Field(default="NEW")
    bot_activated: bool = False
    confirmed: bool = False
    lesson_datetime: Annotated[str, Field(max_length=40)] | None = Field(
        default=None,
        examples=["2026-02-25T15:00:00+05:00"],
        description="With a zone, or on the clock of the lead. A new date is told as `lesson.booked` or `lesson.rescheduled`, null as `lesson.cancelled`.",
    )
    zoom_link: Annotated[str, Field(max_length=2_000, pattern=r"^https?://\S+$")] | None = None
    extra: JsonObject = Field(default_factory=dict, description="Fields to add or replace beside ours.")


@router.get("/leads", summary="Leads, newest first")
async def list_leads(
    leads: TheLeads,
    caller: TheCaller,
    status: Status = None,
    search: Annotated[
        str | None, Query(max_length=200, description="Text in the id, the name or a contact.")
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> LeadsOut:
    after = None if cursor is None else read_place(cursor)
    found = await leads.store.page(status=status, search=search, after=after, limit=limit)
    shown = await seen_by(caller, [lead.to_dict() for lead in found])
    return LeadsOut(items=[LeadOut(**one) for one in shown], next_cursor=next_cursor(found, limit))


@router.get("/leads/export.csv", summary="Every lead, as CSV", response_class=StreamingResponse)
async def export_leads(leads: TheLeads, status: Status = None) -> StreamingResponse:
    """For spreadsheets: UTF-8 with a mark, a lead a line, and nothing that could be taken for a formula."""
    headers = {"Content-Disposition": 'attachment; filename="leads.csv"'}
    return StreamingResponse(_csv(leads, status), media_type="text/csv; charset=utf-8", headers=headers)


@router.get("/leads/{lead_id}", summary="A lead and its log")
async def get_lead(leads: TheLeads, caller: TheCaller, lead_id: LeadId) -> LeadDetail:
    lead = await leads.store.get(lead_id)
    return LeadDetail(**await seen_by(caller, {**lead.to_dict(), "log": await leads.store.log(lead_id)}))


@router.get("/leads/{lead_id}/log", summary="What happened to a lead")
async def get_log(leads: TheLeads, caller: TheCaller, lead_id: LeadId) -> list[LogLineOut]:
    await leads.store.get(lead_id)
    return [LogLineOut(**line) for line in await seen_by(caller, await leads.store.log(lead_id))]


@router.patch("/leads/{lead_id}", summary="Change a lead")
async def change_lead(leads: TheLeads, lead_id: LeadId, change: LeadChange) -> LeadOut:
    fields = change.model_dump(exclude_unset=True, exclude={"extra"})
    ours = [name for name in change.extra if name in NAMES]
    if ours:
        raise InvalidJob(f"extra: {ours[0]} is a field of its own; give it beside extra.")
    return LeadOut(**(await leads.service.edit(lead_id, {**fields, **change.extra})).to_dict())


@router.delete("/leads/{lead_id:path}", summary="Erase a lead, and the person of its id")
async def erase_lead(leads: TheLeads, lead_id: LeadId) -> ErasedOut:
    """Its runs and its meeting end, its log and what its events said are deleted; of the person as with `DELETE /users/{id}`."""
    found = await leads.app.erase(lead_id)
    if not any(found.values()):
        raise UnknownLead(f"There is no lead {lead_id!r}.")
    return ErasedOut.model_validate(found)


@webhooks.post(
    "/tilda",
    summary="For Tilda: a form was filled in",
    response_class=PlainTextResponse,
    openapi_extra={
        "requestBody": {
            "content": {
                "application/x-www-form-urlencoded": {"schema": {"type": "object"}},
                "multipart/form-data": {"schema": {"type": "object"}},
                "application/json": {"schema": {"type": "object"}},
            }
        }
    },
)
async def receive_form(
    leads: TheLeads,
    request: Request,
    secret: Annotated[
        str | None, Query(max_length=500, description="TILDA_SECRET, unless it is elsewhere.")
    ] = None,
) -> PlainTextResponse:
    """`ok` once the lead is kept, and for Tilda's `test=test`. The same `tranid` again is the same lead."""
    form = await _form(request)
    given = [one for one in (secret, request.headers.get("secret"), _field(form, "secret")) if one]
    is_ping = _field(form, "test") == "test" and len(form) <= (2 if _field(form, "secret") else 1)
    if not (is_ping and not given):
        _check_secret(leads, given)
    if not is_ping:
        try:
            lead, is_new = await leads.service.submit(form)
            log.info(f"the lead {lead.id} {'came in' if is_new else 'came again'}")
        except UnknownLead:
            log.info("a form came again whose lead has been erased")
    return PlainTextResponse("ok")


@webhooks.post("/telegram", summary="For Telegram: somebody wrote to the bot, or pressed a button")
async def receive_update(leads: TheLeads, request: Request) -> dict[str, bool]:
    """200 once the update is kept; the same one again is the same. Shown the secret that Telegram was told."""
    expected = leads.settings.telegram_webhook_secret
    if leads.listener is None or expected is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, "There is no bot here: set TELEGRAM_BOT=webhook.")
    if not is_secret(request.headers.get("x-telegram-bot-api-secret-token"), expected.get_secret_value()):
        log.warning("an update came with a wrong secret, or none")
        raise HTTPException(HTTPStatus.FORBIDDEN, "The secret token is wrong or missing.")
    update = await _form(request)
    if not await leads.listener.take(update):
        raise InvalidJob("This is no update of Telegram: it has no update_id.")
    return {"ok": True}


async def _form(request: Request) -> Mapping[str, Any]:
    """The fields, whichever way they were sent."""
    body = await request.body()
    if len(body) > FORM_LIMIT:
        raise HTTPException(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"A form may have {FORM_LIMIT:,} bytes, and no files."
        )
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        try:
            found = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise InvalidJob(f"The form is not JSON: {error}.") from None
        if not isinstance(found, dict):
            raise InvalidJob("The form should be a JSON object: a field a key.")
        return found
    most = MOST_FIELDS + 2
    try:
        if kind == "multipart/form-data":
            return {**await request.form(max_files=0, max_fields=most)}
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=most))
    except (ValueError, HTTPException):
        raise InvalidJob(
            f"The form should be URL-encoded UTF-8, multipart without files, or JSON, with up to {MOST_FIELDS} fields."
        ) from None


def _field(form: Mapping[str, Any], name: str) -> str | None:
    return next((str(value) for key, value in form.items() if key.lower() == name), None)


def _check_secret(leads: Leads, given: list[str]) -> None:
    expected = leads.settings.tilda_secret
    if expected is None:
        raise HTTPException(
            HTTPStatus.FORBIDDEN,
            "Forms are not taken here: set TILDA_SECRET, and give it to Tilda as `secret` in the address.",
        )
    wanted = expected.get_secret_value().encode()
    if not any(hmac.compare_digest(one.encode("utf-8", "replace"), wanted) for one in given):
        log.warning("a form came with a wrong secret, or none")
        raise HTTPException(
            HTTPStatus.FORBIDDEN,
            "The secret is wrong or missing: give TILDA_SECRET as `secret` in the address, in a field or in a header.",
        )


async def _csv(leads: Leads, status: str | None) -> AsyncIterator[bytes]:
    yield "\ufeff".encode() + _lines([COLUMNS])
    async for batch in leads.store.batches(status=status):
        yield _lines(map(_row, batch))


def _row(lead: Lead) -> list[str]:
    shown = lead.to_dict()
    return [_cell(shown[name]) for name in COLUMNS]


def _lines(rows: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return as_csv_text(str(value).lower() if isinstance(value, bool) else str(value))


ROUTES = (Routes(router), Routes(webhooks, prefix="/api/webhooks", access="public"))
