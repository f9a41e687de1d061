"""Moving runs to the version that is in force, and showing first what that would change."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, asc, func, select

from yamchi.clock import Clock, Millis
from yamchi.scenarios import moves, store
from yamchi.scenarios.definition import Definition
from yamchi.scenarios.facts import FactReader, Fetched
from yamchi.scenarios.flow import Run
from yamchi.scenarios.library import Library
from yamchi.scenarios.outbox import Entry
from yamchi.scenarios.scenario_engine import ScenarioEngine
from yamchi.scenarios.tables import scenario_runs as runs
from yamchi.storage.database import Database

AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Migration:
    """What a migration changes for one run: where it stands and when that is due, before and after."""

    run_id: str
    key: str
    version: str
    step: str | None
    due: Millis | None
    new_step: str | None
    new_due: Millis | None
    status: str


class Migrator:
    """Takes running runs of older versions to the one in force, page by page."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        library: Library,
        facts_reader: FactReader,
        engine: ScenarioEngine,
    ) -> None:
        self._database = database
        self._clock = clock
        self._library = library
        self._facts = facts_reader
        self._engine = engine

    async def count(self, scenario: str) -> int:
        """How many runs follow an older version."""
        query = select(func.count()).select_from(runs).where(*self._old(self._library.get(scenario)))
        return int(await self._database.value(query))

    async def preview(self, scenario: str, *, key: str | None = None, limit: int = 50) -> list[Migration]:
        """What would change, for the first so many runs. Changes nothing."""
        definition = self._library.get(scenario)
        found = []
        for run_id in await self._page(definition, "", key, limit):
            fetched = await self._fetch(run_id)
            look = partial(self._look, definition=definition, run_id=run_id, fetched=fetched)
            if one := await self._database.read(look):
                found.append(one)
        return found

    async def migrate(self, scenario: str, *, key: str | None = None) -> int:
        """Move them; how many were moved."""
        definition, moved, last = self._library.get(scenario), 0, ""
        while page := await self._page(definition, last, key, AT_ONCE):
            for run_id in page:
                fetched = await self._fetch(run_id)
                move = partial(self._move, definition=definition, run_id=run_id, fetched=fetched)
                entries = await self._database.write(move)
                if entries is not None:
                    moved += 1
                    await self._engine.follow(entries)
            last = page[-1]
        return moved

    def _old(self, definition: Definition) -> Sequence[Any]:
        return (
            runs.c.scenario == definition.scenario,
            runs.c.status == "running",
            runs.c.version != definition.version,
        )

    async def _page(self, definition: Definition, after: str, key: str | None, limit: int) -> Sequence[str]:
        query = select(runs.c.run_id).where(*self._old(definition), runs.c.run_id > after)
        if key is not None:
            query = query.where(runs.c.key == key)
        query = query.order_by(asc(runs.c.run_id)).limit(limit)
        return await self._database.column(query)

    async def _fetch(self, run_id: str) -> Fetched:
        row = await self._database.read(lambda connection: store.read(connection, run_id))
        return Fetched() if row is None else await self._facts.fetch(row.entity_kind, row.entity_id)

    def _look(
        self, connection: Connection, definition: Definition, run_id: str, fetched: Fetched
    ) -> Migration | None:
        row = store.read(connection, run_id)
        if row is None or row.status != "running":
            return None
        run = store.restored(row)
        after, _ = self._moved(connection, definition, run, fetched)
        was, new = run.armed, after.armed
        return Migration(
            run.id,
            run.key,
            run.version,
            was.step if was else None,
            was.due if was else None,
            new.step if new else None,
            new.due if new else None,
            after.status,
        )

    def _moved(
        self, connection: Connection, definition: Definition, run: Run, fetched: Fetched
    ) -> moves.Moved:
        old = self._library.version(connection, run.scenario, run.version)
        facts = self._facts.of(connection, definition, run, fetched)
        return moves.migrated(old, definition, run, facts, self._clock.now())

    def _move(
        self, connection: Connection, definition: Definition, run_id: str, fetched: Fetched
    ) -> list[Entry] | None:
        row: Row[Any] | None = store.locked(connection, run_id)
        now = self._clock.now()
        if row is None or row.status != "running" or row.version == definition.version:
            return None
        if store.is_held(row, now):
            return None  # a message is leaving at this moment: it is moved the next time
        run = store.restored(row)
        after, changes = self._moved(connection, definition, run, fetched)
        self._library.keep(connection, definition)
        facts = self._facts.of(connection, definition, run, fetched)
        return self._engine.saver.save(connection, definition, row, after, changes, facts, now)
