"""What is wrong with templates, told before a letter fails: `yamchi template lint`, and in short `yamchi doctor` and `/readyz`.

An `error` would stop letters; a `warning` is likely a mistake. Each finding names the template, the line if there is
one, and what to do.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal

from jinja2.exceptions import TemplateSyntaxError
from jinja2.meta import find_undeclared_variables

from yamchi.notifications.templates.files import FileTemplates
from yamchi.notifications.templates.letters import HTML, TEXT
from yamchi.notifications.templates.model import (
    Layout,
    Rendered,
    Template,
    TemplateError,
    TemplateStore,
)
from yamchi.notifications.templates.rendering import GIVEN, check, render
from yamchi.storage.threads import in_own_thread

LOCALES = ("ru", "en", "kk")
LONGEST_SUBJECT = 78
LONGEST_SMS = 201  # three parts, where one letter is not Latin

_TELEGRAM_TAGS = "a b blockquote code del em i ins pre s span strike strong tg-emoji tg-spoiler u"
_TAG = re.compile(r"<([a-z][\w-]*)", re.IGNORECASE)

Group = Sequence[Template]


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing to mend."""

    template: str
    message: str
    level: Literal["error", "warning"] = "error"
    line: int | None = None
    source: str = ""


async def lint(
    store: TemplateStore, folders: Sequence[Path] = (), *, locales: Sequence[str] = LOCALES
) -> list[Finding]:
    """Everything that can be told without sending: of the store's templates and of files that can't be read at all."""
    findings = [_broken(path, error) for path, error in FileTemplates(folders).broken()]
    groups: dict[tuple[str, str], list[Template]] = defaultdict(list)
    for template in await store.list():
        groups[template.code, template.channel].append(template)
        findings += _lint(template)
    for group in groups.values():
        findings += [*_missing_locales(group, locales), *_differing_variables(group)]
    return sorted(findings, key=lambda finding: (finding.template, finding.level, finding.message))


class FileCheck:
    """The user's own files that can't be used, looked at beside the event loop; what has not changed is not compiled again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = FileTemplates([folder])
        self._faults: dict[Path, tuple[Template, TemplateError | None]] = {}
        self._looking = Lock()

    async def problems(self) -> list[str]:
        """What is wrong, each with file and line."""
        return await in_own_thread(self._look)

    def _look(self) -> list[str]:
        with self._looking:
            try:
                layout = self._files.layout()
            except TemplateError as error:
                return [str(error)]
            # A layout that can't be used is one mistake, and not one of every letter.
            return list(self._look_at_layout(layout)) or list(self._look_at_files())

    def _look_at_layout(self, layout: Layout) -> Iterator[str]:
        for name, environment, source in (("html", HTML, layout.html), ("txt", TEXT, layout.text)):
            try:
                environment.from_string(source)
            except TemplateSyntaxError as error:
                yield f"{self._folder / 'layout'}.{name}:{error.lineno}: {error.message}."

    def _look_at_files(self) -> Iterator[str]:
        broken = {path: error for path, error in self._files.broken() if path.is_relative_to(self._folder)}
        self._faults = {path: (template, self._fault_of(path, template)) for path, template in self._own()}
        broken |= {path: error for path, (_, error) in self._faults.items() if error}
        for path, error in sorted(broken.items()):
            line = f":{error.line}" if error.line else ""
            yield f"{path}{line}: {error}"

    def _own(self) -> Iterator[tuple[Path, Template]]:
        for template in self._files.readable():
            if (path := Path(template.source)).is_relative_to(self._folder):
                yield path, template

    def _fault_of(self, path: Path, template: Template) -> TemplateError | None:
        known = self._faults.get(path)
        if known and known[0] is template:
            return known[1]
        try:
            check(template)
        except TemplateError as error:
            return error.with_traceback(None)
        return None


def variables_of(template: Template) -> set[str]:
    """The names that a template takes from its data."""
    sources = [template.subject, template.title, template.url, template.preheader]
    sources += [
        part
        for row in template.buttons
        for button in row
        for part in (button.text, button.url, button.callback)
    ]
    found = find_undeclared_variables((HTML if template.format == "html" else TEXT).parse(template.body))
    for source in filter(None, sources):
        found |= find_undeclared_variables(TEXT.parse(source))
    return found - GIVEN - _defined_by_layout(template) - set(TEXT.globals)


def _defined_by_layout(template: Template) -> set[str]:
    return set(re.findall(r"{%-?\s*macro\s+(\w+)", template.layout.html)) if template.layout else set()


def _lint(template: Template) -> Iterator[Finding]:
    try:
        check(template)
    except TemplateError as error:
        yield _finding(template, str(error), line=error.line)
        return
    if template.channel == "email" and not template.subject:
        yield _finding(template, "It has no subject: add `subject:` to its settings.")
    elif template.sample is None:
        yield _finding(
            template, "It has no sample data, so it can't be previewed: add `sample:`.", level="warning"
        )
    else:
        yield from _lint_sample(template)


def _lint_sample(template: Template) -> Iterator[Finding]:
    try:
        rendered = render(template, template.sample or {}, unsubscribe_url="https://example.com/unsubscribe")
    except TemplateError as error:
        yield _finding(template, f"With its own sample: {error}", line=error.line)
        return
    for message in _lint_rendered(template, rendered):
        yield _finding(template, message, level="warning")


def _lint_rendered(template: Template, rendered: Rendered) -> Iterator[str]:
    if rendered.subject and len(rendered.subject) > LONGEST_SUBJECT:
        yield f"Its subject has {len(rendered.subject)} characters, and mail programs cut it at about {LONGEST_SUBJECT}."
    if template.channel == "sms" and len(rendered.text) > LONGEST_SMS:
        yield f"Its text has {len(rendered.text)} characters: more than three SMS."
    if template.channel == "telegram":
        for tag in sorted(
            {tag.lower() for tag in _TAG.findall(rendered.html or "")} - set(_TELEGRAM_TAGS.split())
        ):
            yield f"Telegram refuses <{tag}>: use line breaks, <b>, <i>, <a>, <code>."


def _missing_locales(group: Group, locales: Sequence[str]) -> Iterator[Finding]:
    if missing := [locale for locale in locales if locale not in {template.locale for template in group}]:
        yield _finding(group[0], f"{', '.join(missing)} is missing.", level="warning", name=_name(group[0]))


def _differing_variables(group: Group) -> Iterator[Finding]:
    known = {template.locale: variables for template in group for variables in _try_variables(template)}
    everything = set().union(*known.values())
    for template in group:
        if absent := sorted(everything - known.get(template.locale, everything)):
            others = sorted(locale for locale, names in known.items() if names & set(absent))
            message = f"It does not use {', '.join(absent)}, which {', '.join(others)} does."
            yield _finding(template, message, level="warning")


def _try_variables(template: Template) -> Iterable[set[str]]:
    try:
        return [variables_of(template)]
    except (TemplateSyntaxError, RecursionError):  # told by `check` already
        return []


def _broken(path: Path, error: TemplateError) -> Finding:
    return Finding(f"{path.parent.name}/{path.name}", str(error), line=error.line, source=str(path))


def _finding(
    template: Template,
    message: str,
    *,
    level: Literal["error", "warning"] = "error",
    line: int | None = None,
    name: str | None = None,
) -> Finding:
    return Finding(name or f"{_name(template)}.{template.locale}", message, level, line, template.source)


def _name(template: Template) -> str:
    return f"{template.code}/{template.channel}"
