"""The scenarios in force, from files, and every version that a run may still follow, from the table.

The user's folder `scenarios/` stands before what ships; a file of the same scenario's name replaces it. Files may change
while Yamchi runs: runs that begin from then on follow the new version. A file that is changed into one that can't be used
changes nothing, and the log says why.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError
from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from yamchi.clock import Clock, Millis
from yamchi.errors import ConfigurationError, UnknownJob
from yamchi.queues.handlers import describe
from yamchi.scenarios.definition import Definition
from yamchi.scenarios.reading import SUFFIXES, check_together, read_file
from yamchi.scenarios.tables import scenario_definitions as table

log = structlog.get_logger("yamchi.scenarios")

FRESH: Millis = 1_000
"""How old the view of the files may be."""

Stamp = tuple[int, int]


class UnknownScenario(UnknownJob):
    """There is no scenario of this name, or no such version of it."""


class Library:
    """Definitions by name and by version."""

    def __init__(self, folders: Sequence[Path], clock: Clock, *, is_embedded: bool) -> None:
        self._folders = folders
        self._clock = clock
        self._files: dict[Path, tuple[Stamp, Definition | None]] = {}
        self._current: dict[str, Definition] = {}
        self._versions: dict[tuple[str, str], Definition | None] = {}
        self._looked_at: Millis | None = None
        self.problems: list[ConfigurationError] = []
        dialect = sqlite if is_embedded else postgresql
        self._keep = dialect.insert(table).on_conflict_do_nothing()

    # ── Files ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def current(self) -> Mapping[str, Definition]:
        """The scenarios that new runs follow, by name."""
        now = self._clock.now()
        if self._looked_at is None or abs(now - self._looked_at) >= FRESH:
            self._looked_at = now
            self._read()
        return self._current

    def get(self, name: str) -> Definition:
        try:
            return self.current[name]
        except KeyError:
            known = ", ".join(sorted(self.current)) or "none"
            raise UnknownScenario(f"There is no scenario {name!r}; there are: {known}.") from None

    def file_of(self, definition: Definition) -> Path | None:
        """The file in which a scenario in force is written."""
        return next((path for path, (_, found) in self._files.items() if found is definition), None)

    def refresh(self) -> None:
        """Look at the files now."""
        self._looked_at = None

    def _read(self) -> None:
        stamps = {path: _stamp(path) for folder in self._folders for path in _paths(folder)}
        if {path: stamp for path, (stamp, _) in self._files.items()} == stamps:
            return
        self.problems = []
        self._files = {path: (stamp, self._read_one(path, stamp)) for path, stamp in stamps.items()}
        chosen: dict[str, Definition] = {}
        for _, definition in self._files.values():  # the user's files come first
            if definition and definition.scenario not in chosen:
                chosen[definition.scenario] = definition
        try:
            check_together(list(chosen.values()))
        except ConfigurationError as error:
            self._complain(error)
            return
        self._current = chosen

    def _read_one(self, path: Path, stamp: Stamp) -> Definition | None:
        before = self._files.get(path)
        if before and before[0] == stamp and before[1]:
            return before[1]
        try:
            return read_file(path)
        except ConfigurationError as error:
            self._complain(error)
            return before[1] if before else None

    def _complain(self, error: ConfigurationError) -> None:
        self.problems.append(error)
        log.error(f"{error} The scenario is left out, or stays as it was.")

    # ── Versions ──────────────────────────────────────────────────────────────────────────────────────────────────

    def keep(self, connection: Connection, definition: Definition) -> None:
        """Store this version, since a run is about to follow it."""
        row = {"name": definition.scenario, "version": definition.version, "body": definition.body}
        connection.execute(self._keep, {**row, "created_at": self._clock.now()})

    def version(self, connection: Connection, name: str, version: str) -> Definition:
        current = self.current.get(name)
        if current is not None and current.version == version:
            return current
        if (name, version) not in self._versions:
            query = select(table).where(table.c.name == name, table.c.version == version)
            row = connection.execute(query).first()
            if row is None:
                raise UnknownScenario(f"Version {version} of the scenario {name!r} is not stored.")
            self._versions[name, version] = _restored(row)
        found = self._versions[name, version]
        if found is None:
            raise UnknownScenario(
                f"Version {version} of the scenario {name!r} can't be used here: see the log."
            )
        return found

    def listening(self, connection: Connection, event_types: set[str]) -> list[Definition]:
        """Every version, current or stored, to whose runs one of these types matters."""
        stored = connection.execute(select(table.c.name, table.c.version)).all()
        versions = {(one.scenario, one.version): one for one in self.current.values()}
        for name, version in stored:
            if (name, version) not in versions:
                try:
                    versions[name, version] = self.version(connection, name, version)
                except UnknownScenario:
                    continue  # said when it was read; its runs wait for a process that can use it
        return [one for one in versions.values() if event_types & one.listens_to]


def _restored(row: Any) -> Definition | None:
    try:
        return Definition.model_validate(row.body)
    except ValidationError as error:
        log.error(
            f"version {row.version} of the scenario {row.name} can't be used in this process: {describe(error)}"
        )
        return None


def _paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES) if folder.is_dir() else []


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return found.st_mtime_ns, found.st_size
