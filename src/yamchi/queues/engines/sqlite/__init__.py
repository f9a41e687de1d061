"""The embedded engine: durable, one machine, several processes on one file.

The SQL is in `working` and `management`; here is who runs it, and how a worker learns that there is work: at once when
the job was added in this process, within `POLL_SECONDS` when another process did it (SQLite tells cheaply that the file changed).
"""

import asyncio
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from yamchi.clock import Clock, Millis, to_millis
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
from yamchi.queues.engines.sqlite import adding, eventlog, management, ratelimits, working
from yamchi.queues.engines.sqlite.eventlog import LISTENER_TTL
from yamchi.queues.engines.sqlite.schema import MIGRATIONS
from yamchi.queues.engines.sqlite.settling import Settlement
from yamchi.queues.engines.sqlite.within import within
from yamchi.queues.engines.wakeups import Wakeup
from yamchi.queues.forking import MadeAnew
from yamchi.queues.records import Claim, DeadLetter, JobRecord, NewJob, State, Verdict
from yamchi.storage.sqlite import SqliteFile
from yamchi.storage.threads import in_own_thread

T = TypeVar("T")

POLL_SECONDS = 0.01
"""Seconds between two looks for commits of other processes, while a worker waits for jobs."""

EVENTS_POLL_SECONDS = 0.05
"""The same while events are only listened to: a worker whose slots are all taken should work, not look."""


