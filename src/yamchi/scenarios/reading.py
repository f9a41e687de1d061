"""From a YAML file to a definition, or one sentence that names the file, the line and the field."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from yamchi.errors import ConfigurationError
from yamchi.scenarios.definition import Definition

LARGEST = 256 * 1024
DEEPEST = 12
SUFFIXES = (".yaml", ".yml")

Place = tuple[str | int, ...]


class InvalidScenario(ConfigurationError):
    """A scenario can't be used as it is."""

    def __init__(self, source: str, line: int | None, problem: str) -> None:
        self.source, self.line, self.problem = source, line, problem
        where = source if line is None else f"{source}, line {line}"
        super().__init__(f"{where}: {problem.rstrip('.')}.")


def read_file(path: Path) -> Definition:
    try:
        if path.stat().st_size > LARGEST:
            raise InvalidScenario(str(path), None, f"it is larger than {LARGEST // 1024} KB")
        return read_text(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidScenario(str(path), None, f"it can't be read: {error}") from None


def read_text(text: str, source: str = "scenario") -> Definition:
    """The scenario in this text."""
    lines: dict[Place, int] = {}
    try:
        content = _load(text, source, lines)
        return Definition.model_validate(content)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise InvalidScenario(source, line, f"it is not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise InvalidScenario(source, None, f"it is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise InvalidScenario(source, None, "it is nested too deeply") from None
    except ValidationError as error:
        raise _explained(source, lines, error) from None


def read_folder(folder: Path) -> Iterator[Definition | InvalidScenario]:
    """Every scenario of a folder, in the order of their files' names; what is wrong with one that can't be used."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix in SUFFIXES:
            try:
                yield read_file(path)
            except InvalidScenario as error:
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
            raise InvalidScenario(definition.scenario, None, f"{way} start each other, which is a cycle")


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


# ── YAML with lines ───────────────────────────────────────────────────────────────────────────────────────────────


class _Loader(yaml.SafeLoader):
    """Plain data only. `on` is a word here, not a truth value, and there are no aliases: they can multiply without end."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, f"aliases such as *{event.anchor} are not allowed", event.start_mark
            )
        return super().compose_node(parent, index)


def _load(text: str, source: str, lines: dict[Place, int]) -> Any:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise InvalidScenario(source, None, "it is empty")
        return _build(loader, node, (), source, lines)
    finally:
        loader.dispose()


def _build(loader: _Loader, node: yaml.Node, place: Place, source: str, lines: dict[Place, int]) -> Any:
    line = node.start_mark.line + 1
    lines.setdefault(place, line)
    if len(place) > DEEPEST:
        raise InvalidScenario(source, line, f"it is nested more than {DEEPEST} deep")
    if isinstance(node, yaml.MappingNode):
        return _mapping(loader, node, place, source, lines)
    if isinstance(node, yaml.SequenceNode):
        return [
            _build(loader, item, (*place, number), source, lines) for number, item in enumerate(node.value)
        ]
    if node.tag == "tag:yaml.org,2002:timestamp":
        return node.value  # a date stays as it is written, to be read in the entity's zone
    return loader.construct_object(node, deep=True)


def _mapping(
    loader: _Loader, node: yaml.MappingNode, place: Place, source: str, lines: dict[Place, int]
) -> dict[str, Any]:
    built: dict[str, Any] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise InvalidScenario(source, line, "a key must be a word")
        if key.value in built:
            raise InvalidScenario(source, line, f"{key.value!r} is there twice")
        lines[(*place, key.value)] = line
        built[key.value] = _build(loader, value, (*place, key.value), source, lines)
    return built


# ── What is wrong ─────────────────────────────────────────────────────────────────────────────────────────────────


def _explained(source: str, lines: Mapping[Place, int], error: ValidationError) -> InvalidScenario:
    first = min(error.errors(include_url=False), key=lambda one: _line(lines, _place(one)) or 0)
    place, said = _place(first), first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        said = f"there is no field {place[-1]!r}"
        place = (*place[:-1], place[-1])
    elif first["type"] == "missing":
        said = f"the field {place[-1]!r} is missing"
    elif (leading := _leading_place(said)) is not None:
        place, said = leading
    field = ".".join(str(part) for part in place)
    words = said if first["type"] in ("extra_forbidden", "missing") or not field else f"{field}: {said}"
    return InvalidScenario(source, _line(lines, place), words[0].lower() + words[1:])


def _place(error: Any) -> Place:
    """Where in the file, without what pydantic adds for the members of a union."""
    return tuple(
        part
        for part in error["loc"]
        if isinstance(part, int) or part not in ("str", "int", "float", "list[str]")
    )


def _leading_place(said: str) -> tuple[Place, str] | None:
    """A check of the whole scenario says where the trouble is: `steps.3.next: there is no step 'x'`."""
    head, colon, rest = said.partition(": ")
    if not colon or " " in head:
        return None
    return tuple(int(part) if part.isdigit() else part for part in head.split(".")), rest


def _line(lines: Mapping[Place, int], place: Place) -> int | None:
    """The line of this place, or of the nearest thing around it."""
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place)
