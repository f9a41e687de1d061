"""YAML that people write: read without aliases, with limits, and with the line of every part, so that errors can name it.

    document = load_file(home / "rules.yaml")            # ConfigurationError: rules.yaml:7: did not find expected key
    rules = document.validate(TypeAdapter(list[Rule]))   # InvalidDocument: rules.yaml:3: 0.notify.template: Field required

What comes out is what JSON could say, and dates. Keys are texts as they are written: `on` is "on", and `1` is "1".
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from yamchi.errors import ConfigurationError
from yamchi.textfiles import LONGEST, UnreadableFile, read_text

MOST_PARTS = 100_000
DEEPEST = 50
LONGEST_NUMBER = 64
"""A longer text is never looked at as a number or a date: to make a number of digits takes the square of their count."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PLAIN = yaml.SafeLoader("")  # knows what an unquoted text means; asked for scalars only, so it keeps nothing
_SCALARS = {
    f"tag:yaml.org,2002:{name}": getattr(yaml.SafeLoader, f"construct_yaml_{name}")
    for name in ("null", "bool", "int", "float", "timestamp")
}
_TEXT = "tag:yaml.org,2002:str"
_SPACE = re.compile(r"\s+")

Loc = Iterable[str | int]
Wanted = TypeVar("Wanted")


class InvalidDocument(ConfigurationError):
    """A file that can't be used; the message is one sentence that begins with file and line."""

    def __init__(self, source: str, line: int | None, problem: str) -> None:
        super().__init__(f"{source}{f':{line}' if line else ''}: {problem.rstrip('.')}.")
        self.source = source
        self.line = line
        self.problem = problem


