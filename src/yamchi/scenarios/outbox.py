"""What a transaction of the engine leads to outside: jobs to queue, change or drop, keys to write or delete, events to emit.

Written in the transaction, done right after it, and forgotten when done. What a crash left undone, the sweeper does: ids
are derived, so doing a thing twice is doing it once.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import structlog
from pydantic import ValidationError
from sqlalchemy import Connection, asc, delete, insert, select

from yamchi.clock import Clock, Millis, as_datetime
from yamchi.errors import EngineError, YamchiError
from yamchi.faultpoints import fault_point
from yamchi.notifications.schemas.event import Event
from yamchi.queues.job import Job
from yamchi.queues.queue import Queue
from yamchi.scenarios import store
from yamchi.scenarios.store import StepId
from yamchi.scenarios.tables import scenario_outbox as table
from yamchi.storage.database import Database
from yamchi.storage.keys import Keys

log = structlog.get_logger("yamchi.scenarios")

Kind = Literal["job", "data", "drop", "event"]

SWEEP_AFTER: Millis = 10_000
"""What has been there for so long was left undone."""

SWEPT_AT_ONCE = 500


GiveUp = Callable[[str, str], Awaitable[None]]


async def _say_nothing(job_id: str, reason: str) -> None:
    """Until somebody wants to know."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing to do, as its row says it."""

    number: int
    kind: Kind
    job_id: str | None
    body: dict[str, Any]


class Outbox:
    """The table `scenario_outbox`."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        queue: Callable[[str], Queue],
        keys: Keys,
        emit: Callable[[Event], Awaitable[Any]],
    ) -> None:
        self._database = database
        self._clock = clock
        self._queue = queue
        self._keys = keys
        self._emit = emit
        self.give_up: GiveUp = _say_nothing
        """Told of a step whose job can never be queued."""

    # ── In a transaction ──────────────────────────────────────────────────────────────────────────────────────────

    def put(
        self, connection: Connection, kind: Kind, body: dict[str, Any], job_id: str | None = None
    ) -> Entry:
        row = {"kind": kind, "job_id": job_id, "body": body, "created_at": self._clock.now()}
        number = connection.execute(insert(table).values(row).returning(table.c.number)).scalar_one()
        return Entry(number, kind, job_id, body)

    def withdraw(self, connection: Connection, job_id: str) -> None:
        """A job that was not queued yet need not be."""
        connection.execute(delete(table).where(table.c.job_id == job_id, table.c.kind == "job"))

    # ── After it ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def follow(self, entries: Sequence[Entry]) -> None:
        """Do these now. What can't be done now is the sweeper's, and no error of whoever asked."""
        done = []
        for entry in entries:
            try:
                await self._do(entry)
            except EngineError as error:
                log.warning(
                    "a job or event of a scenario can't be queued now; trying again soon", error=str(error)
                )
                continue
            except (YamchiError, ValidationError) as error:
                log.error(
                    "a job or event of a scenario can never be queued", job=entry.job_id, error=str(error)
                )
                if entry.kind == "job" and entry.job_id:
                    await self.give_up(entry.job_id, f"Its job can't be queued: {error}")
            done.append(entry.number)
        fault_point("scenario.queued")
        if done:
            gone = delete(table).where(table.c.number.in_(done)).returning(table.c.number)
            try:
                left = set(done) - await self._database.write(lambda c: set(c.execute(gone).scalars()))
                await self._take_back([one for one in entries if one.number in left])
            except EngineError as error:
                log.warning(
                    "the outbox of scenarios can't forget what was queued; trying again", error=str(error)
                )

    async def _take_back(self, entries: Sequence[Entry]) -> None:
        """Jobs whose entry was withdrawn while they were being queued: at that moment the run was stopped or moved, or they were done."""
        for entry in entries:
            if entry.kind != "job" or entry.job_id is None:
                continue
            state = await self._state(entry.job_id)
            if state in (None, "cancelled"):
                await self._drop(entry.job_id, {**entry.body, "is_own": False})
            elif state not in ("armed", "running"):
                await self.forget_key(entry.body["key"], entry.job_id)

    async def sweep(self) -> int:
        """Do what was left undone; how much there was."""
        before = self._clock.now() - SWEEP_AFTER
        query = select(table.c.number, table.c.kind, table.c.job_id, table.c.body)
        query = query.where(table.c.created_at <= before).order_by(asc(table.c.number)).limit(SWEPT_AT_ONCE)
        rows = await self._database.rows(query)
        await self.follow([Entry(*row) for row in rows])
        return len(rows)

    async def _do(self, entry: Entry) -> None:
        body = entry.body
        match entry.kind:
            case "job":
                assert entry.job_id is not None
                await self._add(entry.job_id, body)
            case "data":
                assert entry.job_id is not None
                await self._reach(entry.job_id, body["queue"], lambda job: job.update(body["data"]))
            case "drop":
                assert entry.job_id is not None
                await self._drop(entry.job_id, body)
            case "event":
                await self._emit(Event.model_validate(body))

    async def _add(self, job_id: str, body: dict[str, Any]) -> None:
        """A job that is due at once may be done by now, and the key the next one's."""
        run_at = None if body["run_at"] is None else as_datetime(body["run_at"])
        await self._queue(body["queue"]).add(body["data"], name=body["name"], id=job_id, run_at=run_at)
        fault_point("scenario.job_added")
        if body["key"] and await self._state(job_id) in ("armed", "running"):
            await self._keys.set(body["key"], job_id, timedelta(milliseconds=body["ttl"]))

    async def _state(self, job_id: str) -> str | None:
        """What has become of a job's step; None if nobody knows it any more."""
        id = StepId.read(job_id)
        row = None if id is None else await self._database.read(partial(store.step_row, id=id))
        return None if row is None else row.state

    async def _drop(self, job_id: str, body: dict[str, Any]) -> None:
        await self.forget_key(body["key"], job_id)
        if not body["is_own"]:  # else it is the job at hand, which ends by itself
            await self._reach(job_id, body["queue"], lambda job: job.remove())

    async def _reach(self, job_id: str, queue: str, act: Callable[[Job[Any]], Awaitable[object]]) -> None:
        """Change or remove a job that waits. One that is running looks for itself at what is so now, and one that is gone need not."""
        try:
            await act(await self._queue(queue).job(job_id))
        except EngineError:
            raise
        except YamchiError as error:
            log.debug("a job can't be changed: it is running or gone", job=job_id, error=str(error))

    async def forget_key(self, key: str | None, job_id: str) -> None:
        """Delete a key if it still names this job."""
        if key:
            await self._keys.delete(key, job_id)
