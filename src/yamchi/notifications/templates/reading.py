"""From a text to a `Template`: settings in YAML between two `---` lines, then the body.

---
subject: Your film is out, {{ first_name }}
category: recommendations
sample: {first_name: Aidana, film_title: The Matrix}
---
<p>{{ film_title }} is waiting for you.</p>
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from yamchi.notifications.templates.model import Button, ButtonRows, Format, Layout, Template, TemplateError
from yamchi.yamlfiles import Document, InvalidDocument, load

LONGEST_SOURCE = 256 * 1024
MOST_SETTINGS = 10_000
"""Parts of the YAML, the sample's among them."""
MOST_BUTTONS = 100  # as many as Telegram shows under a message

_FRONT_MATTER = re.compile(
    r"\A\ufeff?---[ \t]*\r?\n(?P<settings>.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)
_WHOLE_DOCUMENT = re.compile(r"\s*(<!doctype|<html)", re.IGNORECASE)
_NOBODY: dict[str, Any] = {"name": "Yamchi", "url": None, "address": None, "support": None}
_SPEAKS_HTML = frozenset({"email", "telegram"})


class ButtonSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    text: str
    url: str | None = None
    callback: str | None = None


class TemplateSettings(BaseModel):
    """What may stand between the `---` lines."""

    model_config = ConfigDict(extra="forbid", strict=True)

    subject: str | None = None
    title: str | None = None
    url: str | None = None
    image: str | None = None
    document: str | None = None
    topic: str | None = None
    preheader: str | None = None
    category: str = Field(default="general", max_length=64, pattern=r"^[^\r\n]+$")
    transactional: bool = False
    buttons: list[ButtonSettings | list[ButtonSettings]] = Field(default=[], max_length=MOST_BUTTONS)
    layout: bool = True
    sample: dict[str, Any] | None = None


def read_template(
    text: str,
    *,
    code: str,
    channel: str,
    locale: str,
    layout: Layout,
    source: str = "",
    subject: str | None = None,
    format: Format | None = None,
) -> Template:
    """The template in this text; `subject` (a column of the table) stands in for one that the settings lack."""
    name = f"{code} ({channel}, {locale})"
    if len(text) > LONGEST_SOURCE:
        raise TemplateError(f"Template {name} is longer than {LONGEST_SOURCE // 1024} KB: shorten it.")
    settings, body = _split(text, name)
    format = format or ("html" if channel in _SPEAKS_HTML else "text")
    return Template(
        code=code,
        channel=channel,
        locale=locale,
        subject=settings.subject or subject,
        body=body,
        version=sha256(text.encode(errors="surrogatepass")).hexdigest()[:12],
        category=settings.category,
        is_transactional=settings.transactional,
        source=source,
        format=format,
        title=settings.title,
        url=settings.url,
        image=settings.image,
        document=settings.document,
        topic=settings.topic,
        preheader=settings.preheader,
        buttons=_rows(settings.buttons),
        layout=layout if _wants_layout(channel, settings, body) else None,
        brand=layout.brand,
        sample=settings.sample,
    )


def _split(text: str, name: str) -> tuple[TemplateSettings, str]:
    found = _FRONT_MATTER.match(text)
    if not found:
        return TemplateSettings(), text
    # The settings' lines stay as empty ones, so that an error in the body names the line of the file.
    return _settings(found["settings"], name), "\n" * found.group().count("\n") + text[found.end() :]


def _settings(text: str, name: str) -> TemplateSettings:
    try:
        document = load(text, name, first_line=2, most_parts=MOST_SETTINGS)
    except InvalidDocument as error:
        said = error.problem.replace("it is not YAML", "its settings are not YAML")
        raise TemplateError(f"Template {name}: {said}.", line=error.line) from None
    try:
        return TemplateSettings.model_validate({} if document.data is None else document.data)
    except ValidationError as error:
        raise _wrong(error, document, name) from None


def _wrong(error: ValidationError, document: Document, name: str) -> TemplateError:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"]) or "settings"
    known = ", ".join(TemplateSettings.model_fields)
    hint = f" (known: {known})" if first["type"] == "extra_forbidden" else ""
    said = f"the setting {field!r} is wrong: {first['msg'].rstrip('.').lower()}{hint}"
    return TemplateError(f"Template {name}: {said}.", line=document.line_of(first["loc"]))


def _rows(buttons: list[ButtonSettings | list[ButtonSettings]]) -> ButtonRows:
    """A flat list is one row; a list in the list is a row of its own."""
    if all(isinstance(item, ButtonSettings) for item in buttons):
        return (
            (tuple(_button(item) for item in buttons if isinstance(item, ButtonSettings)),) if buttons else ()
        )
    return tuple(
        tuple(_button(item) for item in (row if isinstance(row, list) else [row])) for row in buttons
    )


def _button(settings: ButtonSettings) -> Button:
    return Button(settings.text, settings.url, settings.callback)


def _wants_layout(channel: str, settings: TemplateSettings, body: str) -> bool:
    return channel == "email" and settings.layout and not _WHOLE_DOCUMENT.match(body)


def brand_of(text: str, source: str) -> Mapping[str, Any]:
    """The sender's name, links and address from `brand.yaml`."""
    try:
        loaded = load(text, source).data
    except InvalidDocument as error:
        raise TemplateError(str(error), line=error.line) from None
    if not isinstance(loaded, dict):
        raise TemplateError(f"{source} must hold `name: …` and, if you like, `url`, `address` and `support`.")
    return _NOBODY | loaded
