"""When the broker can't be reached, work goes on in a local spool; when it is back, the spool moves over, in order.

Which engine is in use is one word of state, `_on_primary`. It turns to False when a call fails and the broker does not
answer a ping; it turns back only when the spool is empty, so that nothing new overtakes what waited. Until then what is
in the spool is carried over in batches: claimed here, added there under its own id, and only then dropped here. A crash
at any point repeats a step that the ids make harmless. While one process carries a queue, nobody else takes from its
spool, so that what comes later is not begun before what comes earlier.
"""

import asyncio
import functools
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, cast

import structlog

from yamchi.clock import Millis
from yamchi.errors import EngineError, EngineUnavailable
from yamchi.queues.engines.base import Engine, Event, Exchange, LetterPage, Page, WorkerInfo
from yamchi.queues.job import Claim, DeadLetter, JobRecord, NewJob, State, Verdict
from yamchi.queues.patience import Patience

log = structlog.get_logger("yamchi.failover")

OnSwitch = Callable[[str, str], None]
Owns = Callable[[str], bool]

PROBE = 0.5
"""How often to look whether the broker is back, in seconds."""

PATIENCE = 5.0
"""How long an add may take before the broker counts as unreachable, in seconds."""

LOAD = 500
CARRY_LEASE: Millis = 30_000


class Spool(Engine, Protocol):
    """An engine that can hold jobs for another one."""

    async def take_pending(self, queue: str, want: int, lease: Millis, carrier: str) -> list[Claim]:
        """Claim jobs that wait, due or not, in order, to carry them elsewhere. For the time of the lease nobody else
        gets any of this queue, neither to carry nor to run."""

    async def spooled(self, carrier: str) -> list[str]:
        """Queues of which something waits here, or is on its way elsewhere in the hands of another carrier."""

    async def drop(self, queue: str, claims: Sequence[Claim]) -> None:
        """Forget jobs that have been carried elsewhere."""

    async def end_carry(self, queue: str, carrier: str) -> None:
        """What was taken and not dropped waits again, where it was, and others may go on."""


def with_failover(primary: Engine, spool: Spool, on_switch: OnSwitch, owns: Owns) -> Engine:
    """The primary engine, with the spool in its place while it can't be reached.

    One spool may serve several engines: each carries over the queues it owns, and leaves opening and closing
    of what they share to be done once.
    """
    return cast(Engine, _FailoverEngine(primary, spool, on_switch, owns))


