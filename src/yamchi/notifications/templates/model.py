"""The types of templates: a template, the layout around an e-mail, the rendered message, and the errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, ClassVar, Literal, Protocol

from yamchi.errors import Unrecoverable
from yamchi.notifications.templates.locales import locale_chain

Format = Literal["html", "text"]


@dataclass(frozen=True, slots=True)
class Button:
    """A button under a message: it opens `url`, or sends `callback` back to the bot."""

    text: str
    url: str | None = None
    callback: str | None = None


ButtonRows = tuple[tuple[Button, ...], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands around the body of a letter, as HTML and as plain text; both say where with `{{ content }}`."""

    html: str
    text: str
    brand: Mapping[str, Any] = field(
        default_factory=dict, compare=False
    )  # who writes: name, url, address, support


@dataclass(frozen=True, slots=True)
class Template:
    """One message in one language for one channel. Every text in it is Jinja2."""

    code: str
    channel: str
    locale: str
    subject: str | None
    body: str
    version: str
    category: str = "general"
    is_transactional: bool = False
    source: str = ""
    format: Format = "text"
    title: str | None = None
    url: str | None = None
    image: str | None = None
    document: str | None = None
    topic: str | None = None
    preheader: str | None = None
    buttons: ButtonRows = ()
    layout: Layout | None = None  # none: the body of an e-mail is a whole document
    brand: Mapping[str, Any] = field(default_factory=dict, compare=False)
    sample: Mapping[str, Any] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.code} ({self.channel}, {self.locale})"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A message ready for its channel. `text` is always there; `html` where the channel speaks it."""

    text: str
    html: str | None = None
    subject: str | None = None
    title: str | None = None
    url: str | None = None
    image: str | None = None
    document: str | None = None
    topic: str | None = None
    preheader: str | None = None
    buttons: ButtonRows = ()
    locale: str = ""
    version: str = ""


class TemplateError(Unrecoverable):
    """A template can't be read or rendered: no retry mends it. The message is one sentence that names the template."""

    http_status: ClassVar[int] = HTTPStatus.UNPROCESSABLE_ENTITY

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class MissingVariable(TemplateError):
    """The data lacks a variable that the template uses."""


class UnknownTemplate(TemplateError):
    """No store has this template in any of the languages asked for."""

    http_status: ClassVar[int] = HTTPStatus.NOT_FOUND

    def __init__(self, code: str, channel: str, locales: Sequence[str]) -> None:
        super().__init__(
            f"There is no template {code!r} for the channel {channel!r} in {', '.join(locales)}: "
            f"add templates/{code}/{channel}.{locales[0]}.* or correct the code."
        )


class TemplateStore(Protocol):
    """Where templates are kept: files, a table, or several stores one behind the other."""

    async def find(self, code: str, channel: str, locales: Sequence[str]) -> Template | None:
        """The template in the first of these languages that has it."""

    async def list(self) -> Sequence[Template]:
        """Every template, in its present version."""


async def find_template(store: TemplateStore, code: str, channel: str, locale: str) -> Template:
    """The template in this language or the next one that has it; `UnknownTemplate` if there is none."""
    locales = locale_chain(locale)
    if found := await store.find(code, channel, locales):
        return found
    raise UnknownTemplate(code, channel, locales)
