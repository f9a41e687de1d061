"""Kinds of reports: a function that gathers the data, and a template that shows it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from yamchi.errors import InvalidJob, UnknownJob
from yamchi.queues.handlers import describe, faults_in

Format = Literal["pdf", "xlsx", "csv"]
FORMATS: dict[Format, str] = {
    "pdf": "application/pdf",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "csv": "text/csv; charset=utf-8",
}
TEMPLATES = Path(__file__).parent / "templates"

ReportProgress = Callable[[float], Awaitable[None]]
"""How far the work has come, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A table that may be long: its columns, and its rows in batches, so that nothing is held whole."""

    columns: Sequence[str]
    batches: Callable[[], AsyncIterator[Sequence[Sequence[Any]]]]
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """What a report says: data for its template, rows for a spreadsheet, or both."""

    title: str
    data: Mapping[str, Any] = field(default_factory=dict)
    rows: Rows | None = None
    period: str | None = None


Make = Callable[[Any], Awaitable[Content]]


class UnknownKind(UnknownJob):
    """There is no such kind of report."""


@dataclass(frozen=True, slots=True)
class ReportKind:
    """How a report is made."""

    name: str
    make: Make
    params: type[BaseModel]
    template: Path | None
    summary: str = ""

    def check(self, params: Mapping[str, Any]) -> BaseModel:
        try:
            return self.params.model_validate(params)
        except ValidationError as error:
            faults = [fault.within("params") for fault in faults_in(error)]
            raise InvalidJob(
                f"The params of report {self.name} do not fit: {describe(error)}", faults
            ) from error


class NoParams(BaseModel):
    """A report that asks for nothing."""


class Kinds:
    """Every kind that this application knows."""

    def __init__(self) -> None:
        self._kinds: dict[str, ReportKind] = {}

    def add(self, kind: ReportKind) -> None:
        self._kinds[kind.name] = kind

    def get(self, name: str) -> ReportKind:
        try:
            return self._kinds[name]
        except KeyError:
            known = ", ".join(sorted(self._kinds)) or "none"
            raise UnknownKind(f"There is no report {name!r}; there are: {known}.") from None

    def all(self) -> list[ReportKind]:
        return sorted(self._kinds.values(), key=lambda kind: kind.name)
