"""From a YAML file to a definition, or one sentence that names the file, the line and the field."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from yamchi import textfiles
from yamchi.scenarios.definition import Definition
from yamchi.textfiles import UnreadableFile
from yamchi.yamlfiles import Document, InvalidDocument, load, load_file

SUFFIXES = (".yaml", ".yml")

Place = tuple[str | int, ...]

_NAMED = re.compile(r"""^["']?scenario["']?:[ \t]*["']?([A-Za-z][\w-]*)""", re.MULTILINE)


def read_file(path: Path) -> Definition:
    return _read(load_file(path))


def read_text(text: str, source: str = "scenario") -> Definition:
    """The scenario in this text."""
    return _read(load(text, source))


def paths_in(folder: Path) -> list[Path]:
    """The files of scenarios. Editors keep files of their own beside them, whose names begin with a dot."""
    return [path for path in textfiles.paths_in(folder) if path.suffix in SUFFIXES and path.name[:1] != "."]


def named_in(path: Path) -> str:
    """The scenario that a file is about, though it can't be used: by the line that says so, or by the file's own name."""
    try:
        found = _NAMED.search(textfiles.read_text(path, errors="replace"))
    except UnreadableFile:
        found = None
    return found[1] if found else path.stem


def find_cycle(definitions: Iterable[Definition]) -> list[Definition]:
    """Scenarios that would start each other for ever, the first of them once more at the end; nothing if there are none."""
    known = list(definitions)
    starts: dict[str, list[Definition]] = {}
    for definition in known:
        for event in definition.on:
            starts.setdefault(event, []).append(definition)
    return next((cycle for one in known if (cycle := _echo(one, starts, []))), [])


def _echo(
    definition: Definition, starts: Mapping[str, list[Definition]], way: list[Definition]
) -> list[Definition] | None:
    if definition in way:
        return [*way, definition] if definition is way[0] else None
    for event in sorted(definition.emits):
        for following in starts.get(event, ()):
            if found := _echo(following, starts, [*way, definition]):
                return found
    return None


def _read(document: Document) -> Definition:
    if not isinstance(document.data, dict):
        raise document.error((), "it is no scenario: begin with 'scenario: <name>' and 'on: <event>'")
    try:
        return Definition.model_validate(document.data)
    except ValidationError as error:
        raise _explained(document, error) from None


def _explained(document: Document, error: ValidationError) -> InvalidDocument:
    """The first mistake, by line. A check of the whole scenario says itself where the trouble is: `steps.3.next: …`."""
    first = min(error.errors(include_url=False), key=lambda one: document.line_of(one["loc"]))
    place, said = _place(first), first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        return document.error(place, f"there is no field {place[-1]!r}")
    if first["type"] == "missing":
        return document.error(place, f"the field {place[-1]!r} is missing")
    head, colon, rest = said.partition(": ")
    if colon and " " not in head:
        place, said = tuple(int(part) if part.isdigit() else part for part in head.split(".")), rest
    where = ".".join(str(part) for part in place)
    return document.error(place, f"{where}: {said}" if where else said)


def _place(error: Any) -> Place:
    """Where in the file, without what pydantic adds for the members of a union."""
    unions = ("str", "int", "float", "list[str]")
    return tuple(part for part in error["loc"] if isinstance(part, int) or part not in unions)
