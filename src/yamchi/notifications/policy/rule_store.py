"""The rules in force: those of the file, then those of the table. Both may change while Yamchi runs.

If a changed file can't be used, the former rules stay in force, and the log says why.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import structlog
from pydantic import ValidationError
from sqlalchemy import Connection, delete, func, select

from yamchi.clock import Clock, Millis
from yamchi.errors import ConfigurationError, UnknownJob
from yamchi.notifications.policy.rules import Rule, read_rules
from yamchi.notifications.tables import rules
from yamchi.queues.handlers import describe
from yamchi.storage.caching import CachedRead
from yamchi.storage.database import Database

log = structlog.get_logger("yamchi.rules")

MAX_AGE: Millis = 1_000
"""How old the view of the table may be."""


class RuleStore:
    """Rules by event type. The first file that exists counts; a change of it is noticed by its time of change."""

    def __init__(self, database: Database, files: Sequence[Path], clock: Clock) -> None:
        self._database = database
        self._files = files
        self._clock = clock
        self._from_file: list[Rule] = []
        self._file_time = -1.0
        self._problem: str | None = None
        self._from_table: dict[str, Rule] = {}
        self._unusable: set[str] = set()
        self._view = CachedRead(self._read, clock, MAX_AGE)
        changed = ("position", "body", "is_enabled", "updated_at")
        self._save = database.upsert(rules, ["rule_id"], changed)

    async def of(self, event_type: str) -> list[Rule]:
        """The rules for events of a type."""
        await self._view.refresh()
        return [rule for rule in (*self._from_file, *self._from_table.values()) if rule.on == event_type]

    async def list(self) -> dict[str, list[dict[str, Any]]]:
        """All rules, by where they come from; those of the table with their ids."""
        await self._view.refresh()
        return {
            "file": [rule.model_dump(exclude_none=True) for rule in self._from_file],
            "table": [
                {"rule_id": rule_id, **rule.model_dump(exclude_none=True)}
                for rule_id, rule in self._from_table.items()
            ],
        }

    async def problem(self) -> str | None:
        """What is wrong with the file, if anything is: events are refused where it was so from the start."""
        try:
            await self._view.refresh()
        except ConfigurationError as error:
            return str(error)
        return self._problem

    async def put(self, rule: Rule, rule_id: str | None = None) -> str:
        """Add a rule, or replace one; its id."""
        rule_id = rule_id or str(uuid4())
        named = rule if rule.name else rule.model_copy(update={"name": rule_id})

        def save(connection: Connection) -> None:
            last = connection.execute(select(func.coalesce(func.max(rules.c.position), 0))).scalar_one()
            row = {"rule_id": rule_id, "position": last + 1, "body": named.model_dump(mode="json")}
            connection.execute(self._save, {**row, "is_enabled": True, "updated_at": self._clock.now()})

        await self._database.write(save)
        self._view.invalidate()
        return rule_id

    async def remove(self, rule_id: str) -> None:
        gone = delete(rules).where(rules.c.rule_id == rule_id)
        if not await self._database.execute(gone):
            raise UnknownJob(
                f"There is no rule {rule_id!r} in the table; rules of the file are changed there."
            )
        self._view.invalidate()

    async def _read(self) -> None:
        self._read_file()
        query = select(rules.c.rule_id, rules.c.body).where(rules.c.is_enabled).order_by(rules.c.position)
        rows = await self._database.rows(query)
        self._from_table = {row.rule_id: rule for row in rows if (rule := self._read_row(row))}

    def _read_row(self, row: Any) -> Rule | None:
        """A rule of the table; one that can't be used, perhaps of another version, must not stop all events."""
        try:
            rule = Rule.model_validate(row.body)
        except ValidationError as error:
            if row.rule_id not in self._unusable:
                log.error(f"The rule {row.rule_id} of the table can't be used: {describe(error)}.")
            self._unusable.add(row.rule_id)
            return None
        self._unusable.discard(row.rule_id)
        return rule

    def _read_file(self) -> None:
        path = next((path for path in self._files if path.exists()), None)
        changed = path.stat().st_mtime if path else 0.0
        if changed == self._file_time:
            return
        try:
            self._from_file = read_rules(path) if path else []
            self._problem = None
        except ConfigurationError as error:
            if self._file_time < 0:
                raise
            self._problem = f"{error} The former rules stay in force."
            log.error(self._problem)
        self._file_time = changed