class SqliteEngine(MadeAnew):
    """Jobs in one SQLite file."""

    type = "sqlite"
    can = Capabilities(overlaps=False)  # one thread writes

    def __init__(self, path: Path, clock: Clock) -> None:
        self._file = SqliteFile(path, MIGRATIONS)
        self._clock = clock
        self._origin = secrets.token_hex(6)
        self._claims = count()
        self._wakeups: dict[str, Wakeup] = defaultdict(Wakeup)
        self._add_batchers = PerLoop(lambda: AddBatcher(self._add_together))
        self._due: dict[str, Millis | None] = {}
        self._next_poll: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None
        self._waiting = self._listening = 0
        self._has_events = Wakeup()
        self._last_event = 0

    async def open(self) -> None:
        await in_own_thread(self._file.open)

    async def close(self) -> None:
        if self._next_poll:
            self._next_poll[1].cancel()
            self._next_poll = None
        await self._add_batchers.get().empty()
        await in_own_thread(self._file.close)

    async def ping(self) -> None:
        await self._file.read(lambda db: db.execute("SELECT 1").fetchone())

    # ── Producing ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def add(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        created = await self._add_batchers.get().add(queue, jobs)
        self._wake_up(queue)
        return created

    async def ready(self, queue: str) -> None:
        """The tables are there once it is open."""

    async def add_within(self, connection: Any, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        """Add jobs in a transaction of the caller's. Workers find them like those of other processes."""
        now = self._clock.now()
        return await within(connection, self._file.path, lambda db: adding.add(db, queue, jobs, now))

    async def _add_together(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        now = self._clock.now()
        return await self._file.write(lambda db: adding.add(db, queue, jobs, now))

    async def fire(self, schedule: str, moment: Millis, queue: str, job: NewJob) -> bool:
        now = self._clock.now()
        fired = await self._file.write(lambda db: adding.fire(db, schedule, moment, queue, job, now))
        self._wake_up(queue)
        return fired

    async def begin_schedule(self, schedule: str, moment: Millis) -> None:
        statement = "INSERT OR IGNORE INTO schedules VALUES (?, ?)"
        await self._file.write(lambda db: db.execute(statement, (schedule, moment)).rowcount)

    async def last_fired(self, schedule: str) -> Millis | None:
        statement = "SELECT fired_at FROM schedules WHERE name = ?"
        row = await self._file.read(lambda db: db.execute(statement, (schedule,)).fetchone())
        return row[0] if row else None

    # ── Working ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def exchange(
        self, queue: str, verdicts: Sequence[Verdict], want: int, lease: Millis, worker: str
    ) -> Exchange:
        token, now = self._new_token(), self._clock.now()
        self._wakeups[queue].clear()

        def op(db: working.Db) -> tuple[Exchange, Settlement | None, Millis | None]:
            got, outcome = working.exchange(db, queue, verdicts, want, lease, worker, token, now)
            if outcome and outcome.ended:
                self._write_events(db, outcome.events())
            due = working.next_due(db, queue) if len(got.claims) < want else None
            return got, outcome, due

        durable = self._must_be_durable(verdicts)
        got, outcome, self._due[queue] = await self._file.write(op, durable=durable)
        if outcome and outcome.woken:
            self._wake_up(queue)
        return got

    def _new_token(self) -> str:
        """The token of jobs that are claimed together."""
        return f"{self._origin}-{next(self._claims)}"

    def _must_be_durable(self, verdicts: Sequence[Verdict]) -> bool:
        """Whether an exchange must survive a power failure."""
        return True

    async def renew(self, queue: str, claims: Sequence[Claim], lease: Millis) -> list[str]:
        until = self._clock.now() + lease
        return await self._file.write(lambda db: working.renew(db, claims, until))

    async def recover(self, queue: str) -> list[tuple[JobRecord, bool]]:
        now = self._clock.now()

        def op(db: working.Db) -> list[tuple[JobRecord, bool]]:
            stalled, outcome = working.recover(db, queue, now)
            events = [Event("stalled", queue, job.id, job.name) for job, _ in stalled]
            if events:
                self._write_events(db, [*events, *outcome.events()])
            return stalled

        if not await self._file.read(lambda db: working.any_overdue(db, queue, now)):
            return []
        stalled = await self._file.write(op)
        self._wake_up(queue)
        return stalled

    async def wake(self, queue: str, timeout: Millis) -> None:
        due = self._due.get(queue)
        if due is not None:
            timeout = min(timeout, max(due - self._clock.now(), 0))
        self._waiting += 1
        self._poll_within(POLL_SECONDS)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout / 1000):
                    await self._wakeups[queue].wait()
        finally:
            self._waiting -= 1

    async def reserve(self, queue: str, limit: RateLimit, keys: Sequence[str]) -> list[Millis]:
        now = self._clock.now()
        return await self._file.write(lambda db: ratelimits.reserve(db, queue, limit, keys, now))

    async def refund(self, queue: str, limit: RateLimit, key: str, permits: int) -> None:
        await self._file.write(lambda db: ratelimits.refund(db, queue, limit, key, permits))

    async def cancelled(self, queue: str, claims: Sequence[Claim]) -> list[str]:
        return _among(claims, await self._file.read(lambda db: management.cancelled(db, queue)))

    async def heartbeat(self, worker: WorkerInfo | str) -> None:
        forget_before = self._clock.now() - 10 * to_millis(WORKER_TTL)
        await self._file.write(lambda db: management.heartbeat(db, worker, forget_before))

    # ── Managing ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, queue: str, job_id: str) -> JobRecord | None:
        return await self._file.read(lambda db: management.get(db, queue, job_id))

    async def page(self, queue: str, state: State | None, search: str, offset: int, limit: int) -> Page:
        return await self._file.read(lambda db: management.page(db, queue, state, search, offset, limit))

    async def counts(self, queue: str) -> dict[State, int]:
        return await self._file.read(lambda db: management.counts(db, queue))

    async def history(self, queue: str, minutes: int) -> list[Minute]:
        since = self._clock.now() - minutes * 60_000
        return await self._file.read(lambda db: management.history(db, queue, since))

    async def queues(self) -> list[str]:
        return await self._file.read(management.queues)

    async def workers(self) -> list[WorkerInfo]:
        since = self._clock.now() - to_millis(WORKER_TTL)
        return await self._file.read(lambda db: management.workers(db, since))

    async def remove(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        return await self._file.write(lambda db: management.remove(db, queue, job_ids))

    async def cancel(self, queue: str, job_ids: Sequence[str]) -> dict[str, State]:
        now = self._clock.now()
        return await self._file.write(lambda db: management.cancel(db, queue, job_ids, now))

    async def promote(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        return await self._change(queue, lambda db, now: management.promote(db, queue, job_ids, now))

    async def retry(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        return await self._change(queue, lambda db, now: management.retry(db, queue, job_ids, now))

    async def update(self, queue: str, job_id: str, payload: bytes) -> bool:
        return await self._file.write(lambda db: management.update(db, queue, job_id, payload))

    async def progress(self, claim: Claim, value: bytes) -> None:
        def op(db: working.Db) -> None:
            if management.progress(db, claim, value):
                self._write_events(
                    db, [Event("progress", claim.job.queue, claim.job.id, claim.job.name, value)]
                )

        await self._file.write(op, durable=False)  # after a power failure the job begins anew

    async def log(self, queue: str, job_id: str, lines: Sequence[str]) -> None:
        await self._file.write(lambda db: management.log(db, queue, job_id, lines))

    async def pause(self, queue: str) -> None:
        await self._file.write(lambda db: management.set_paused(db, queue, True))

    async def resume(self, queue: str) -> None:
        await self._file.write(lambda db: management.set_paused(db, queue, False))
        self._wake_up(queue)

    async def paused(self, queue: str) -> bool:
        return await self._file.read(lambda db: management.paused(db, queue))

    async def clean(self, queue: str, state: State, older_than: Millis, limit: int) -> int:
        before = self._clock.now() - older_than
        return await self._file.write(lambda db: management.clean(db, queue, state, before, limit))

    # ── Dead letters ──────────────────────────────────────────────────────────────────────────────────────────────

    async def letters(self, queue: str, search: str, offset: int, limit: int) -> LetterPage:
        return await self._file.read(lambda db: management.letters(db, queue, search, offset, limit))

    async def letter(self, queue: str, letter_id: str) -> DeadLetter | None:
        return await self._file.read(lambda db: management.letter(db, queue, letter_id))

    async def replay(self, queue: str, jobs: Mapping[str, NewJob]) -> list[str]:
        return await self._change(queue, lambda db, now: management.replay(db, queue, jobs, now))

    async def purge(self, queue: str, letter_ids: Sequence[str] | None) -> int:
        return await self._file.write(lambda db: management.purge(db, queue, letter_ids))

    # ── Events and wake-ups ───────────────────────────────────────────────────────────────────────────────────────

    async def events(self) -> AsyncIterator[Event]:
        last = await self._file.read(eventlog.last)
        announced = 0
        self._listening += 1
        try:
            while True:
                if (now := self._clock.now()) - announced > LISTENER_TTL / 2:
                    announced = now
                    await self._file.write(partial(eventlog.announce, origin=self._origin, now=now))
                self._poll_within(EVENTS_POLL_SECONDS)
                self._has_events.clear()
                rows = await self._file.read(partial(eventlog.after, last=last))
                for n, origin, body in rows:
                    last = n
                    if origin != self._origin:
                        for event in eventlog.decode(body):
                            yield event
                with suppress(TimeoutError):
                    async with asyncio.timeout(LISTENER_TTL / 2_000):
                        await self._has_events.wait()
        finally:
            self._listening -= 1

    def _write_events(self, db: working.Db, events: Iterable[Event]) -> None:
        eventlog.write(db, self._origin, events, self._clock.now())

    async def _change(self, queue: str, op: Callable[[working.Db, Millis], list[str]]) -> list[str]:
        now = self._clock.now()
        outcome = await self._file.write(lambda db: op(db, now))
        self._wake_up(queue)
        return outcome

    def _wake_up(self, queue: str) -> None:
        self._wakeups[queue].set()

    def _poll_within(self, seconds: float) -> None:
        """Use a timer, which costs less than a task: a waiting worker does little else."""
        loop = asyncio.get_running_loop()
        if self._next_poll and not self._next_poll[0].is_closed():
            where, timer = self._next_poll
            if where is not loop or timer.when() <= loop.time() + seconds:
                return  # it polls, or another loop of this process does
            timer.cancel()
        self._next_poll = loop, loop.call_later(seconds, self._poll)

    def _poll(self) -> None:
        self._next_poll = None  # should this fail, the next who waits begins again
        if self._file.changed_elsewhere():
            self._file.peek(self._look)
        if self._waiting or self._listening:
            self._poll_within(POLL_SECONDS if self._waiting else EVENTS_POLL_SECONDS)

    def _look(self, db: working.Db) -> None:
        """Wake only workers that have something to do: commits of other queues must not wake idle ones."""
        if (last := eventlog.last(db)) != self._last_event:
            self._last_event = last
            self._has_events.set()
        for queue, due, is_waiting in working.work_of(db, self._wakeups):
            if is_waiting or due != self._due.get(queue):
                self._due[queue] = due
                self._wake_up(queue)


def _among(claims: Sequence[Claim], job_ids: Iterable[str]) -> list[str]:
    ours = {held.job.id for held in claims}
    return [job_id for job_id in job_ids if job_id in ours]
