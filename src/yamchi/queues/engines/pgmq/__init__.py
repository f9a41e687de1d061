"""The PostgreSQL engine: jobs are messages of pgmq, which any program can write and read with plain SQL.

`schema` says what lies where. Here is who runs which statement, on which connection, and who is told.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson
import structlog
from psycopg import errors as pg

from yamchi.clock import Clock, Millis, to_millis
from yamchi.errors import ConfigurationError, EngineUnavailable, YamchiError
from yamchi.perloop import PerLoop
from yamchi.queues.engines.base import (
    WORKER_TTL,
    Capabilities,
    Event,
    Exchange,
    LetterPage,
    Minute,
    Page,
    RateLimit,
    WorkerInfo,
)
from yamchi.queues.engines.batching import AddBatcher
from yamchi.queues.engines.pgmq import adding, leasing, letters, management, ratelimits, working
from yamchi.queues.engines.pgmq.bounds import Place, ScanResult
from yamchi.queues.engines.pgmq.connections import Connection, Connections, Refused
from yamchi.queues.engines.pgmq.events import EventSender, events_of, read_events
from yamchi.queues.engines.pgmq.listening import WAKE, Listener
from yamchi.queues.engines.pgmq.rows import STEP
from yamchi.queues.engines.pgmq.scanning import Scanner
from yamchi.queues.engines.pgmq.schema import install, prepare_queue
from yamchi.queues.engines.pgmq.tables import Tables
from yamchi.queues.engines.pgmq.within import caller_connection
from yamchi.queues.engines.pgmq.working import ExchangeResult
from yamchi.queues.forking import MadeAnew
from yamchi.queues.records import Claim, DeadLetter, JobRecord, NewJob, State, Verdict, last_kept
from yamchi.storage.sweeping import FULL_SWEEP_FACTOR

log = structlog.get_logger("yamchi.pgmq")

T = TypeVar("T")
Work = Callable[[Connection, Tables], Awaitable[T]]

TIDY_SECONDS, TIDY_AFTER_ADDS = 10.0, 5_000
"""Ids of messages that others took are looked for this often in a worker (seconds), and after so many adds."""

MANY_JOBS = 50_000
"""So many jobs are not counted again at once: their count is used again for twenty times as long as it took."""


@dataclass(slots=True)
class _Loop:
    """What belongs to one event loop."""

    listener: Listener
    batcher: AddBatcher
    counted: dict[str, tuple[float, dict[State, int]]] = field(default_factory=dict)


class PgmqEngine(MadeAnew):
    """Jobs in PostgreSQL."""

    type = "pgmq"
    can = Capabilities()

    def __init__(self, url: str, clock: Clock) -> None:
        self._connections = Connections(url)
        self._clock = clock
        self._sender = EventSender(self._connections)
        self._loops = PerLoop(
            lambda: _Loop(Listener(self._connections, self._note_put), AddBatcher(self._write))
        )
        self._tables: dict[str, Tables] = {}
        self._queues: dict[str, str] = {}
        self._incomplete: set[str] = set()
        self._tidied: dict[str, tuple[float, int]] = {}
        self._added: dict[str, int] = {}
        self._keep: dict[str, int] = {}
        self._scanner = Scanner(self._do, clock)

    async def open(self) -> None:
        try:
            await self._connections.refuse_shared_sessions()
            async with self._connections.lend() as db:
                await install(db, self._connections)
        except Refused as error:
            # At the start this is a mistake in the settings; later on it may be a password that is being changed.
            raise ConfigurationError(str(error)) from error

    async def close(self) -> None:
        here, _ = self._loops.take_all()
        if here:
            await here.batcher.empty()
            await here.listener.close()
        await self._scanner.close()
        await self._connections.close()
        self._tables.clear()

    async def ping(self) -> None:
        async with self._connections.lend() as db:
            await db.execute("SELECT 1")

    # ── Producing ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def add(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        return await self._loops.get().batcher.add(queue, jobs)

    async def ready(self, queue: str) -> None:
        await self._tables_of(queue)

    async def add_within(self, connection: Any, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        """Add jobs in a transaction of the caller's."""
        tables = await self._tables_of(queue)
        return await adding.add(await caller_connection(connection, self._connections.host), tables, jobs)

    async def _write(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        created = await self._do(queue, lambda db, tables: adding.add_all(db, tables, jobs))
        self._note_past(queue, jobs)
        self._added[queue] = self._added.get(queue, 0) + len(jobs)
        if self._added[queue] >= TIDY_AFTER_ADDS and self._may_tidy(queue):
            self._added[queue] = 0
            await self._tidy(queue)
        return created

    def _note_past(self, queue: str, jobs: Sequence[NewJob]) -> None:
        """Jobs whose moment has passed lie below the bounds."""
        now = self._clock.now()
        for job in jobs:
            if job.run_at is not None and job.run_at <= now:
                self._scanner.of(queue).bounds.lower((job.run_at - job.priority * STEP) * 1_000)

    async def fire(self, schedule: str, moment: Millis, queue: str, job: NewJob) -> bool:
        return await self._do(queue, lambda db, tables: adding.fire(db, tables, schedule, moment, job))

    async def begin_schedule(self, schedule: str, moment: Millis) -> None:
        statement = "INSERT INTO yamchi.schedules VALUES (%(name)s, %(moment)s) ON CONFLICT DO NOTHING"
        await self._execute(statement, name=schedule, moment=moment)

    async def last_fired(self, schedule: str) -> Millis | None:
        rows = await self._ask("SELECT fired_at FROM yamchi.schedules WHERE name = %(name)s", name=schedule)
        return rows[0][0] if rows else None

    # ── Working ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def exchange(
        self, queue: str, verdicts: Sequence[Verdict], want: int, lease: Millis, worker: str
    ) -> Exchange:
        position = self._scanner.of(queue)

        async def work(db: Connection, tables: Tables) -> ExchangeResult:
            wakeup = self._wakeup(tables)
            was_woken = wakeup.is_set()
            wakeup.clear()
            return await working.exchange(
                db, tables, verdicts, want, lease, worker, position, was_woken=was_woken
            )

        if want:
            self._loops.get().listener.start()
            self._scanner.scan(queue)
        result = await self._do(queue, work)
        settled = [verdict for verdict in verdicts if verdict.claim.key in result.settled]
        got = Exchange([verdict.claim.job.id for verdict in settled], result.claims)
        with self._beside(queue, is_spared=bool(settled or result.claims)):
            if result.seen and result.seen.unprepared is not None:
                got.claims += await self._take_up(queue, result.seen, want - len(got.claims), lease, worker)
            if settled:
                if keep := last_kept(settled, "completed"):
                    self._keep[queue] = keep
                await self._sender.send(events_of(queue, settled))
        return got

    async def _take_up(
        self, queue: str, seen: ScanResult, want: int, lease: Millis, worker: str
    ) -> list[Claim]:
        """Prepare the messages that a claim has seen and could not have, and claim of them."""
        position = self._scanner.of(queue)

        async def work(db: Connection, tables: Tables) -> list[Claim]:
            for risen in await adding.prepare(db, tables, seen.unprepared, seen.at):
                position.bounds.lower(risen)
            if seen.unprepared is not None:
                position.bounds.lower(seen.unprepared)
            if not want:
                return []
            return (await working.exchange(db, tables, [], want, lease, worker, position)).claims

        return await self._do(queue, work)

    @contextmanager
    def _beside(self, queue: str, *, is_spared: bool) -> Iterator[None]:
        """Work beside that of jobs. What fails here is only logged where jobs are to be spared: they are claimed or settled."""
        try:
            yield
        except YamchiError as error:
            if not is_spared:
                raise
            log.warning(f"[{queue}:pgmq] {error}")

    async def renew(self, queue: str, claims: Sequence[Claim], lease: Millis) -> list[str]:
        return await self._do(queue, lambda db, tables: leasing.renew(db, tables, claims, lease))

    async def recover(self, queue: str) -> list[tuple[JobRecord, bool]]:
        position = self._scanner.of(queue)

        with self._beside(queue, is_spared=True):
            if queue in self._incomplete:
                self._incomplete.discard(queue)
                self._tables.pop(queue, None)  # they are prepared again
            await self._do(queue, lambda db, tables: leasing.adopt(db, tables, position))
        stalled = await self._do(queue, lambda db, tables: leasing.recover(db, tables, position))
        with self._beside(queue, is_spared=bool(stalled)):
            if stalled:
                await self._sender.send(Event("stalled", queue, job.id, job.name) for job, _ in stalled)
            await self._trim(queue)
            if self._may_tidy(queue, TIDY_SECONDS):
                await self._tidy(queue)
        return stalled

    async def _trim(self, queue: str) -> None:
        """Drop the completed jobs that exchanges which met left over."""
        position = self._scanner.of(queue)
        if (keep := self._keep.pop(queue, None)) is not None:
            await self._do(queue, lambda db, tables: working.trim(db, tables, "completed", keep, position))

    async def wake(self, queue: str, timeout: Millis) -> None:
        tables = await self._tables_of(queue)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout / 1000):
                await self._loops.get().listener.ready()
                await self._scanner.wait(queue, self._wakeup(tables))

    async def reserve(self, queue: str, limit: RateLimit, keys: Sequence[str]) -> list[Millis]:
        async with self._connections.lend() as db:
            return await ratelimits.reserve(db, queue, limit, keys)

    async def refund(self, queue: str, limit: RateLimit, key: str, count: int) -> None:
        async with self._connections.lend() as db:
            await ratelimits.refund(db, queue, limit, key, count)

    async def cancelled(self, queue: str, claims: Sequence[Claim]) -> list[str]:
        return await self._do(queue, lambda db, tables: management.cancelled(db, tables, claims))

    async def heartbeat(self, worker: WorkerInfo | str) -> None:
        async with self._connections.lend() as db:
            await management.heartbeat(db, worker, self._clock.now() - 10 * to_millis(WORKER_TTL))

    # ── Managing ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, queue: str, job_id: str) -> JobRecord | None:
        return await self._do(queue, lambda db, tables: management.get(db, tables, job_id))

    async def page(self, queue: str, state: State | None, search: str, offset: int, limit: int) -> Page:
        return await self._do(
            queue, lambda db, tables: management.page(db, tables, state, search, offset, limit)
        )

    async def counts(self, queue: str) -> dict[State, int]:
        here, now = self._loops.get(), asyncio.get_running_loop().time
        good_until, known = here.counted.get(queue, (0.0, {}))
        if now() < good_until:
            return dict(known)
        began = now()
        counted = await self._do(queue, management.counts)
        if sum(counted.values()) > MANY_JOBS:
            here.counted[queue] = (now() + 20 * (now() - began), counted)
        return counted

    async def history(self, queue: str, minutes: int) -> list[Minute]:
        async with self._connections.lend() as db:
            return await management.history(db, queue, minutes)

    async def queues(self) -> list[str]:
        return [row[0] for row in await self._ask("SELECT name FROM yamchi.queues ORDER BY name")]

    async def workers(self) -> list[WorkerInfo]:
        async with self._connections.lend() as db:
            return await management.workers(db, self._clock.now() - to_millis(WORKER_TTL))

    async def remove(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        return await self._do(queue, lambda db, tables: management.remove(db, tables, job_ids))

    async def cancel(self, queue: str, job_ids: Sequence[str]) -> dict[str, State]:
        position = self._scanner.of(queue)
        return await self._do(queue, lambda db, tables: management.cancel(db, tables, job_ids, position))

    async def promote(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        promoted = await self._do(queue, lambda db, tables: management.promote(db, tables, job_ids))
        await self._wake_up(queue)
        return promoted

    async def retry(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        return await self._do(queue, lambda db, tables: management.retry(db, tables, job_ids))

    async def update(self, queue: str, job_id: str, payload: bytes) -> bool:
        return await self._do(queue, lambda db, tables: management.update(db, tables, job_id, payload))

    async def progress(self, claim: Claim, value: bytes) -> None:
        job = claim.job

        if await self._do(job.queue, lambda db, tables: management.progress(db, tables, claim, value)):
            await self._sender.send([Event("progress", job.queue, job.id, job.name, value)])

    async def log(self, queue: str, job_id: str, lines: Sequence[str]) -> None:
        async with self._connections.lend() as db:
            await management.log(db, queue, job_id, lines)

    async def pause(self, queue: str) -> None:
        await self._tables_of(queue)
        await self._execute("UPDATE yamchi.queues SET paused = true WHERE name = %(queue)s", queue=queue)

    async def resume(self, queue: str) -> None:
        await self._tables_of(queue)
        await self._execute("UPDATE yamchi.queues SET paused = false WHERE name = %(queue)s", queue=queue)
        await self._wake_up(queue)

    async def paused(self, queue: str) -> bool:
        rows = await self._ask("SELECT paused FROM yamchi.queues WHERE name = %(queue)s", queue=queue)
        return bool(rows and rows[0][0])

    async def clean(self, queue: str, state: State, older_than: Millis, limit: int) -> int:
        return await self._do(
            queue, lambda db, tables: management.clean(db, tables, state, older_than, limit)
        )

    # ── Dead letters ──────────────────────────────────────────────────────────────────────────────────────────────

    async def letters(self, queue: str, search: str, offset: int, limit: int) -> LetterPage:
        return await self._do(queue, lambda db, tables: letters.letters(db, tables, search, offset, limit))

    async def letter(self, queue: str, letter_id: str) -> DeadLetter | None:
        return await self._do(queue, lambda db, tables: letters.letter(db, tables, letter_id))

    async def replay(self, queue: str, jobs: Mapping[str, NewJob]) -> list[str]:
        return await self._do(queue, lambda db, tables: letters.replay(db, tables, jobs))

    async def purge(self, queue: str, letter_ids: Sequence[str] | None) -> int:
        return await self._do(queue, lambda db, tables: letters.purge(db, tables, letter_ids))

    # ── Events ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def events(self) -> AsyncIterator[Event]:
        listener = self._loops.get().listener
        await listener.ready()
        with listener.reading() as inbox:
            while True:
                await self._sender.announce()
                async for event, left_out in read_events(inbox, self._sender.origin, timeout=10):
                    yield await self._filled(event) if left_out else event

    async def _filled(self, event: Event) -> Event:
        """An event whose value was too long to be told: it is looked up."""
        job = await self.get(event.queue, event.job_id)
        if job is None:
            return event
        value = job.result if event.type == "completed" else orjson.dumps(job.failed_reason)
        return Event(event.type, event.queue, event.job_id, event.name, value)

    # ── How statements are run ────────────────────────────────────────────────────────────────────────────────────

    def _note_put(self, table: str | None, places: Sequence[Place]) -> None:
        if table is None:
            self._scanner.scan_soon()
        elif queue := self._queues.get(table):
            self._scanner.go_back(queue, places)

    def _wakeup(self, tables: Tables) -> asyncio.Event:
        return self._loops.get().listener.wakeups[f"q_{tables.name}"]

    async def _wake_up(self, queue: str) -> None:
        tables = await self._tables_of(queue)
        await self._execute(
            "SELECT pg_notify(%(channel)s, %(table)s)", channel=WAKE, table=f"q_{tables.name}"
        )

    async def _tables_of(self, queue: str) -> Tables:
        tables = self._tables.get(queue)
        if tables is None:
            async with self._connections.lend() as db:
                tables, is_complete = await prepare_queue(db, queue)
            self._tables[queue], self._queues[f"q_{tables.name}"] = tables, queue
            if not is_complete:
                self._incomplete.add(queue)
        return tables

    async def _do(self, queue: str, work: Work[T]) -> T:
        tables = await self._tables_of(queue)
        try:
            async with self._connections.lend() as db:
                return await work(db, tables)
        except EngineUnavailable as error:
            if isinstance(error.__cause__, pg.UndefinedTable):
                self._tables.pop(queue, None)  # somebody dropped the queue
                self._scanner.forget(queue)
            raise

    async def _ask(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        async with self._connections.lend() as db:
            return await management.ask(db, statement, values)

    async def _execute(self, statement: str, **values: Any) -> None:
        async with self._connections.lend() as db:
            await db.execute(statement, values)

    def _may_tidy(self, queue: str, after: float = 0.0) -> bool:
        return asyncio.get_running_loop().time() > self._tidied.get(queue, (0.0, 0))[0] + after

    async def _tidy(self, queue: str) -> None:
        now = asyncio.get_running_loop().time
        began, (_, page) = now(), self._tidied.get(queue, (0.0, 0))
        reached = await self._do(queue, lambda db, tables: adding.tidy(db, tables, page))
        self._tidied[queue] = (now() + FULL_SWEEP_FACTOR * (now() - began), reached)
