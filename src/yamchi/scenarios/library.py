"""The scenarios in force, from files, and every version that a run may still follow, from the table.

The user's folder `scenarios/` stands before what ships; a file of the same scenario's name replaces it. Files may change
while Yamchi runs: runs that begin from then on follow the new version. A file that is changed into one that can't be used
changes nothing, and the log says why; at a start its scenario is left out, and so is what ships under that name.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError
from sqlalchemy import Column, Connection, Select, select

from yamchi.clock import Clock, Millis
from yamchi.errors import ConfigurationError, UnknownJob
from yamchi.queues.handlers import describe
from yamchi.scenarios.definition import DEFAULT_QUEUE, Definition
from yamchi.scenarios.reading import find_cycle, named_in, paths_in, read_file
from yamchi.scenarios.tables import scenario_definitions as table
from yamchi.storage.upsert import insert_into

log = structlog.get_logger("yamchi.scenarios")

_VERSIONS = select(table.c.name, table.c.version)

FRESH: Millis = 1_000
"""How old the view of the files may be."""

Stamp = tuple[int, int]


class UnknownScenario(UnknownJob):
    """There is no scenario of this name, or no such version of it."""


@dataclass(frozen=True, slots=True)
class File:
    """What a file says, or said before it was changed into one that can't be used, and what is wrong with it."""

    stamp: Stamp
    definition: Definition | None
    problem: ConfigurationError | None = None


@dataclass(frozen=True, slots=True)
class Listening:
    """The scenarios that runs begin with, by name; and every version that is concerned, those in force first."""

    in_force: Mapping[str, Definition]
    versions: Sequence[Definition]


