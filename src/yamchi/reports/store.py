"""Reports that were asked for: a row each, and a file once it is made.

A file is written under another name and renamed, so that there is all of it or nothing. With a bucket, it then goes there
and is deleted here; a report that was made before there was a bucket stays where it is.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, Text, and_, case, cast, delete, func, null, select, update

from yamchi.clock import Clock, Millis, isoformat, isoformat_or_none
from yamchi.errors import UnknownJob, WrongState
from yamchi.http.cursors import Place, is_older
from yamchi.reports.kinds import FORMATS, Format
from yamchi.reports.tables import reports
from yamchi.storage.bucket import Bucket, NotInBucket
from yamchi.storage.database import Database
from yamchi.storage.folders import replace_safely
from yamchi.storage.upsert import insert_new

UNFINISHED_SUFFIX = ".part"
LONGEST_LISTED = 4_000
"""Characters of params that a list shows; the report itself shows all of them."""


class UnknownReport(UnknownJob):
    """There is no such report, or it is no longer kept."""


@dataclass(frozen=True, slots=True)
class Report:
    """A row of `reports`."""

    id: str
    job_id: str
    kind: str
    params: dict[str, Any] | None
    """None where a list leaves them out."""
    format: Format
    status: str
    title: str | None
    period: str | None
    size: int | None
    error: str | None
    created_at: Millis
    ready_at: Millis | None
    user_id: str | None
    """Who alone is told of it."""

    @classmethod
    def of(cls, row: Row[Any]) -> "Report":
        return cls(**{name: getattr(row, name) for name in cls.__slots__})

    @property
    def type(self) -> str:
        return FORMATS[self.format]

    @property
    def filename(self) -> str:
        """What it is saved as: letters of any language, nothing that a file system minds."""
        name = "".join(
            letter if letter.isalnum() or letter in " -–" else " " for letter in self.title or self.kind
        )
        return f"{' '.join(name.split())[:80] or 'report'}.{self.format}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "jobId": self.job_id,
            "kind": self.kind,
            "params": self.params,
            "format": self.format,
            "status": self.status,
            "title": self.title,
            "size": self.size,
            "error": self.error,
            "created_at": isoformat(self.created_at),
            "ready_at": isoformat_or_none(self.ready_at),
        }


class NoFile(WrongState):
    """The report has no file: it is not ready, has failed, or its file is gone."""


class ReportStore:
    """Rows in the database, files in `var/reports` or in a bucket."""

    def __init__(self, database: Database, folder: Path, bucket: Bucket | None, clock: Clock) -> None:
        self._database = database
        self._folder = folder
        self._bucket = bucket
        self._clock = clock

    async def add(
        self, job_id: str, kind: str, params: dict[str, Any], form: Format, user_id: str | None
    ) -> Report:
        """A row for this job; the one that is there, if the job has come before."""
        row = {
            "id": secrets.token_urlsafe(18),
            "job_id": job_id,
            "kind": kind,
            "params": params,
            "format": form,
            "status": "queued",
            "created_at": self._clock.now(),
            "user_id": user_id,
        }
        await self._database.write(lambda c: insert_new(c, reports, [row]))
        query = select(reports).where(reports.c.job_id == job_id)
        return Report.of(await self._database.read(lambda c: c.execute(query).one()))

    async def get(self, report_id: str) -> Report:
        query = select(reports).where(reports.c.id == report_id)
        row = await self._database.first(query)
        if row is None:
            raise UnknownReport(f"There is no report {report_id!r}, or it is no longer kept.")
        return Report.of(row)

    async def page(self, kind: str | None, before: Place | None, limit: int) -> list[Report]:
        """The newest first, after this place in the list. Params that are too long for a list are None."""
        others = (column for column in reports.c if column.name != "params")
        is_short = func.length(cast(reports.c.params, Text)) <= LONGEST_LISTED
        listed = case((is_short, reports.c.params), else_=null()).label("params")
        query: Select[Any] = select(*others, listed).limit(limit)
        query = query.order_by(reports.c.created_at.desc(), reports.c.id.desc())
        if kind:
            query = query.where(reports.c.kind == kind)
        if before is not None:
            query = query.where(is_older(reports.c.created_at, reports.c.id, before))
        rows = await self._database.rows(query)
        return [Report.of(row) for row in rows]

    def file_of(self, report: Report) -> Path:
        return self._folder / f"{report.id}.{report.format}"

    async def make(self, report: Report, write: Callable[[Path], Awaitable[None]]) -> int:
        """Let somebody write the file; how large it became."""
        target = self.file_of(report)
        unfinished = target.with_name(f"{target.name}.{secrets.token_hex(4)}{UNFINISHED_SUFFIX}")
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            await write(unfinished)
            size = await asyncio.to_thread(_finish, unfinished, target)
        finally:
            unfinished.unlink(missing_ok=True)
        if self._bucket:
            await self._bucket.put(_key(report), target, report.type)
            target.unlink(missing_ok=True)
        return size

    async def open(self, report: Report) -> Path | AsyncIterator[bytes]:
        """The file: where it is on this machine, or part by part as it comes from the bucket."""
        place = self.file_of(report)
        if report.status == "ready" and place.is_file():
            return place
        if report.status == "ready" and self._bucket:
            try:
                return await self._bucket.open(_key(report))
            except NotInBucket as error:
                raise NoFile(f"Report {report.id} has no file: {error}") from error
        if report.status == "ready":
            raise NoFile(
                f"The file of report {report.id} is not on this machine: set REPORT_BUCKET, so that all of them have it."
            )
        raise NoFile(f"Report {report.id} has no file: {report.error or 'it is not ready yet'}.")

    async def read(self, report: Report) -> bytes:
        """All of the file."""
        found = await self.open(report)
        if isinstance(found, Path):
            return await asyncio.to_thread(found.read_bytes)
        return b"".join([part async for part in found])

    async def ready(self, report: Report, title: str, period: str | None, size: int) -> Report:
        now = self._clock.now()
        fields = {"status": "ready", "title": title, "period": period, "size": size, "error": None}
        await self._change(report.id, **fields, ready_at=now)
        return await self.get(report.id)

    async def failed(self, report: Report, error: str) -> None:
        await self._change(report.id, status="failed", error=error)

    async def job_failed(self, job_id: str, error: str) -> None:
        """The job of a report is over; a report that is ready by then is ready all the same."""
        unmade = and_(reports.c.job_id == job_id, reports.c.status != "ready")
        change = update(reports).where(unmade).values(status="failed", error=error)
        await self._database.execute(change)

    async def remove(self, report: Report) -> None:
        """The file first: a row without a file is looked at again, a file without a row never."""
        self.file_of(report).unlink(missing_ok=True)
        if self._bucket:
            await self._bucket.delete([_key(report)])
        gone = delete(reports).where(reports.c.id == report.id)
        await self._database.execute(gone)

    async def prune(self, before: Millis) -> int:
        """Remove what is older; how many there were."""
        await asyncio.to_thread(_remove_leftovers, self._folder, before)
        count = 0
        while found := await self._some(reports.c.created_at < before):
            for report in found:
                await self.remove(report)
            count += len(found)
        return count

    async def of_user(self, user_id: str) -> list[Report]:
        """What was asked for for this person alone, or as much of it as fits into a page."""
        return await self._some(reports.c.user_id == user_id)

    async def _some(self, matching: ColumnElement[bool]) -> list[Report]:
        query = select(reports).where(matching).limit(500)
        return [Report.of(row) for row in await self._database.rows(query)]

    async def _change(self, report_id: str, **values: Any) -> None:
        change = update(reports).where(reports.c.id == report_id).values(**values)
        await self._database.execute(change)


def _key(report: Report) -> str:
    return f"reports/{report.id}.{report.format}"


def _remove_leftovers(folder: Path, before: Millis) -> None:
    """Files that a killed process left half-written: nothing that is kept is this old."""
    for file in folder.iterdir() if folder.is_dir() else ():
        if file.is_file() and file.stat().st_mtime * 1000 < before:
            file.unlink(missing_ok=True)


def _finish(unfinished: Path, target: Path) -> int:
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    replace_safely(unfinished, target)
    return target.stat().st_size
