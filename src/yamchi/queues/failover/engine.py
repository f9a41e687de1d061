"""The engine contract over a broker and its spool. Every method is written out, so that mypy sees what is missing.

What is in the spool is part of the queue: while the broker is in use, looking and acting reach both. While it is away
they reach what is in the spool; a pause is remembered for the broker.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress

import structlog

from yamchi.clock import Millis
from yamchi.errors import EngineError, EngineUnavailable
from yamchi.queues.engines.base import (
    Engine,
    Event,
    Exchange,
    LetterPage,
    Minute,
    Page,
    RateLimit,
    WorkerInfo,
)
from yamchi.queues.engines.wakeups import Wakeup
from yamchi.queues.failover.moving import Mover, Owns
from yamchi.queues.failover.pauses import Pauses
from yamchi.queues.failover.rates import Rates
from yamchi.queues.failover.sides import OnSwitch, Sides
from yamchi.queues.failover.spool import Spool
from yamchi.queues.records import Claim, DeadLetter, JobRecord, NewJob, State, Verdict

log = structlog.get_logger("yamchi.failover")


class FailoverEngine:
    """The broker, or the spool in its place."""

    def __init__(self, primary: Engine, spool: Spool, on_switch: OnSwitch, owns: Owns) -> None:
        self.can = primary.can
        self._primary = primary
        self._spool = spool
        self._owns = owns
        self._sides = Sides(primary, spool, on_switch)
        self._pauses = Pauses(self._sides)
        self._rates = Rates(self._sides)
        self._mover = Mover(self._sides, self._pauses, owns)
        self._moving: asyncio.Task[None] | None = None
        self._local: set[tuple[str, str]] = set()
        """Claims that came from the spool, by `_mark`."""
        self._fired: dict[str, Millis] = {}
        """When schedules last fired, as far as this process knows: the spool is not told while the broker is there."""

    @property
    def primary(self) -> Engine:
        """The broker itself."""
        return self._primary

    @property
    def type(self) -> str:
        return self._sides.current.type

    # ── Life ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        self._sides.close()  # its timer may be of an event loop that is gone
        await self._spool.open()
        try:
            await self._primary.open()
        except EngineUnavailable as error:
            self._sides.switch(to_primary=False, why=f"Error reading from queue: {error}")
        else:
            await self._begin()
        self._keep_moving()

    async def _begin(self) -> None:
        """The broker is there. What a crash left in the spool goes first: begin where the last process stopped."""
        if await self._mover.has_work():
            self._sides.switch(to_primary=False, why="what waits in the spool goes first")
        else:
            self._sides.switch(to_primary=True, why="it answers again; nothing waits in the spool")

    def _keep_moving(self) -> None:
        """The mover ends with the event loop it runs on, and goes on in the one after it."""
        if self._moving is None or self._moving.done():
            self._moving = asyncio.create_task(self._mover.run(), name="failover")

    async def close(self) -> None:
        if self._moving:
            self._moving.cancel()
            with suppress(asyncio.CancelledError):
                await self._moving
            self._moving = None
        self._sides.close()
        with suppress(EngineUnavailable):
            await self._primary.close()

    async def ping(self) -> None:
        await self._primary.ping()

    # ── Producing ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def add(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        return await self._sides.call(
            lambda engine: engine.add(queue, jobs),
            lambda spool: spool.add_doubtful(queue, jobs),
        )

    async def fire(self, schedule: str, moment: Millis, queue: str, job: NewJob) -> bool:
        """A moment that fired on one side has fired, though the other does not know of it."""
        if max(self._fired.get(schedule, -1), await self._spool.last_fired(schedule) or -1) >= moment:
            return False
        has_fired = await self._sides.call(
            lambda engine: engine.fire(schedule, moment, queue, job),
            lambda spool: spool.fire_doubtful(schedule, moment, queue, job),
        )
        self._fired[schedule] = moment
        return has_fired

    async def begin_schedule(self, schedule: str, moment: Millis) -> None:
        await self._sides.call(lambda engine: engine.begin_schedule(schedule, moment))

    async def last_fired(self, schedule: str) -> Millis | None:
        marks = [
            await self._sides.call(lambda engine: engine.last_fired(schedule)),
            await self._spool.last_fired(schedule),
            self._fired.get(schedule),
        ]
        last = max((mark for mark in marks if mark is not None), default=None)
        if last is not None:
            self._fired[schedule] = last
        return last

    # ── Working ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def exchange(
        self, queue: str, verdicts: Sequence[Verdict], want: int, lease: Millis, worker: str
    ) -> Exchange:
        """Each verdict goes where its job came from; one for a side that is in trouble has to be brought again."""
        self._pauses.watch(queue)
        self._keep_moving()
        ours = [verdict for verdict in verdicts if self._is_local(verdict.claim)]
        theirs = [verdict for verdict in verdicts if not self._is_local(verdict.claim)]
        got = Exchange()
        is_away = not self._sides.on_primary
        if not is_away:
            try:
                got = await self._primary.exchange(queue, theirs, want, lease, worker)
            except EngineUnavailable as error:
                if await self._sides.is_primary_there():
                    raise
                self._sides.switch(to_primary=False, why=f"Error reading from queue: {error}")
                is_away = True
        if is_away:
            got.unsettled.extend(theirs)
            await self._exchange_locally(queue, ours, want, lease, worker, got)
        elif ours:
            await self._settle_locally(queue, ours, lease, worker, got)
        return got

    async def _settle_locally(
        self, queue: str, verdicts: Sequence[Verdict], lease: Millis, worker: str, got: Exchange
    ) -> None:
        """A spool in trouble, as on a full disk, must not cost what the broker has just given out."""
        try:
            await self._exchange_locally(queue, verdicts, 0, lease, worker, got)
        except EngineError as error:
            log.warning("the spool could not settle jobs that ended; trying again", error=str(error))
            got.unsettled.extend(verdicts)

    async def _exchange_locally(
        self, queue: str, verdicts: Sequence[Verdict], want: int, lease: Millis, worker: str, got: Exchange
    ) -> None:
        local = await self._spool.exchange(queue, verdicts, want, lease, worker)
        settled = set(local.settled)
        self._local -= {_mark(verdict.claim) for verdict in verdicts if verdict.claim.job.id in settled}
        self._local.update(map(_mark, local.claims))
        got.settled.extend(local.settled)
        got.claims.extend(local.claims)

    def _is_local(self, claim: Claim) -> bool:
        return _mark(claim) in self._local

    def _apart(self, claims: Sequence[Claim]) -> tuple[list[Claim], list[Claim]]:
        """The claims that came from the spool, and those that came from the broker."""
        ours = [claim for claim in claims if self._is_local(claim)]
        return ours, [claim for claim in claims if not self._is_local(claim)]

    async def renew(self, queue: str, claims: Sequence[Claim], lease: Millis) -> list[str]:
        """A broker that is away can't say that a lease is lost, so it is taken to be held."""
        ours, theirs = self._apart(claims)
        held = await self._spool.renew(queue, ours, lease) if ours else []
        if theirs:
            try:
                held += await self._primary.renew(queue, theirs, lease)
            except EngineUnavailable:
                held += [claim.job.id for claim in theirs]
        return held

    async def recover(self, queue: str) -> list[tuple[JobRecord, bool]]:
        """A broker that is away is left for the next look: the switch is for `exchange`, and is said there."""
        stalled = await self._spool.recover(queue)
        if self._on_primary:
            with suppress(EngineUnavailable):
                stalled += await self._primary.recover(queue)
        return stalled

    async def wake(self, queue: str, timeout: Millis) -> None:
        switched = asyncio.create_task(self._sides.switched.wait())
        waking = asyncio.create_task(self._sides.current.wake(queue, timeout))
        try:
            done, _ = await asyncio.wait({switched, waking}, return_when=asyncio.FIRST_COMPLETED)
            if waking in done:
                await waking
        except EngineUnavailable as error:
            if not await self._sides.is_primary_there():
                self._sides.switch(to_primary=False, why=f"Error reading from queue: {error}")
        finally:
            switched.cancel()
            waking.cancel()
            await asyncio.gather(switched, waking, return_exceptions=True)

    async def reserve(self, queue: str, limit: RateLimit, keys: Sequence[str]) -> list[Millis]:
        return await self._rates.reserve(queue, limit, keys)

    async def refund(self, queue: str, limit: RateLimit, key: str, permits: int) -> None:
        await self._rates.refund(queue, limit, key, permits)

    async def cancelled(self, queue: str, claims: Sequence[Claim]) -> list[str]:
        ours, theirs = self._apart(claims)
        asked = await self._spool.cancelled(queue, ours) if ours else []
        return asked + await self._primary.cancelled(queue, theirs) if theirs and self._on_primary else asked

    async def heartbeat(self, worker: WorkerInfo | str) -> None:
        await self._sides.current.heartbeat(worker)

    async def progress(self, claim: Claim, value: bytes) -> None:
        """A job whose broker is away runs on, though nobody sees how far it has come."""
        engine = self._spool if self._is_local(claim) else self._primary
        try:
            await engine.progress(claim, value)
        except EngineUnavailable:
            if self._on_primary and await self._sides.is_primary_there():
                raise

    async def log(self, queue: str, job_id: str, lines: Sequence[str]) -> None:
        """To where the job is; a running one is where it came from."""
        if any(local_id == job_id for _, local_id in self._local):
            await self._spool.log(queue, job_id, lines)
        else:
            await self._sides.call(lambda engine: engine.log(queue, job_id, lines))

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _on_primary(self) -> bool:
        return self._sides.on_primary

    async def get(self, queue: str, job_id: str) -> JobRecord | None:
        local = await self._spool.get(queue, job_id)
        return local or await self._sides.call(lambda engine: engine.get(queue, job_id))

    async def page(self, queue: str, state: State | None, search: str, offset: int, limit: int) -> Page:
        local = await self._spool.page(queue, state, search, offset, limit)
        if not self._on_primary:
            return local
        rest = await self._primary.page(
            queue, state, search, max(offset - local.total, 0), limit - len(local.jobs)
        )
        return Page(local.jobs + rest.jobs, local.total + rest.total)

    async def counts(self, queue: str) -> dict[State, int]:
        local = await self._spool.counts(queue)
        if not self._on_primary:
            return local
        there = await self._sides.call(lambda engine: engine.counts(queue))
        return (
            {state: number + there[state] for state, number in local.items()} if self._on_primary else there
        )

    async def history(self, queue: str, minutes: int) -> list[Minute]:
        local = await self._spool.history(queue, minutes)
        if not self._on_primary:
            return local
        there = await self._sides.call(lambda engine: engine.history(queue, minutes))
        return _add_up([*local, *there]) if self._on_primary else there

    async def queues(self) -> list[str]:
        there = await self._sides.call(lambda engine: engine.queues())
        return sorted({*filter(self._owns, there), *filter(self._owns, await self._spool.queues())})

    async def workers(self) -> list[WorkerInfo]:
        """Those of both sides: another process of this machine may not have noticed yet that the broker is back."""
        there = await self._sides.call(lambda engine: engine.workers())
        seen = {worker.id: worker for worker in (*await self._spool.workers(), *there)}
        return list(seen.values())

    async def paused(self, queue: str) -> bool:
        return await self._pauses.is_paused(queue)

    # ── Acting ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def remove(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        local = await self._spool.remove(queue, job_ids)
        rest = self._rest(job_ids, local)
        return local + (await self._primary.remove(queue, rest) if rest else [])

    async def cancel(self, queue: str, job_ids: Sequence[str]) -> dict[str, State]:
        local = await self._spool.cancel(queue, job_ids)
        there = await self._primary.cancel(queue, job_ids) if self._on_primary else {}
        return there | local

    async def promote(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        local = await self._spool.promote(queue, job_ids)
        rest = self._rest(job_ids, local)
        return local + (await self._primary.promote(queue, rest) if rest else [])

    async def retry(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        local = await self._spool.retry(queue, job_ids)
        rest = self._rest(job_ids, local)
        return local + (await self._primary.retry(queue, rest) if rest else [])

    def _rest(self, ids: Sequence[str], done: Sequence[str]) -> list[str]:
        """What the broker has to be asked for, if it is there."""
        return [one for one in ids if one not in done] if self._on_primary else []

    async def update(self, queue: str, job_id: str, payload: bytes) -> bool:
        if await self._spool.update(queue, job_id, payload):
            return True
        return self._on_primary and await self._primary.update(queue, job_id, payload)

    async def pause(self, queue: str) -> None:
        await self._pauses.set(queue, True)

    async def resume(self, queue: str) -> None:
        await self._pauses.set(queue, False)

    async def clean(self, queue: str, state: State, older_than: Millis, limit: int) -> int:
        gone = await self._spool.clean(queue, state, older_than, limit)
        if not self._on_primary or gone >= limit:
            return gone
        return gone + await self._primary.clean(queue, state, older_than, limit - gone)

    # ── Dead letters ──────────────────────────────────────────────────────────────────────────────────────────────

    async def letters(self, queue: str, search: str, offset: int, limit: int) -> LetterPage:
        local = await self._spool.letters(queue, search, offset, limit)
        if not self._on_primary:
            return local
        rest = await self._primary.letters(
            queue, search, max(offset - local.total, 0), limit - len(local.letters)
        )
        return LetterPage(local.letters + rest.letters, local.total + rest.total)

    async def letter(self, queue: str, letter_id: str) -> DeadLetter | None:
        local = await self._spool.letter(queue, letter_id)
        return local or await self._sides.call(lambda engine: engine.letter(queue, letter_id))

    async def replay(self, queue: str, jobs: Mapping[str, NewJob]) -> list[str]:
        local = await self._spool.replay(queue, jobs)
        rest = {letter_id: jobs[letter_id] for letter_id in self._rest(list(jobs), local)}
        return local + (await self._primary.replay(queue, rest) if rest else [])

    async def purge(self, queue: str, letter_ids: Sequence[str] | None) -> int:
        gone = await self._spool.purge(queue, letter_ids)
        return gone + (await self._primary.purge(queue, letter_ids) if self._on_primary else 0)

    # ── Events ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def events(self) -> AsyncIterator[Event]:
        """Of the side in use. Those of the spool end when the broker is back: who follows them then begins anew there."""
        switched, events = self._sides.switched, self._sides.current.events()
        if not self._sides.on_primary:
            events = _until(switched, events)
        async for event in events:
            yield event


async def _until(switched: Wakeup, events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    ending = asyncio.ensure_future(switched.wait())
    try:
        while True:
            following = asyncio.ensure_future(anext(events, None))
            try:
                await asyncio.wait({ending, following}, return_when=asyncio.FIRST_COMPLETED)
                if not following.done() or (event := following.result()) is None:
                    return
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            yield event
    finally:
        ending.cancel()


def _add_up(minutes: Sequence[Minute]) -> list[Minute]:
    completed: dict[Millis, int] = defaultdict(int)
    failed: dict[Millis, int] = defaultdict(int)
    for minute in minutes:
        completed[minute.moment] += minute.completed
        failed[minute.moment] += minute.failed
    return [Minute(moment, completed[moment], failed[moment]) for moment in sorted(completed)]


def _mark(claim: Claim) -> tuple[str, str]:
    """Tells a claim from every other; jobs that were claimed together may share a token."""
    return claim.token, claim.job.id
