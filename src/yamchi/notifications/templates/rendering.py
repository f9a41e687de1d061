"""From a template and data to a message: everything a channel needs, or one sentence that says why not.

A template is compiled once per version; after that a letter costs two Jinja renderings (HTML and plain text) and a few
short ones (subject, preheader …), some tenths of a millisecond in all.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from jinja2.environment import Template as Jinja
from jinja2.exceptions import FilterArgumentError, SecurityError, TemplateSyntaxError, UndefinedError

from yamchi.notifications.templates import letters
from yamchi.notifications.templates.letters import CONTENT, HTML, TEXT, Part
from yamchi.notifications.templates.meter import FULL, MAX_OUTPUT, METER, Limits, Meter, Outgrown, Refused
from yamchi.notifications.templates.model import (
    Button,
    ButtonRows,
    MissingVariable,
    Rendered,
    Template,
    TemplateError,
)
from yamchi.notifications.templates.sandbox import generate

LONGEST_LINE = 500
LONGEST = {"email": MAX_OUTPUT, "telegram": 100_000, "sms": 10_000}
LONGEST_MESSAGE = 100_000
"""Characters of a rendered body, by channel; the last where none is named: pushes, the inbox."""
MOST_CODE = 8 * 1024
MOST_TEMPLATES = 1024  # compiled and kept
LONGEST_CALLBACK = 64  # bytes, Telegram's limit

GIVEN = frozenset({"user", "brand", "letter", "now", "unsubscribe_url", "recipient_name"})
"""What Yamchi knows itself."""

_NOT_IN_A_LINE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NOT_IN_A_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_ADDRESS = re.compile(r"(https?|tg|mailto|tel):[^\s<>\"]+|/[^\s<>\"]*", re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A template as code. Without `text`, the plain text is made from the rendered HTML."""

    html: Jinja | None
    is_inlined: bool
    text: Jinja | None
    lines: Mapping[str, Jinja]  # subject, title, url and the like
    buttons: tuple[tuple[Mapping[str, Jinja], ...], ...]


def render(
    template: Template,
    data: Mapping[str, Any],
    *,
    now: datetime | None = None,
    timezone: str | None = None,
    unsubscribe_url: str | None = None,
    limits: Limits = FULL,
    **variables: Any,
) -> Rendered:
    """The message for one recipient; `data["user"]` holds what is known about them. Raises `TemplateError`.

    On the event loop, call `offloop.render_message`.
    """
    known = {"now": now, "unsubscribe_url": unsubscribe_url}
    known = {name: value for name, value in known.items() if value is not None}
    values = _values(template, data, {**variables, **known})
    with _told_as_template_error(template):
        compiled = _compiled(template, limits)
        zone = str(timezone or values["user"].get("timezone") or "UTC")
        meter = METER.set(Meter(template.locale, zone, values, limits))
        try:
            return _render(template, compiled, values)
        finally:
            METER.reset(meter)


def check(template: Template) -> None:
    """Compile it, so that what is wrong with its syntax is told; raises `TemplateError` with the line."""
    _compiled(template)


# ── Values ────────────────────────────────────────────────────────────────────────────────────────────────────────


def sources_of(template: Template) -> list[str]:
    """Everything in it that is rendered, the body with its layout."""
    body, layout = template.body, template.layout
    if layout:
        body = (layout.text if template.format == "text" else layout.html).replace(CONTENT, body)
    return [body, *_lines(template).values(), *_button_texts(template)]


