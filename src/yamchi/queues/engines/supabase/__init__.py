"""The Supabase engine: pgmq over REST carries the jobs between machines, a database beside it keeps the rest.

PostgREST offers six functions: no delay that can be changed, no headers, no lease that can be renewed, no counting. What they
lack the SQLite engine has, so this engine is one, on a file of its own, whose jobs come and go over Supabase:

- `add` writes a job down and sends its payload; it is claimed only where its message arrives.
- A worker that has free slots reads as many messages and takes them in. A message stays hidden on Supabase for `HOLD`; it is
  deleted when its job has been run, or sooner if that takes long: from then on this database answers for the job.
- A message that nobody here sent is a job of the queue's default name, with the id in `job_id` or its number.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from yamchi.clock import Clock, Millis
from yamchi.errors import YamchiError
from yamchi.queues.engines import statestore
from yamchi.queues.engines.base import Capabilities, Exchange
from yamchi.queues.engines.names import pgmq_name
from yamchi.queues.engines.sqlite import management
from yamchi.queues.engines.supabase import messages
from yamchi.queues.engines.supabase.reading import Message
from yamchi.queues.engines.supabase.rest import Rest, TooLarge, Uncountable
from yamchi.queues.records import NewJob, State, Verdict

log = structlog.get_logger("yamchi.supabase")

HOLD: Millis = 600_000
"""For how long a message that was read is hidden from other machines."""

SEND_ON_AFTER: Millis = 2_000
"""A job that is due here and not claimed for this long goes to Supabase, where others may have time for it."""

SEND_AGAIN_AFTER: Millis = 30_000
"""What was on its way to Supabase for this long was cut short, and is sent again."""

MAINTENANCE_SECONDS = 1.0
AT_ONCE, BATCH = 8, 500


class SupabaseEngine(statestore.StateStoreEngine):
    """Jobs in the queues of a Supabase project, their state in a database beside it."""

    broker = "supabase"
    type = "pgmq"
    can = Capabilities(priorities=False)

    def __init__(
        self, project: str, key: str, path: Path, clock: Clock, *, interval: Millis = 5_000, at_most: int = 10
    ) -> None:
        super().__init__(path, clock)
        self._rest = Rest(project, key)
        self._interval = interval
        self._at_most = at_most
        self._maintenance: asyncio.Task[None] | None = None
        self._one_by_one: dict[str, Millis] = {}

    async def open(self) -> None:
        if self._maintenance:
            return
        await super().open()
        await self._file.write(messages.prepare)
        self._maintenance = asyncio.create_task(self._maintain(), name="supabase-maintenance")

    async def close(self) -> None:
        if self._maintenance is None:
            return
        self._maintenance.cancel()
        with suppress(asyncio.CancelledError):
            await self._maintenance
        self._maintenance = None
        await self._rest.close()
        await super().close()

    async def ping(self) -> None:
        await self._rest.ping()

    async def how_to_make(self, queues: Sequence[str]) -> str | None:
        """The SQL that makes those of these queues which the project has not; None if it has them all."""
        wanted = [f"{pgmq_name(queue)}{suffix}" for queue in queues for suffix in ("", "_dlq")]
        absent = [name for name in wanted if not await self._rest.has(name)]
        if not absent:
            return None
        calls = ", ".join(f"pgmq.create('{name}')" for name in absent)
        return f"Supabase lacks {len(absent)} queues; in its SQL editor run: SELECT {calls};"

    # ── Producing ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def add(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        now = self._clock.now()
        created, due = await self._file.write(lambda db: messages.add(db, queue, jobs, now))
        if due:
            try:
                await self._send(queue, due)
            except YamchiError:
                refused = [one.id for one in due]
                await self._file.write(lambda db: messages.withdraw(db, queue, refused))
                raise
        self._wake_up(queue)
        return created

    async def _send(self, queue: str, jobs: Sequence[messages.Outgoing]) -> None:
        numbers = await self._rest.send(queue, [job.payload for job in jobs])
        known = {job.id: number for job, number in zip(jobs, numbers, strict=True)}
        now = self._clock.now()
        await self._file.write(lambda db: messages.confirm(db, queue, known, now))

    # ── Working ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def exchange(
        self, queue: str, verdicts: Sequence[Verdict], want: int, lease: Millis, worker: str
    ) -> Exchange:
        got = await super().exchange(queue, verdicts, want, lease, worker)
        if got.settled:
            await self._try(lambda: self._delete_of(queue, got.settled))
        short = want - len(got.claims)
        if short > 0 and not await self.paused(queue):
            reading = self._ingest(queue, min(short, self._at_most))
            # What was settled stands: an error now would only have it settled again.
            await (self._try(lambda: reading) if got.settled or got.claims else reading)
            got.claims += (await super().exchange(queue, [], short, lease, worker)).claims
        return got

    async def _ingest(self, queue: str, limit: int) -> None:
        now = self._clock.now()
        try:
            arrived = await self._read(queue, 1 if now < self._one_by_one.get(queue, 0) else limit)
        except TooLarge:
            self._one_by_one[queue] = now + HOLD  # so that one that is huge keeps none of the others
            raise
        if not arrived:
            return
        known = await self._file.write(lambda db: messages.ingest(db, queue, arrived, now))
        if known:
            await self._try(lambda: self._delete([(queue, number) for number in known]))

    async def _read(self, queue: str, limit: int) -> list[Message]:
        """Messages; those before one that nobody can read, or else that one, so that it keeps none behind it."""
        try:
            return await self._rest.read(queue, HOLD // 1000, limit)
        except Uncountable:
            return await (self._read(queue, limit // 2) if limit > 1 else self._rest.pop(queue))

    async def wake(self, queue: str, timeout: Millis) -> None:
        """Supabase calls nobody: an idle worker comes back after the interval, or when something is due here."""
        await super().wake(queue, min(timeout, self._interval))

    # ── Managing ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def counts(self, queue: str) -> dict[State, int]:
        """What this database knows of: messages of others count when they have arrived here."""
        return await self._file.read(lambda db: statestore.counts(db, queue))

    async def remove(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        removed = await self._file.write(lambda db: statestore.remove(db, queue, job_ids))
        await self._try(lambda: self._delete_of(queue, removed))
        return removed

    async def cancel(self, queue: str, job_ids: Sequence[str]) -> dict[str, State]:
        now = self._clock.now()
        outcome = await self._file.write(lambda db: statestore.cancel(db, queue, job_ids, now))
        ended = [job_id for job_id, state in outcome.items() if state == "cancelled"]
        await self._try(lambda: self._delete_of(queue, ended))
        return outcome

    # ── Maintenance ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _maintain(self) -> None:
        """Once a second: delete what is done, send what became due or was cut short, and dead letters."""
        while True:
            await asyncio.sleep(MAINTENANCE_SECONDS)
            try:
                await self._try(self._maintain_once)
            except Exception:
                log.exception("[supabase] maintenance failed; it is tried again in a second")

    async def _maintain_once(self) -> None:
        now = self._clock.now()
        await self._delete(await self._file.read(lambda db: messages.done(db, now - HOLD // 2, BATCH)))
        for queue in await self._file.read(management.queues):
            await self._unless_refused(self._send_on(queue, now))
            await self._unless_refused(self._send_letters(queue, now))

    async def _send_on(self, queue: str, now: Millis) -> None:
        due = await self._file.write(
            lambda db: messages.send_on(db, queue, now, SEND_ON_AFTER, SEND_AGAIN_AFTER, BATCH)
        )
        if due:
            await self._send(queue, due)

    async def _send_letters(self, queue: str, now: Millis) -> None:
        for letter in await self._file.read(lambda db: statestore.unsent_letters(db, queue, now, BATCH)):
            await self._rest.send(letter.queue, [letter.body], suffix="_dlq")
            await self._file.write(lambda db, letter=letter: statestore.letters_sent(db, [letter]))  # type: ignore[misc]

    async def _delete_of(self, queue: str, job_ids: Sequence[str]) -> None:
        await self._delete(await self._file.read(lambda db: messages.numbers_of(db, queue, job_ids)))

    async def _delete(self, done: Sequence[tuple[str, int]]) -> None:
        for begin in range(0, len(done), AT_ONCE):
            group = done[begin : begin + AT_ONCE]
            await asyncio.gather(*(self._rest.delete(queue, number) for queue, number in group))
            await self._file.write(lambda db, group=group: messages.deleted(db, group))  # type: ignore[misc]

    async def _try(self, work: Callable[[], Awaitable[None]]) -> None:
        """What fails here is done again by `_maintain`; it holds up nobody."""
        try:
            await work()
        except YamchiError as error:
            log.warning(f"[supabase] {error}")
