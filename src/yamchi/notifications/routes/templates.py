"""Templates: list, edit (every change is a version), preview with sample data, send one to yourself."""

from dataclasses import asdict
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field, model_validator

from yamchi import fields
from yamchi.fields import Address, JsonObject
from yamchi.http.audit import changes
from yamchi.http.problems import documented
from yamchi.notifications.routes.dependencies import TheNotifications
from yamchi.notifications.schemas.notification_job import Channel, DirectMessage, DirectOptions
from yamchi.notifications.templates.locales import normalize_locale
from yamchi.notifications.templates.model import Format, Template, find_template
from yamchi.notifications.templates.preview import preview

router = APIRouter(tags=["templates"], responses=documented(401, 403, 404, 422, 503))
readers = APIRouter(tags=["templates"], responses=documented(401, 403, 404, 422, 503))
"""What changes nothing, though it is no GET."""

Code = Annotated[str, Path(pattern=r"^\w[\w.-]*$", max_length=255, examples=["welcome_email"])]
Locale = Annotated[fields.Locale, Path(examples=["ru"])]
ONE = "/templates/{code}/{channel}/{locale}"


class TemplateIn(BaseModel):
    """A template's text: settings between two `---` lines, then the body in Jinja2. Or its subject and body, with no other settings."""

    text: str | None = Field(
        default=None,
        max_length=500_000,
        examples=["---\nsubject: Hi, {{ user.name }}\n---\n<p>Welcome!</p>"],
    )
    subject: str | None = Field(default=None, max_length=998)
    body: str | None = Field(default=None, max_length=500_000)
    format: Format = "html"

    @model_validator(mode="after")
    def _is_one_of_both(self) -> "TemplateIn":
        if (self.text is None) is (self.body is None):
            raise ValueError("give either text, or body with or without a subject")
        return self

    @property
    def whole(self) -> str:
        return self.text or self.body or ""


class TemplateOut(BaseModel):
    """A template, as it is now."""

    code: str
    channel: str
    locale: str
    version: str
    subject: str | None
    body: str
    category: str
    is_transactional: bool
    source: str

    @classmethod
    def of(cls, template: Template) -> "TemplateOut":
        shown = {name: getattr(template, name) for name in cls.model_fields}
        return cls(**shown | {"body": template.body.lstrip("\n")})  # empty lines stand for its settings


class PreviewIn(BaseModel):
    """Data to render with; the template's own sample if there is none."""

    data: JsonObject | None = None


class TestSend(PreviewIn):
    """Where to send a try."""

    to: Address = Field(examples=["me@example.com"])


class TestSent(BaseModel):
    job_id: str


@router.get("/templates", summary="Every template, of the table and of the files")
async def list_templates(notifications: TheNotifications) -> list[TemplateOut]:
    return [TemplateOut.of(template) for template in await notifications.templates.list()]


@router.get(ONE, summary="A template, in this language or the next one that has it")
async def show_template(
    notifications: TheNotifications, code: Code, channel: Channel, locale: Locale
) -> TemplateOut:
    return TemplateOut.of(await find_template(notifications.templates, code, channel, locale))


@router.put(ONE, summary="Keep a new version of a template")
async def put_template(
    request: Request,
    notifications: TheNotifications,
    code: Code,
    channel: Channel,
    locale: Locale,
    new: TemplateIn,
) -> TemplateOut:
    language = normalize_locale(locale) or locale
    before = await notifications.templates.find(code, channel, [language])
    kept = await notifications.templates.put(code, channel, language, new.whole, new.format, new.subject)
    changes(request, before=before and f"version {before.version}", after=f"version {kept.version}")
    return TemplateOut.of(kept)


@router.get(f"{ONE}/versions", summary="The versions kept in the table, newest first")
async def list_versions(
    notifications: TheNotifications, code: Code, channel: Channel, locale: Locale
) -> list[dict[str, Any]]:
    return list(await notifications.templates.versions(code, channel, locale))


@readers.post(f"{ONE}/preview", summary="Render it without sending")
async def preview_template(
    notifications: TheNotifications,
    code: Code,
    channel: Channel,
    locale: Locale,
    using: PreviewIn | None = None,
) -> dict[str, Any]:
    data = using.data if using else None
    return asdict(await preview(notifications.templates, code, channel, locale, data))


@router.post(
    f"{ONE}/test", status_code=202, summary="Send it to one address, to see it where it will be read"
)
async def send_test(
    notifications: TheNotifications, code: Code, channel: Channel, locale: Locale, test: TestSend
) -> TestSent:
    template = await find_template(notifications.templates, code, channel, locale)
    sample = dict(template.sample or {})
    options = DirectOptions(to=test.to, template=code, locale=locale, data=test.data or sample)
    job_id = str(uuid4())
    await notifications.service.send_direct(DirectMessage(channel=channel, options=options), job_id)
    return TestSent(job_id=job_id)