def _values(template: Template, data: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """What the template sees: the data (`leadId` also as `lead_id`), and on top of it what Yamchi knows."""
    values: dict[str, Any] = {snake(name): value for name, value in data.items() if not name.islower()}
    values |= data
    user = values.get("user")
    values["user"] = user if isinstance(user, dict) else {}
    values["recipient_name"] = _recipient_name(values)
    values["brand"] = template.brand
    return {**values, **ours}


def snake(name: str) -> str:
    """`leadId` as `lead_id`."""
    return _CAMEL.sub("_", name).lower()


def _recipient_name(values: Mapping[str, Any]) -> str:
    user = values["user"]
    names = (values.get("first_name"), values.get("name"), user.get("first_name"), user.get("name"))
    return next((name.strip() for name in names if isinstance(name, str) and name.strip()), "")


# ── Rendering ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _render(template: Template, compiled: _Compiled, values: dict[str, Any]) -> Rendered:
    lines = {name: _line(name, jinja, values) for name, jinja in compiled.lines.items()}
    letter = {
        "locale": template.locale,
        "category": template.category,
        "preheader": "",
        "subject": "",
        **lines,
    }
    values["letter"] = letter | {"is_transactional": template.is_transactional}
    html = _html(template, compiled, values)
    if template.channel == "email" and not lines.get("subject"):
        raise Refused("has no subject, and an e-mail needs one")
    return Rendered(
        html=html,
        text=_text(template, compiled, values, html),
        subject=lines.get("subject"),
        title=lines.get("title") or lines.get("subject"),
        url=_address(lines.get("url")),
        image=_address(lines.get("image")),
        document=_address(lines.get("document")),
        topic=lines.get("topic"),
        preheader=lines.get("preheader"),
        buttons=_buttons(compiled, values),
        locale=template.locale,
        version=template.version,
    )


def _html(template: Template, compiled: _Compiled, values: dict[str, Any]) -> str | None:
    if compiled.html is None:
        return None
    html = _clean(_generate(template, compiled.html, values)).strip()
    if compiled.is_inlined:
        return html
    METER.get().hand_over(len(html))
    return letters.inline(html)


def _text(template: Template, compiled: _Compiled, values: dict[str, Any], html: str | None) -> str:
    if compiled.text is not None:
        return letters.tidy(_clean(_generate(template, compiled.text, values)))
    if template.channel != "email":
        return letters.strip_tags(html or "")
    METER.get().hand_over(len(html or ""))
    return letters.as_plain_text(html or "")


def _generate(template: Template, jinja: Jinja, values: dict[str, Any]) -> str:
    return generate(jinja, values, LONGEST.get(template.channel, LONGEST_MESSAGE))


def _line(name: str, jinja: Jinja, values: dict[str, Any]) -> str:
    """A text of one line. A line break in it would be a header of somebody else's making."""
    text = generate(jinja, values).strip()
    if found := _NOT_IN_A_LINE.search(text):
        what = "a line break" if found[0] in "\r\n\x85\u2028\u2029" else "a control character"
        raise Refused(f"puts {what} into its {name}, which must be one line")
    if len(text) > LONGEST_LINE:
        raise Refused(f"makes a {name} of more than {LONGEST_LINE} characters")
    return text


def _buttons(compiled: _Compiled, values: dict[str, Any]) -> ButtonRows:
    """The rows of buttons; one whose address and callback are both empty is left out."""
    rows = (tuple(_button(button, values) for button in row) for row in compiled.buttons)
    return tuple(
        filter(None, (tuple(button for button in row if button.url or button.callback) for row in rows))
    )


def _button(button: Mapping[str, Jinja], values: dict[str, Any]) -> Button:
    parts = {name: _line(f"button's {name}", jinja, values) for name, jinja in button.items()}
    if len(parts.get("callback", "").encode()) > LONGEST_CALLBACK:
        raise Refused(f"has a button whose callback is longer than {LONGEST_CALLBACK} bytes")
    return Button(parts["text"], _address(parts.get("url")), parts.get("callback"))


def _address(text: str | None) -> str | None:
    if text and not _ADDRESS.fullmatch(text):
        raise Refused(f"links to {text[:80]!r}, which is no address: use https://…")
    return text or None


def _clean(text: str) -> str:
    return _NOT_IN_A_TEXT.sub("", text) if _NOT_IN_A_TEXT.search(text) else text


# ── Compiling ─────────────────────────────────────────────────────────────────────────────────────────────────────


_outcomes: dict[Template, _Compiled | TemplateError] = {}


def _compiled(template: Template, limits: Limits = FULL) -> _Compiled:
    """Compiled once, or found wanting once: a broken template costs its letters no more than a good one."""
    outcome = _outcomes.get(template)
    if outcome is None:
        if limits.is_first_try:
            raise Outgrown("not compiled yet")
        outcome = _keep(template, _outcome(template))
    if isinstance(outcome, TemplateError):
        raise TemplateError(str(outcome), line=outcome.line)
    return outcome


def _keep(template: Template, outcome: _Compiled | TemplateError) -> _Compiled | TemplateError:
    while len(_outcomes) >= MOST_TEMPLATES:
        _outcomes.pop(next(iter(_outcomes)), None)
    return _outcomes.setdefault(template, outcome)


def _outcome(template: Template) -> _Compiled | TemplateError:
    try:
        with _told_as_template_error(template):
            return _compile(template)
    except TemplateError as error:
        return error.with_traceback(None)


def _compile(template: Template) -> _Compiled:
    if letters.size_of_code(template.body) + _length_of_lines(template) > MOST_CODE:
        raise Refused(
            f"has more than {MOST_CODE // 1024} KB between its {{{{ }}}} and {{% %}} and in its settings: shorten it"
        )
    environment = HTML if template.format == "html" else TEXT
    environment.from_string(template.body)  # first as it is, so that an error names the line of the file
    html, text = _parts(template)
    return _Compiled(
        html=HTML.from_string(html.source) if html else None,
        is_inlined=html is None or html.is_done,
        text=TEXT.from_string(text.source) if text and text.is_done else None,
        lines={name: _compile_line(name, line) for name, line in _lines(template).items()},
        buttons=tuple(tuple(_compile_button(button) for button in row) for row in template.buttons),
    )


def _lines(template: Template) -> dict[str, str]:
    lines = {"subject": template.subject, "title": template.title, "url": template.url}
    lines |= {"image": template.image, "document": template.document, "topic": template.topic}
    lines["preheader"] = template.preheader
    return {name: line for name, line in lines.items() if line is not None}


def _length_of_lines(template: Template) -> int:
    return sum(len(text) for text in (*_lines(template).values(), *_button_texts(template)))


def _button_texts(template: Template) -> list[str]:
    parts = [part for row in template.buttons for one in row for part in (one.text, one.url, one.callback)]
    return [part for part in parts if part]


def _parts(template: Template) -> tuple[Part | None, Part | None]:
    """The sources of the HTML and of the plain text, each in its layout."""
    body, layout = template.body.strip(), template.layout
    around_html, around_text = (layout.html, layout.text) if layout else (CONTENT, CONTENT)
    if template.format == "text":
        return None, Part(around_text.replace(CONTENT, body), is_done=True)
    if template.channel != "email":
        return Part(body, is_done=True), None
    text = letters.plain(body)
    html = letters.inlined(around_html.replace(CONTENT, body))
    return html, replace(text, source=around_text.replace(CONTENT, text.source))


def _compile_button(button: Button) -> Mapping[str, Jinja]:
    parts = {"text": button.text, "url": button.url, "callback": button.callback}
    return {name: _compile_line("buttons", part) for name, part in parts.items() if part is not None}


def _compile_line(name: str, source: str) -> Jinja:
    try:
        return TEXT.from_string(source)
    except TemplateSyntaxError as error:
        raise Refused(f"has a mistake in its {name}: {error.message}") from None


# ── Errors ────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _told_as_template_error(template: Template) -> Iterator[None]:
    """Whatever a template does wrong becomes one sentence; nothing of it is worth a retry."""
    try:
        yield
    except (TemplateError, Outgrown):
        raise
    except TemplateSyntaxError as error:
        message = f"Template {template}, line {error.lineno}: {_sentence(error.message)}"
        raise TemplateError(message, line=error.lineno) from None
    except Refused as error:
        raise TemplateError(f"Template {template} {_sentence(error)}") from None
    except (RecursionError, MemoryError):
        raise TemplateError(f"Template {template} is nested too deeply.") from None
    except UndefinedError as error:
        raise MissingVariable(f"Template {template}: {_sentence(error)}") from None
    except (SecurityError, FilterArgumentError) as error:
        raise TemplateError(f"Template {template}: {_sentence(error)}") from None
    except Exception as error:
        raise TemplateError(f"Template {template} fails on its data: {_sentence(error)}") from error


def _sentence(error: object) -> str:
    return f"{str(error).strip().rstrip('.')}."