class Library:
    """Definitions by name and by version."""

    def __init__(self, folders: Sequence[Path], clock: Clock, *, is_embedded: bool) -> None:
        self._folders = folders
        self._clock = clock
        self._files: dict[Path, File] = {}
        self._current: dict[str, Definition] = {}
        self._versions: dict[tuple[str, str], Definition | None] = {}
        self._looked_at: Millis | None = None
        self._doubles: list[ConfigurationError] = []
        self._cycles: list[ConfigurationError] = []
        self._keep = insert_into(table, is_sqlite=is_embedded).on_conflict_do_nothing()

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

    @property
    def problems(self) -> list[ConfigurationError]:
        """What is wrong with the files, as they were last read."""
        return [file.problem for file in self._files.values() if file.problem] + self._doubles + self._cycles

    @property
    def queues(self) -> set[str]:
        """Where jobs of these scenarios may lie, those of shipped ones too that the user's files replace."""
        current = self.current.values()
        return {DEFAULT_QUEUE, *(one.queue for one in current), *(one.queue for one in self._readable())}

    def _readable(self) -> list[Definition]:
        return [file.definition for file in self._files.values() if file.definition]

    def file_of(self, definition: Definition) -> Path | None:
        """The file in which a scenario in force is written."""
        return next(
            (
                path
                for path, file in self._files.items()
                if file.definition is definition and not file.problem
            ),
            None,
        )

    def refresh(self) -> None:
        """Look at the files now."""
        self._looked_at = None

    def _read(self) -> None:
        stamps = {path: _stamp(path) for folder in self._folders for path in paths_in(folder)}
        if {path: file.stamp for path, file in self._files.items()} == stamps:
            return
        self._files = {path: self._read_one(path, stamp) for path, stamp in stamps.items()}
        self._doubles = list(self._find_doubles())
        self._current = self._without_cycles(self._chosen())

    def _read_one(self, path: Path, stamp: Stamp) -> File:
        before = self._files.get(path)
        if before and before.stamp == stamp:
            return before
        try:
            return File(stamp, read_file(path))
        except ConfigurationError as error:
            _complain(error)
            return File(stamp, before.definition if before else None, error)

    def _find_doubles(self) -> Iterator[ConfigurationError]:
        """Two files of one folder that name the same scenario: nobody would look for the reason why one does nothing."""
        first: dict[tuple[Path, str], Path] = {}
        for path, file in self._files.items():
            if file.definition is None:
                continue
            name = file.definition.scenario
            used = first.setdefault((path.parent, name), path)
            if used != path:
                error = ConfigurationError(
                    f"{path} names the scenario {name!r} as {used.name} does, which is used."
                )
                _complain(error)
                yield error

    def _chosen(self) -> dict[str, Definition]:
        """The first of each name: the user's files come first. One that never could be used leaves its name as it was."""
        chosen: dict[str, Definition | None] = {}
        for path, file in self._files.items():
            if file.definition:
                chosen.setdefault(file.definition.scenario, file.definition)
            else:
                name = named_in(path)
                chosen.setdefault(name, self._current.get(name))
        return {name: definition for name, definition in chosen.items() if definition}

    def _without_cycles(self, chosen: dict[str, Definition]) -> dict[str, Definition]:
        """Scenarios that start each other stay as they were before they did, or are left out; the others are not concerned."""
        self._cycles = []
        while cycle := find_cycle(chosen.values()):
            way = " → ".join(one.scenario for one in cycle)
            error = ConfigurationError(f"Scenarios start each other, which is a cycle: {way}.")
            self._cycles.append(error)
            _complain(error)
            for one in cycle[1:]:
                before = self._current.get(one.scenario)
                if before is None or before is one:
                    del chosen[one.scenario]
                else:
                    chosen[one.scenario] = before
        return chosen

    # ── Versions ──────────────────────────────────────────────────────────────────────────────────────────────────

    def keep(self, connection: Connection, definition: Definition) -> None:
        """Store this version, since a run is about to follow it. Until that is committed, nobody forgets it."""
        known = _stored(definition.scenario, definition.version, table.c.version)
        if connection.execute(known.with_for_update(read=True, key_share=True)).first() is None:
            row = {"name": definition.scenario, "version": definition.version, "body": definition.body}
            connection.execute(self._keep, {**row, "created_at": self._clock.now()})

    def stops(self, connection: Connection, name: str, version: str) -> Sequence[str]:
        """The events that stop runs of a version, also of one that can't be used here."""
        body = connection.execute(_stored(name, version, table.c.body)).scalar()
        found = body.get("stop_on") if isinstance(body, dict) else None
        return found if isinstance(found, list) else []

    def version(self, connection: Connection, name: str, version: str) -> Definition:
        current = self.current.get(name)
        if current is not None and current.version == version:
            return current
        found = self._stored_version(connection, name, version)
        if found is None:
            why = "can't be used here: see the log" if (name, version) in self._versions else "is not stored"
            raise UnknownScenario(f"Version {version} of the scenario {name!r} {why}.")
        return found

    def _stored_version(self, connection: Connection, name: str, version: str) -> Definition | None:
        """None if it can't be used here, or is no longer there."""
        if (name, version) not in self._versions:
            row = connection.execute(_stored(name, version, *table.c)).first()
            if row is None:
                return None
            self._versions[name, version] = _restored(row)
        return self._versions[name, version]

    def once(self, connection: Connection) -> set[str]:
        """The scenarios that run once for a key. Of one whose file is gone or can't be used, what its versions said counts."""
        current = self.current
        stored = [
            row for row in connection.execute(select(table.c.name, table.c.body)) if row.name not in current
        ]
        said = {row.name for row in stored if isinstance(row.body, dict) and row.body.get("again") == "never"}
        return said | {name for name, one in current.items() if one.again == "never"}

    def listening(self, connection: Connection, event_types: set[str]) -> Listening:
        """To whom one of these types matters, as it is now: files may change while their events are being stored."""
        in_force = self.current
        versions: dict[tuple[str, str], Definition | None] = {
            (one.scenario, one.version): one for one in in_force.values()
        }
        for name, version in connection.execute(_VERSIONS):
            if (name, version) not in versions:
                versions[name, version] = self._stored_version(connection, name, version)
        # One that can't be used was complained of when it was read; its runs wait for a process that can.
        heard = [one for one in versions.values() if one and not event_types.isdisjoint(one.listens_to)]
        return Listening(in_force, heard)


def _stored(name: str, version: str, *columns: Column[Any]) -> Select[Any]:
    return select(*columns).where(table.c.name == name, table.c.version == version)


def _complain(error: ConfigurationError) -> None:
    log.error(f"{error} The scenario is left out, or stays as it was.")


def _restored(row: Any) -> Definition | None:
    try:
        return Definition.model_validate(row.body)
    except ValidationError as error:
        log.error(
            f"version {row.version} of the scenario {row.name} can't be used in this process: {describe(error)}"
        )
        return None


def _stamp(path: Path) -> Stamp:
    """What changes when the file does; what can't be looked at is reported by whoever reads it."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
