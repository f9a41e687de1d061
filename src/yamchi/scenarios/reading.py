"""From a YAML file to a definition, or one sentence that names the file, the line and the field."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from yamchi.errors import ConfigurationError
from yamchi.scenarios.definition import Definition
from yamchi.yamlfiles import Document, InvalidDocument, load, load_file

SUFFIXES = (".yaml", ".yml")

Place = tuple[str | int, ...]


def read_file(path: Path) -> Definition:
    return _read(load_file(path))


def read_text(text: str, source: str = "scenario") -> Definition:
    """The scenario in this text."""
    return _read(load(text, source))


def read_folder(folder: Path) -> Iterator[Definition | InvalidDocument]:
    """Every scenario of a folder, in the order of their files' names; what is wrong with one that can't be used."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix in SUFFIXES:
            try:
                yield read_file(path)
            except InvalidDocument as error:
                yield error


def check_together(definitions: Sequence[Definition]) -> None:
    """Refuse scenarios that would start each other for ever."""
    starts: dict[str, list[Definition]] = {}
    for definition in definitions:
        for event in definition.on:
            starts.setdefault(event, []).append(definition)
    for definition in definitions:
        if cycle := _echo(definition, starts, []):
            way = " → ".join(one.scenario for one in cycle)
            raise ConfigurationError(f"Scenarios start each other, which is a cycle: {way}.")


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
