"""Reports over HTTP: ask for one, look, download; and the link in a letter, which opens one without a sign-in."""

from http import HTTPStatus
from pathlib import Path as File
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response, StreamingResponse

from yamchi.errors import TokenRefused
from yamchi.http.access import TheCaller, seen_by
from yamchi.http.cursors import next_cursor
from yamchi.http.paging import Before, Limit, read_before
from yamchi.http.problems import documented
from yamchi.plugins import Routes, of_request
from yamchi.reports.plugin import Reports
from yamchi.reports.service import LINK, ReportTask
from yamchi.reports.store import Report

PROBLEMS = documented(401, 403, 404, 409, 422, 503)
router = APIRouter(tags=["reports"], responses=PROBLEMS)
links = APIRouter(tags=["reports"], responses=documented(404, 410))

TheReports = Annotated[Reports, Depends(of_request(Reports))]
ReportId = Annotated[str, Path(max_length=64)]


class ReportIn(ReportTask):
    """A report to make."""


class ReportAccepted(BaseModel):
    """Where it will be."""

    id: str
    jobId: str  # noqa: N815 - as jobs are named everywhere in the API


class ReportOut(BaseModel):
    id: str
    jobId: str  # noqa: N815
    kind: str
    params: dict[str, Any] | None = Field(description="In a list, null if they are long.")
    format: str
    status: str = Field(examples=["ready"], description="queued, ready or failed")
    title: str | None
    size: int | None
    error: str | None
    url: str | None = Field(default=None, description="A link that opens it without a sign-in, for a while.")
    created_at: str
    ready_at: str | None


class ReportsOut(BaseModel):
    items: list[ReportOut]
    next_before: str | None = Field(description="Give it as `before` to go on; null at the end.")


class KindOut(BaseModel):
    """A kind of report, with the JSON Schema of its params."""

    name: str
    summary: str
    params: dict[str, Any]


@router.post("/reports", status_code=202, summary="Have a report made")
async def request_report(reports: TheReports, new: ReportIn) -> ReportAccepted:
    task = ReportTask(kind=new.kind, params=new.params, format=new.format, notify=new.notify)
    report = await reports.service.request(task)
    return ReportAccepted(id=report.id, jobId=report.job_id)


@router.get("/reports/kinds", summary="What can be made, and what each asks for")
async def list_kinds(reports: TheReports) -> list[KindOut]:
    return [
        KindOut(name=kind.name, summary=kind.summary, params=kind.params.model_json_schema())
        for kind in reports.kinds.all()
    ]


@router.get("/reports", summary="Reports, newest first")
async def list_reports(
    reports: TheReports,
    caller: TheCaller,
    kind: Annotated[str | None, Query(max_length=64)] = None,
    before: Before = None,
    limit: Limit = 50,
) -> ReportsOut:
    found = await reports.store.page(kind, read_before(before), limit)
    items = [ReportOut(**one) for one in await seen_by(caller, [one.to_dict() for one in found])]
    return ReportsOut(items=items, next_before=next_cursor(found, limit))


@router.get("/reports/{report_id}", summary="A report, and its link once it is ready")
async def get_report(reports: TheReports, caller: TheCaller, report_id: ReportId) -> ReportOut:
    report = await reports.get(report_id)
    url = await reports.url_of(report) if report.status == "ready" else None
    return ReportOut(**await seen_by(caller, report.to_dict()), url=url)


@router.get("/reports/{report_id}/file", response_class=FileResponse, summary="The file")
async def download_report(reports: TheReports, report_id: ReportId) -> Response:
    return await _file(reports, await reports.get(report_id))


@router.delete(
    "/reports/{report_id}",
    status_code=204,
    summary="Delete a report and its file; one that is not made yet is not made",
)
async def delete_report(reports: TheReports, report_id: ReportId) -> None:
    await reports.service.remove(await reports.get(report_id))


@links.get("/reports/{token}", response_class=FileResponse, summary="The link in a letter")
async def open_link(reports: TheReports, token: Annotated[str, Path(max_length=1_000)]) -> Response:
    try:
        report_id = await reports.app.links.read(LINK, token)
    except TokenRefused as error:
        raise HTTPException(HTTPStatus.GONE, str(error)) from None
    return await _file(reports, await reports.get(report_id))


async def _file(reports: Reports, report: Report) -> Response:
    headers = {"x-content-type-options": "nosniff", "cache-control": "private, no-store"}
    found = await reports.store.open(report)
    if isinstance(found, File):
        return FileResponse(found, media_type=report.type, filename=report.filename, headers=headers)
    headers["content-disposition"] = f"attachment; filename*=utf-8''{quote(report.filename)}"
    return StreamingResponse(found, media_type=report.type, headers=headers)


# A report tells of people, and goes to whom its request says: only admins may ask for one.
ROUTES = (
    Routes(router),
    Routes(links, prefix="", access="public"),
)
