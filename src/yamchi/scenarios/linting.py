"""What is wrong with a scenario although it can be read: templates that are missing, kinds and functions nobody has."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from yamchi.notifications.schemas.notification_job import canonical_channel
from yamchi.notifications.templates.locales import locale_chain
from yamchi.notifications.templates.model import TemplateStore
from yamchi.scenarios.definition import Definition, Step
from yamchi.scenarios.entities import EntityKinds
from yamchi.scenarios.library import Library
from yamchi.scenarios.reading import Place
from yamchi.yamlfiles import load_file

LANGUAGES = ("ru", "en", "kk")

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or odd."""

    scenario: str
    level: Level
    said: str
    has_place: bool = False

    def __str__(self) -> str:
        return self.said if self.has_place else f"{self.scenario}: {self.said}."


class Linter:
    """Looks at the scenarios in force as this application would run them."""

    def __init__(
        self,
        library: Library,
        kinds: EntityKinds,
        templates: TemplateStore,
        functions: Mapping[str, Any],
    ) -> None:
        self._library = library
        self._kinds = kinds
        self._templates = templates
        self._functions = functions

    async def lint(self) -> list[Finding]:
        self._library.refresh()
        definitions = list(self._library.current.values())
        found = [
            Finding(getattr(problem, "source", "scenarios"), "error", str(problem), has_place=True)
            for problem in self._library.problems
        ]
        for definition in definitions:
            found += await self.look_at(definition)
        return found

    async def look_at(self, definition: Definition) -> list[Finding]:
        """What is wrong with one of them, with file and line where it is in force."""
        path = self._library.file_of(definition)
        document = load_file(path) if path else None
        found: list[Finding] = []

        def note(level: Level, place: Place, said: str) -> None:
            if document is not None:
                said = f"{document.source}:{document.line_of(place)}: {said}."
            found.append(Finding(definition.scenario, level, said, has_place=document is not None))

        if definition.entity and definition.entity not in self._kinds:
            said = f"nobody keeps entities of the kind {definition.entity!r}, so no event starts it"
            note("warning", ("entity",), said)
        for number, step in enumerate(definition.steps):
            for place, said in await self._problems(step):
                note("error", ("steps", number, *place), f"step {step.job}: {said}")
        return found

    async def _problems(self, step: Step) -> list[tuple[Place, str]]:
        found: list[tuple[Place, str]] = []
        if step.call and step.call not in self._functions:
            found.append((("call",), f"nobody registered a function {step.call!r}"))
        for name in step.send.channels if step.send else ():
            assert step.send is not None
            channel = canonical_channel(name)
            missing = [
                language
                for language in LANGUAGES
                if not await self._templates.find(step.send.template, channel, locale_chain(language))
            ]
            if missing:
                said = f"there is no template {step.send.template!r} for {name} in {', '.join(missing)}"
                found.append((("send", "template"), said))
        return found