class _FailoverEngine:
    """What is not said otherwise here is done by the engine in use."""

    def __init__(self, primary: Engine, spool: Spool, on_switch: OnSwitch, owns: Owns) -> None:
        self._primary = primary
        self._spool = spool
        self._on_switch = on_switch
        self._owns = owns
        self._on_primary = True
        self._local: set[tuple[str, str]] = set()
        self._switched = asyncio.Event()
        self._tender: asyncio.Task[None] | None = None
        self.can = primary.can
        self._name = f"failover-{secrets.token_hex(6)}"
        self._patience = Patience(PATIENCE)

    def __getattr__(self, name: str) -> Any:
        if not hasattr(self._primary, name):
            raise AttributeError(name)
        call = self.__dict__[name] = functools.partial(self._try, name)
        return call

    @property
    def type(self) -> str:
        return self._current.type

    @property
    def _current(self) -> Engine:
        return self._primary if self._on_primary else self._spool

    # ── Life ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        self._patience.close()  # its timer may be of an event loop that is gone
        await self._spool.open()
        # What a crash left in the spool goes first: begin where the last process stopped.
        self._on_primary = not await self._spooled_queues()
        try:
            await self._primary.open()
        except EngineUnavailable as error:
            self._switch(to_primary=False, why=str(error))
        if self._tender is None:
            self._tender = asyncio.create_task(self._tend(), name="failover")

    async def close(self) -> None:
        if self._tender:
            self._tender.cancel()
            with suppress(asyncio.CancelledError):
                await self._tender
            self._tender = None
        self._patience.close()
        with suppress(EngineUnavailable):
            await self._primary.close()

    async def ping(self) -> None:
        await self._primary.ping()

    # ── Switching ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _try(self, name: str, *arguments: Any) -> Any:
        """On the engine in use; a call that the broker did not answer is repeated where it can be done."""
        if self._on_primary:
            try:
                return await self._patience.wait_for(getattr(self._primary, name)(*arguments))
            except (EngineUnavailable, TimeoutError) as error:
                if await self._still_there():
                    return await getattr(self._primary, name)(*arguments)
                self._switch(to_primary=False, why=str(error))
        return await getattr(self._spool, name)(*arguments)

    async def _still_there(self) -> bool:
        """One lost connection is not an outage."""
        try:
            await self._patience.wait_for(self._primary.ping())
        except (EngineUnavailable, TimeoutError):
            return False
        return True

    def _switch(self, *, to_primary: bool, why: str) -> None:
        if self._on_primary == to_primary:
            return
        before = self._current.type
        self._on_primary = to_primary
        log.warning(f"queues switched from {before} to {self._current.type}: {why}")
        self._on_switch(before, self._current.type)
        self._switched.set()
        self._switched = asyncio.Event()

    async def _tend(self) -> None:
        """Carry the spool over and switch back as soon as the broker answers; look for stragglers ever after."""
        while True:
            await asyncio.sleep(PROBE)
            try:
                queues = await self._spooled_queues()
                if (queues or not self._on_primary) and await self._is_back():
                    await self._carry_over(queues)
            except EngineError as error:
                log.debug("the spool could not be moved yet", error=str(error))
            except Exception:
                log.exception("the spool could not be moved; trying again")

    async def _is_back(self) -> bool:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._primary.open()
                await self._primary.ping()
        except (EngineUnavailable, TimeoutError):
            return False
        return True

    async def _spooled_queues(self) -> list[str]:
        """One look, whatever the number of queues: it is made twice a second, for ever."""
        return [queue for queue in await self._spool.spooled(self._name) if self._owns(queue)]

    async def _carry_over(self, queues: Sequence[str]) -> None:
        """Move these queues, and go back to the broker if that leaves the spool empty."""
        try:
            carried = [await self._carry_queue(queue) for queue in queues]
            if not self._on_primary and not await self._spooled_queues():
                self._switch(to_primary=True, why=f"it answers again; {sum(carried)} jobs moved over")
        finally:
            for queue in queues:
                await self._spool.end_carry(queue, self._name)

    async def _carry_queue(self, queue: str) -> int:
        carried = 0
        while claims := await self._spool.take_pending(queue, LOAD, CARRY_LEASE, self._name):
            await self._primary.add(queue, [_as_it_was(claim.job) for claim in claims])
            await self._spool.drop(queue, claims)
            carried += len(claims)
        return carried

    # ── Working ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def exchange(
        self, queue: str, verdicts: Sequence[Verdict], want: int, lease: Millis, worker: str
    ) -> Exchange:
        """Each verdict goes where its job came from; one for a broker that is away has to be brought again."""
        ours = [verdict for verdict in verdicts if _mark(verdict.claim) in self._local]
        theirs = [verdict for verdict in verdicts if _mark(verdict.claim) not in self._local]
        got = Exchange()
        if self._on_primary:
            try:
                got = await self._primary.exchange(queue, theirs, want, lease, worker)
            except EngineUnavailable as error:
                if await self._still_there():
                    raise
                self._switch(to_primary=False, why=str(error))
        if not self._on_primary:
            got.unsettled.extend(theirs)
        if ours or not self._on_primary:
            await self._exchange_locally(queue, ours, 0 if self._on_primary else want, lease, worker, got)
        return got

    async def _exchange_locally(
        self, queue: str, verdicts: Sequence[Verdict], want: int, lease: Millis, worker: str, got: Exchange
    ) -> None:
        local = await self._spool.exchange(queue, verdicts, want, lease, worker)
        settled = set(local.settled)
        self._local -= {_mark(verdict.claim) for verdict in verdicts if verdict.claim.job.id in settled}
        self._local.update(map(_mark, local.claims))
        got.settled.extend(local.settled)
        got.claims.extend(local.claims)

    async def renew(self, queue: str, claims: Sequence[Claim], lease: Millis) -> list[str]:
        """A broker that is away can't say that a lease is lost, so it is taken to be held."""
        ours = [claim for claim in claims if _mark(claim) in self._local]
        theirs = [claim for claim in claims if _mark(claim) not in self._local]
        held = await self._spool.renew(queue, ours, lease) if ours else []
        if theirs:
            try:
                held += await self._primary.renew(queue, theirs, lease)
            except EngineUnavailable:
                held += [claim.job.id for claim in theirs]
        return held

    async def recover(self, queue: str) -> list[tuple[JobRecord, bool]]:
        stalled = await self._spool.recover(queue)
        return stalled + await self._primary.recover(queue) if self._on_primary else stalled

    async def wake(self, queue: str, timeout: Millis) -> None:
        switched = asyncio.create_task(self._switched.wait())
        waking = asyncio.create_task(self._current.wake(queue, timeout))
        try:
            done, _ = await asyncio.wait({switched, waking}, return_when=asyncio.FIRST_COMPLETED)
            if waking in done:
                await waking
        except EngineUnavailable as error:
            if not await self._still_there():
                self._switch(to_primary=False, why=str(error))
        finally:
            switched.cancel()
            waking.cancel()
            await asyncio.gather(switched, waking, return_exceptions=True)

    async def cancelled(self, queue: str, claims: Sequence[Claim]) -> list[str]:
        ours = [claim for claim in claims if _mark(claim) in self._local]
        theirs = [claim for claim in claims if _mark(claim) not in self._local]
        asked = await self._spool.cancelled(queue, ours) if ours else []
        return asked + await self._primary.cancelled(queue, theirs) if theirs and self._on_primary else asked

    async def heartbeat(self, worker: WorkerInfo | str) -> None:
        await self._current.heartbeat(worker)

    async def progress(self, claim: Claim, value: bytes) -> None:
        engine = self._spool if _mark(claim) in self._local else self._primary
        await engine.progress(claim, value)

    # ── Schedules ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def fire(self, schedule: str, moment: Millis, queue: str, job: NewJob) -> bool:
        """A moment that fired during an outage has fired, though the broker does not know of it."""
        if self._on_primary and (await self._spool.last_fired(schedule) or 0) >= moment:
            return False
        return cast(bool, await self._try("fire", schedule, moment, queue, job))

    async def last_fired(self, schedule: str) -> Millis | None:
        marks = [await self._spool.last_fired(schedule), await self._try("last_fired", schedule)]
        return max((mark for mark in marks if mark is not None), default=None)

    # ── Keeping: what is in the spool is part of the queue ────────────────────────────────────────────────────────

    async def get(self, queue: str, job_id: str) -> JobRecord | None:
        return await self._spool.get(queue, job_id) or await self._try("get", queue, job_id)

    async def queues(self) -> list[str]:
        there = cast(list[str], await self._try("queues"))
        return sorted({*there, *filter(self._owns, await self._spool.queues())})

    async def counts(self, queue: str) -> dict[State, int]:
        local = await self._spool.counts(queue)
        there = cast(dict[State, int], await self._try("counts", queue)) if self._on_primary else {}
        return {state: number + there.get(state, 0) for state, number in local.items()} if there else local

    async def page(self, queue: str, state: State | None, search: str, offset: int, limit: int) -> Page:
        local = await self._spool.page(queue, state, search, offset, limit)
        if not self._on_primary:
            return local
        rest = await self._primary.page(
            queue, state, search, max(offset - local.total, 0), limit - len(local.jobs)
        )
        return Page(local.jobs + rest.jobs, local.total + rest.total)

    async def letters(self, queue: str, search: str, offset: int, limit: int) -> LetterPage:
        local = await self._spool.letters(queue, search, offset, limit)
        if not self._on_primary:
            return local
        rest = await self._primary.letters(
            queue, search, max(offset - local.total, 0), limit - len(local.letters)
        )
        return LetterPage(local.letters + rest.letters, local.total + rest.total)

    async def letter(self, queue: str, letter_id: str) -> DeadLetter | None:
        return await self._spool.letter(queue, letter_id) or await self._try("letter", queue, letter_id)

    async def remove(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        return await self._on_both("remove", queue, job_ids)

    async def promote(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        return await self._on_both("promote", queue, job_ids)

    async def retry(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        return await self._on_both("retry", queue, job_ids)

    async def cancel(self, queue: str, job_ids: Sequence[str]) -> dict[str, State]:
        local = await self._spool.cancel(queue, job_ids)
        there = await self._primary.cancel(queue, job_ids) if self._on_primary else {}
        return there | local

    async def _on_both(self, name: str, queue: str, job_ids: Sequence[str]) -> list[str]:
        local = cast(list[str], await getattr(self._spool, name)(queue, job_ids))
        rest = [job_id for job_id in job_ids if job_id not in local]
        return local + (await getattr(self._primary, name)(queue, rest) if rest and self._on_primary else [])

    async def replay(self, queue: str, jobs: dict[str, NewJob]) -> list[str]:
        local = await self._spool.replay(queue, jobs)
        rest = {letter_id: job for letter_id, job in jobs.items() if letter_id not in local}
        return local + (await self._primary.replay(queue, rest) if rest and self._on_primary else [])

    async def purge(self, queue: str, letter_ids: Sequence[str] | None) -> int:
        gone = await self._spool.purge(queue, letter_ids)
        return gone + (await self._primary.purge(queue, letter_ids) if self._on_primary else 0)

    async def events(self) -> AsyncIterator[Event]:
        async for event in self._current.events():
            yield event


def _as_it_was(job: JobRecord) -> NewJob:
    return job.as_new(run_at=job.run_at if job.run_at > job.created_at else None)


def _mark(claim: Claim) -> tuple[str, str]:
    """Tells a claim from every other; jobs that were claimed together may share a token."""
    return claim.token, claim.job.id
