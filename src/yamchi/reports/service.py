"""From a request for a report to a file that somebody was told of. Every step may be repeated."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog
from pydantic import BaseModel, ConfigDict, Field, model_validator

from yamchi.clock import Clock, as_datetime, isoformat
from yamchi.faultpoints import fault_point
from yamchi.fields import Email
from yamchi.http.links import Links
from yamchi.notifications.plugin import Notifications
from yamchi.notifications.schemas.notification_job import Meta, NotificationJob, derived_id
from yamchi.observe.logging import mask
from yamchi.queues.job import Job
from yamchi.queues.queue import New, Queue
from yamchi.reports.kinds import Content, Format, Kinds
from yamchi.reports.rendering import write
from yamchi.reports.store import Report, ReportStore

log = structlog.get_logger("yamchi.reports")

GENERATE = "generate"
TEMPLATE = "report_ready"
LINK = "report"


class Notify(BaseModel):
    """Who is told that a report is ready: a user, or whoever is at an address."""

    model_config = ConfigDict(extra="forbid")

    user_id: UUID | None = None
    email: Email | None = None
    telegram: str | None = Field(default=None, max_length=64)
    channel: str = Field(default="email", max_length=32)
    locale: str = Field(default="ru", max_length=16)
    attach: bool = Field(
        default=True, description="Attach the file if it is small enough; the link comes anyway."
    )

    @model_validator(mode="after")
    def _names_somebody(self) -> "Notify":
        if not (self.user_id or self.email or self.telegram):
            raise ValueError("name somebody: user_id, email or telegram")
        return self


class ReportTask(BaseModel):
    """What `report_queue` carries: `{kind, params?, format?, notify?}`."""

    model_config = ConfigDict(extra="ignore")

    kind: str = Field(min_length=1, max_length=64)
    params: dict[str, Any] = Field(default_factory=dict)
    format: Format = "pdf"
    notify: list[Notify] = Field(default_factory=list, max_length=100)

    @property
    def user_id(self) -> str | None:
        """Who alone is told of it: a report for one person is that person's."""
        people = {person.user_id for person in self.notify}
        (only,) = people if len(people) == 1 else (None,)
        return None if only is None else str(only)


class ReportService:
    """Asks for reports, makes them, tells of them."""

    def __init__(
        self,
        kinds: Kinds,
        store: ReportStore,
        links: Links,
        link_lifetime: timedelta,
        queue: Queue,
        notifications: Notifications,
        clock: Clock,
    ) -> None:
        self._kinds = kinds
        self._store = store
        self._links = links
        self._link_lifetime = link_lifetime
        self._queue = queue
        self._notifications = notifications
        self._clock = clock

    async def request(self, task: ReportTask, *, job_id: str | None = None) -> Report:
        """Queue a report; params that do not fit are refused here."""
        self._kinds.get(task.kind).check(task.params)
        job = await self._queue.add(task, name=GENERATE, id=job_id)
        return await self._store.add(job.id, task.kind, task.params, task.format, task.user_id)

    async def generate(self, job: Job[ReportTask]) -> dict[str, Any]:
        """Make the report and tell those who are to know. A file that is there is not made again."""
        task = job.data
        report = await self._store.add(job.id, task.kind, task.params, task.format, task.user_id)
        if report.status != "ready":
            report = await self._make(job, report)
        fault_point("report.ready")
        await self._notify(report, task.notify)
        await job.progress(100)
        return {"reportId": report.id, "size": report.size, "url": await self.url_of(report)}

    async def _make(self, job: Job[ReportTask], report: Report) -> Report:
        try:
            kind = self._kinds.get(report.kind)
            content = await kind.make(kind.check(report.params or {}))
            await job.progress(30)

            async def report_progress(share: float) -> None:
                await job.progress(30 + round(60 * share))

            made_at = as_datetime(report.created_at)
            size = await self._store.make(
                report,
                lambda file: write(file, content, report.format, kind.template, made_at, report_progress),
            )
        except Exception as error:  # of any kind: the function is the user's
            await self._store.failed(report, str(mask(str(error) or type(error).__name__)))
            raise
        fault_point("report.written")
        return await self._store.ready(report, content.title, content.period, size)

    async def preview(self, kind: str, params: Mapping[str, Any]) -> Content:
        """What a report would say, without keeping it."""
        found = self._kinds.get(kind)
        return await found.make(found.check(params))

    async def url_of(self, report: Report) -> str | None:
        """A link that opens the report without a sign-in, for a while; None where nobody could follow one."""
        base = self._notifications.public_url
        if base is None:
            return None
        return f"{base}/reports/{await self._links.make(LINK, report.id, ttl=self._link_lifetime)}"

    async def _notify(self, report: Report, people: list[Notify]) -> None:
        if not people:
            return
        data = {
            "report_name": report.title,
            **({"period": report.period} if report.period else {}),
            "created_at": isoformat(report.ready_at or report.created_at),
        }
        if url := await self.url_of(report):
            data["report_url"] = url
        attachment = f"report:{report.id}"
        fits = (report.size or 0) <= self._notifications.attachments.largest
        for place, person in enumerate(people):
            files = [attachment] if fits and (person.attach or not url) else []
            await self._notify_person(person, report, data, files, place)

    async def _notify_person(
        self, person: Notify, report: Report, data: dict[str, Any], files: list[str], place: int
    ) -> None:
        if person.user_id is not None:
            job = NotificationJob(
                job_id=derived_id("report", report.id, str(place)),
                user_id=person.user_id,
                channel=person.channel,
                template_code=TEMPLATE,
                locale=person.locale,
                data=data,
                meta=Meta(event_type=TEMPLATE, event_id=report.id),
                created_at=as_datetime(self._clock.now()),
                attachments=files,
            )
            await self._notifications.service.send([job])
            return
        channel, address = ("telegram", person.telegram) if person.telegram else ("email", person.email)
        options = {
            "to": address,
            "template": TEMPLATE,
            "locale": person.locale,
            "data": data,
            "attachments": files,
        }
        message = New(
            {"channel": channel, "options": options},
            name="send",
            id=str(derived_id("report", report.id, str(place))),
        )
        await self._notifications.queue.add_many([message])