@dataclass(slots=True)
class _Place:
    """Where a part begins, and its parts by key or number."""

    line: int
    parts: dict[str | int, "_Place"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Document:
    """The data of a file, and where each part of it stands."""

    data: Any
    source: str
    _root: _Place

    def line_of(self, path: Loc = ()) -> int:
        """The line of the part at this path, or of the nearest part around it.

        What the document does not have is passed over, so the `loc` of a pydantic error will do, with its names of unions.
        """
        place = self._root
        for part in path:
            place = place.parts.get(part, place)
        return place.line

    def error(self, path: Loc, problem: str) -> InvalidDocument:
        """An error about the part at this path, to be raised."""
        return InvalidDocument(self.source, self.line_of(path), problem)

    def validate(self, model: TypeAdapter[Wanted] | type[Wanted]) -> Wanted:
        """The data as this model; else `InvalidDocument` about the first mistake, by line."""
        adapter = model if isinstance(model, TypeAdapter) else TypeAdapter(model)
        try:
            return adapter.validate_python({} if self.data is None and _is_model(model) else self.data)
        except ValidationError as error:
            raise self.explain(error) from error

    def explain(self, error: ValidationError) -> InvalidDocument:
        """A pydantic error about this document's data as one sentence with file and line."""
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        first = min(faults, key=lambda fault: self.line_of(fault["loc"]))
        where = ".".join(str(part) for part in first["loc"])
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        said = first["msg"].removeprefix("Value error, ")
        return self.error(first["loc"], f"{where}: {said}{more}" if where else f"{said}{more}")


def load_file(path: Path) -> Document:
    """The document in this file."""
    try:
        text = read_text(path)
    except UnreadableFile as error:
        raise InvalidDocument(str(path), None, f"it can't be read: {error.reason}") from error
    return load(text, str(path))


def load(text: str, source: str, *, first_line: int = 1, most_parts: int = MOST_PARTS) -> Document:
    """The document in this text; `source` is what errors call it, `first_line` the number of its first line there."""
    if len(text) > LONGEST:
        raise InvalidDocument(source, None, f"it has more than {LONGEST:,} characters")
    builder = _Builder(source, first_line, most_parts)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + first_line if error.problem_mark else None
        raise InvalidDocument(source, line, f"it is not YAML: {_flat(error.problem)}") from None
    except (yaml.YAMLError, UnicodeError) as error:  # a character that YAML does not allow
        raise InvalidDocument(source, None, f"it is not YAML: {_flat(error)}") from None
    return Document(builder.data, source, builder.place)


@dataclass(slots=True)
class _Open:
    """A list or mapping that is being read."""

    data: list[Any] | dict[str, Any]
    place: _Place
    key: str | None = None
    key_line: int = 0


class _Builder:
    """Makes data of a parser's events, without recursion: a deeply nested text must not end the process."""

    def __init__(self, source: str, first_line: int, most_parts: int) -> None:
        self.data: Any = None
        self.place = _Place(first_line)
        self._source = source
        self._first_line = first_line
        self._left = self._most = most_parts
        self._open: list[_Open] = []
        self._documents = 0

    def take(self, event: yaml.Event) -> None:
        line = (event.start_mark.line if event.start_mark else 0) + self._first_line
        match event:
            case yaml.DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    raise self._error(line, "it has a second document: keep to one")
            case yaml.AliasEvent():
                raise self._error(
                    line, f"'*{event.anchor}' repeats another part: write it out, aliases are not taken"
                )
            case yaml.ScalarEvent():
                self._scalar(event, line)
            case yaml.SequenceStartEvent():
                self._begin([], line)
            case yaml.MappingStartEvent():
                self._begin({}, line)
            case yaml.CollectionEndEvent():
                self._open.pop()

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        inside = self._open[-1] if self._open else None
        if inside is not None and isinstance(inside.data, dict) and inside.key is None:
            if event.value in inside.data:
                first = inside.place.parts[event.value].line
                raise self._error(line, f"{event.value!r} is given twice, first on line {first}")
            inside.key, inside.key_line = event.value, line
        else:
            self._put(self._value(event, line), _Place(line))

    def _value(self, event: yaml.ScalarEvent, line: int) -> Any:
        if event.tag in (None, "!") and (not event.implicit[0] or len(event.value) > LONGEST_NUMBER):
            return event.value
        tag = event.tag or _PLAIN.resolve(yaml.ScalarNode, event.value, event.implicit)  # type: ignore[no-untyped-call]
        if tag == _TEXT:
            return event.value
        construct = _SCALARS.get(tag)
        if construct is None or len(event.value) > LONGEST_NUMBER:
            raise self._error(
                line,
                f"{event.value[:40]!r} can't be read as {tag.rpartition(':')[2]!r}: put quotes around it",
            )
        try:
            return construct(_PLAIN, yaml.ScalarNode(tag, event.value))
        except (ValueError, OverflowError, KeyError, IndexError, AttributeError):
            kind = tag.rpartition(":")[2]
            raise self._error(line, f"{event.value[:40]!r} is no {kind}: put quotes around it") from None

    def _begin(self, data: list[Any] | dict[str, Any], line: int) -> None:
        if len(self._open) >= DEEPEST:
            raise self._error(line, f"it is nested more than {DEEPEST} deep")
        place = _Place(line)
        self._put(data, place)
        self._open.append(_Open(data, place))

    def _put(self, value: Any, place: _Place) -> None:
        self._left -= 1
        if self._left < 0:
            raise self._error(place.line, f"it has more than {self._most:,} parts")
        if not self._open:
            self.data, self.place = value, place
            return
        inside = self._open[-1]
        if isinstance(inside.data, list):
            inside.place.parts[len(inside.data)] = place
            inside.data.append(value)
        elif inside.key is None:
            raise self._error(place.line, "a key must be one text, and not a list or mapping")
        else:
            place.line = inside.key_line
            inside.place.parts[inside.key] = place
            inside.data[inside.key] = value
            inside.key = None

    def _error(self, line: int, problem: str) -> InvalidDocument:
        return InvalidDocument(self._source, line, problem)


def _is_model(model: object) -> bool:
    """An empty file is a mapping without keys, where a mapping is wanted."""
    return isinstance(model, type) and issubclass(model, BaseModel)


def _flat(problem: object) -> str:
    return _SPACE.sub(" ", str(problem)).strip()
