"""The feature of reports: what an application gets as `app.reports`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ValidationError

from yamchi.clock import to_millis
from yamchi.errors import ConfigurationError, InvalidJob, Unrecoverable, YamchiError
from yamchi.notifications.channels.base import Attachment
from yamchi.notifications.plugin import Notifications
from yamchi.notifications.sending.attachments import TooLarge
from yamchi.plugins import Application, BoardPage, Check, Plugin, ask
from yamchi.queues.handlers import Handler, describe
from yamchi.reports.kinds import Content, Format, Kinds, Make, NoParams, ReportKind
from yamchi.reports.schedules import ScheduledReport, read_schedules
from yamchi.reports.service import GENERATE, Notify, ReportService, ReportTask
from yamchi.reports.settings import ReportSettings
from yamchi.reports.shipped import add_shipped
from yamchi.reports.store import NoFile, Report, ReportStore, UnknownReport
from yamchi.storage.bucket import Bucket

QUEUE = "report_queue"
F = TypeVar("F", bound=Make)


class Reports(Plugin):
    """Data becomes a file that somebody is told of."""

    name = "reports"
    summary = "PDF, XLSX and CSV from your data: on request or by the clock, stored, linked, mailed."
    requires = ("notifications",)
    settings_class = ReportSettings
    migrations = Path(__file__).parent / "migrations"
    demo = "yamchi.reports.demo:play"
    routes = "yamchi.reports.routes:ROUTES"
    commands: ClassVar = {"report": "yamchi.reports.commands:group"}
    extras: ClassVar = {"reports": "typst"}

    def __init__(self, app: Application) -> None:
        super().__init__(app)
        self.declare()
        self.settings: ReportSettings
        self.queue = app.queue(QUEUE)
        self.kinds = Kinds()
        name = self.settings.report_bucket
        self.bucket = Bucket(name, self.settings) if name else None
        self.store = ReportStore(app.database, app.settings.var / "reports", self.bucket, app.clock)
        notifications = app.plugin(Notifications)
        self.service = ReportService(
            self.kinds,
            self.store,
            app.links,
            self.settings.report_link_lifetime,
            self.queue,
            notifications,
            app.clock,
        )
        add_shipped(self.kinds, app.database, app.clock)
        notifications.attachments.register("report", self._attach)

    # ── For your code ─────────────────────────────────────────────────────────────────────────────────────────────

    def kind(
        self,
        name: str,
        *,
        params: type[BaseModel] = NoParams,
        template: str | Path | None = None,
        summary: str = "",
    ) -> Callable[[F], F]:
        """Declare the function below as a kind of report. It gets checked params and gives a `Content`.

        `template` is a typst file; without one the rows are shown as a table.
        """

        def declare(function: F) -> F:
            place = None if template is None else Path(template).resolve()
            if place and not place.is_file():
                raise ConfigurationError(f"The report {name} has no template: there is no file {place}.")
            self.kinds.add(
                ReportKind(name, function, params, place, summary or (function.__doc__ or "").strip())
            )
            return function

        return declare

    async def request(
        self,
        kind: str,
        params: Mapping[str, Any] | None = None,
        *,
        format: Format = "pdf",
        notify: Sequence[Notify | Mapping[str, Any]] = (),
        id: str | None = None,
    ) -> Report:
        """Have a report made; `id` makes a second call the same report."""
        asked = {"kind": kind, "params": dict(params or {}), "format": format, "notify": notify}
        try:
            task = ReportTask.model_validate(asked)
        except ValidationError as error:
            raise InvalidJob(f"The report can't be asked for: {describe(error)}.") from error
        return await self.service.request(task, job_id=id)

    async def preview(self, kind: str, params: Mapping[str, Any] | None = None) -> Content:
        return await self.service.preview(kind, params or {})

    async def get(self, report_id: str) -> Report:
        return await self.store.get(report_id)

    async def url_of(self, report: Report) -> str | None:
        return await self.service.url_of(report)

    # ── For the rest of Yamchi ────────────────────────────────────────────────────────────────────────────────────

    def declare(self) -> None:
        self.app.define(QUEUE, concurrency=2, attempts=3, backoff={"type": "exponential", "delay": 1})

    def serve(self) -> None:
        handlers = self.queue.definition.handlers
        handlers.setdefault(GENERATE, Handler(GENERATE, self.service.generate))
        self.queue.listeners.on("failed", self.service.note_failure)  # this process's own failures
        self.app.cron("45 3 * * *", name="reports-prune")(self.prune)
        for number, line in enumerate(self._schedules()):
            name = f"report-{line.kind}-{number}"
            self.app.cron(line.cron, zone=line.zone, name=name)(self._scheduled(line))

    def _schedules(self) -> list[ScheduledReport]:
        return read_schedules(self.app.settings.home / "reports.yaml")

    def _scheduled(self, line: ScheduledReport) -> Callable[[Any], Any]:
        """The cron job of a line: it asks for the report under its own id, so that a repeat asks for the same one."""

        async def make(job: Any) -> dict[str, str]:
            task = ReportTask.model_validate(line.model_dump(include={"kind", "params", "format", "notify"}))
            report = await self.service.request(task, job_id=f"scheduled-{job.id}")
            return {"reportId": report.id}

        return make

    async def prune(self) -> dict[str, int]:
        """Remove reports that were kept long enough."""
        before = self.app.clock.now() - to_millis(self.settings.report_keep)
        return {"removed": await self.store.prune(before)}

    def static(self) -> dict[str, Path]:
        return {"/reports-board": Path(__file__).parent / "static" / "board"}

    def pages(self) -> Iterable[BoardPage]:
        yield BoardPage("Reports", "/reports", "/reports-board/reports.js")

    async def checks(self) -> Iterable[Check]:
        try:
            lines = self._schedules()
        except YamchiError as error:
            return [Check("reports", False, str(error))]
        by_clock = f", {len(lines)} by the clock" if lines else ""
        where = f"kept in {self.settings.report_bucket}" if self.bucket else "kept here"
        return [Check("reports", True, f"{len(self.kinds.all())} kinds{by_clock}; {where}")]

    async def probes(self) -> Iterable[Check]:
        return await ask("s3 of reports", self.bucket.ping) if self.bucket else []

    async def erase(self, user_id: str) -> Mapping[str, int]:
        """A report that this person alone was told of goes; one that others have, too, is theirs."""
        return {"reports": await self.service.erase(user_id)}

    async def _attach(self, report_id: str, most: int) -> Attachment:
        try:
            report = await self.store.get(report_id)
        except UnknownReport as error:
            raise Unrecoverable(str(error)) from error
        if report.status != "ready" or report.size is None:
            raise Unrecoverable(f"Report {report_id} is not ready, so it can't be attached.")
        if report.size > most:
            raise TooLarge(
                f"{report.filename} has {report.size} bytes and {most} may be attached: send its link instead."
            )
        try:
            content = await self.store.read(report)
        except NoFile as error:
            raise Unrecoverable(str(error)) from error
        return Attachment(report.filename, content, report.type)
