"""From a request for a report to a file that somebody was told of. Every step may be repeated."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

import structlog
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from yamchi.clock import Clock, as_datetime, isoformat
from yamchi.errors import Cancelled, UnknownJob, WrongState, YamchiError
from yamchi.faultpoints import fault_point
from yamchi.fields import Email, Locale, few
from yamchi.http.links import Links
from yamchi.notifications.plugin import Notifications
from yamchi.notifications.schemas.notification_job import Channel, Meta, NotificationJob, derived_id
from yamchi.observe.logging import mask
from yamchi.queues.job import Job
from yamchi.queues.queue import Queue
from yamchi.reports.kinds import Content, Format, Kinds
from yamchi.reports.rendering import write
from yamchi.reports.store import Report, ReportStore, UnknownReport

log = structlog.get_logger("yamchi.reports")

GENERATE = "generate"
TEMPLATE = "report_ready"
LINK = "report"
LOCALE = "ru"


class Notify(BaseModel):
    """Who is told that a report is ready: a user, or whoever is at an address."""

    model_config = ConfigDict(extra="forbid")

    user_id: UUID | None = None
    email: Email | None = None
    telegram: str | None = Field(default=None, max_length=64)
    channel: Channel = "email"
    locale: Locale | None = Field(
        default=None, description="By default a user's own language, and Russian for an address."
    )
    attach: bool = Field(
        default=True, description="Attach the file if it is small enough; the link comes anyway."
    )

    @model_validator(mode="before")
    @classmethod
    def _read_address(cls, value: Any) -> Any:
        """An address by itself is one of e-mail."""
        return {"email": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _names_somebody(self) -> "Notify":
        named = sum(bool(one) for one in (self.user_id, self.email, self.telegram))
        if named == 0:
            raise ValueError("name somebody: user_id, email or telegram")
        if named > 1:
            raise ValueError("name one of user_id, email and telegram: several people are a list")
        return self


def _several(value: Any) -> Any:
    return [value] if isinstance(value, Notify | Mapping | str) else value


Told = Annotated[
    list[Notify],
    Field(max_length=100),
    BeforeValidator(_several, json_schema_input_type=list[Notify | str] | Notify | str),
    few(100),
]
"""Everybody who is told of one report."""


class ReportTask(BaseModel):
    """What `report_queue` carries: `{kind, params?, format?, notify?}`."""

    model_config = ConfigDict(extra="ignore")

    kind: str = Field(min_length=1, max_length=64)
    params: dict[str, Any] = Field(default_factory=dict)
    format: Format = "pdf"
    notify: Told = Field(default_factory=list, description="Who is told when it is ready: one, or several.")

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
        return await self._row(job.id, ReportTask.model_validate(task.model_dump(mode="json")))

    async def generate(self, job: Job[ReportTask]) -> dict[str, Any]:
        """Make the report and tell those who are to know. A file that is there is not made again, unless the job was changed."""
        task = job.data
        report = await self._row(job.id, task)
        if not _is_of(report, task):
            await self._store.remove(report)
            report = await self._row(job.id, task)
        if report.status != "ready":
            report = await self._make(job, report)
        fault_point("report.ready")
        await self._notify(report, task.notify)
        await job.progress(100)
        return {"reportId": report.id, "size": report.size, "url": await self.url_of(report)}

    async def _row(self, job_id: str, task: ReportTask) -> Report:
        return await self._store.add(job_id, task.kind, task.params, task.format, task.user_id)

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
        try:
            return await self._store.ready(report, content.title, content.period, size)
        except UnknownReport as error:
            await self._store.remove(report)
            raise Cancelled(f"Report {report.id} was deleted while it was made.") from error

    async def note_failure(self, job: Job[Any], error: str) -> None:
        """A job that ended without its handler's last word, such as one that took too long or killed its workers."""
        await self._store.job_failed(job.id, str(mask(error)))

    async def remove(self, report: Report) -> None:
        """Delete a report and its file; one that is not made yet is not made, and nobody is told of it."""
        with suppress(UnknownJob, WrongState):  # it is over
            await self._queue.cancel(report.job_id)
        await self._store.remove(report)

    async def erase(self, user_id: str) -> int:
        """Remove what was asked for for this person alone; how many there were."""
        count = 0
        while found := await self._store.of_user(user_id):
            for report in found:
                await self.remove(report)
            count += len(found)
        return count

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
        """Tell everybody; who can't be told keeps nobody else waiting, and is the job's failure at the end."""
        failure: YamchiError | None = None
        url = await self.url_of(report) if people else None
        for place, person in enumerate(people):
            try:
                await self._notify_person(person, report, url, place)
            except YamchiError as error:
                log.warning(
                    f"the message about report {report.id} could not be queued for somebody",
                    place=place,
                    error=str(error),
                )
                failure = failure or error
        if failure is not None:
            raise failure

    async def _notify_person(self, person: Notify, report: Report, url: str | None, place: int) -> None:
        fits = (report.size or 0) <= self._notifications.attachments.largest
        files = [f"report:{report.id}"] if fits and (person.attach or not url) else []
        data = {
            "report_name": report.title,
            "created_at": isoformat(report.ready_at or report.created_at),
            "is_attached": bool(files),
            **({"period": report.period} if report.period else {}),
            **({"report_url": url} if url else {}),
        }
        # Of the person too: whoever is named in a corrected job is another than was told before.
        job_id = derived_id("report", report.id, str(place), person.model_dump_json())
        if person.user_id is not None:
            await self._notify_user(person, person.user_id, report, data, files, job_id)
            return
        channel, address = ("telegram", person.telegram) if person.telegram else ("email", person.email)
        options = {
            "to": address,
            "template": TEMPLATE,
            "locale": person.locale or LOCALE,
            "data": data,
            "attachments": files,
        }
        message = {"channel": channel, "options": options}
        await self._notifications.service.send_direct(message, str(job_id))

    async def _notify_user(
        self,
        person: Notify,
        user_id: UUID,
        report: Report,
        data: dict[str, Any],
        files: list[str],
        job_id: UUID,
    ) -> None:
        known = await self._notifications.recipients.get(str(user_id))
        job = NotificationJob(
            job_id=job_id,
            user_id=user_id,
            channel=person.channel,
            template_code=TEMPLATE,
            locale=person.locale or (known and known.locale) or LOCALE,
            data=data,
            meta=Meta(event_type=TEMPLATE, event_id=report.id),
            created_at=as_datetime(self._clock.now()),
            attachments=files,
        )
        await self._notifications.service.send([job])


def _is_of(report: Report, task: ReportTask) -> bool:
    """Whether this is what the job asks for; its data may have been changed since."""
    asked = (task.kind, task.params, task.format, task.user_id)
    return (report.kind, report.params, report.format, report.user_id) == asked
