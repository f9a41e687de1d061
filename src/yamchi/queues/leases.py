"""Keeps the leases of running jobs alive, from a thread with an event loop of its own.

A handler that blocks the worker's event loop blocks nothing here, so it does not lose its job to another worker.
Engines are looked after side by side, so that one that does not answer costs the jobs of the others nothing.
The thread also says which jobs were lost or are to be cancelled, and registers the worker.
A job past its own timeout is no longer renewed: if even cancelling could not stop it, another worker may have it. While it
waits for a free child process, its timeout does not run.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import structlog

from yamchi.clock import Clock, Millis
from yamchi.errors import YamchiError
from yamchi.queues.engines.base import Engine, WorkerInfo, by_engine
from yamchi.queues.records import Claim
from yamchi.queues.services import Service
from yamchi.storage.threads import in_own_thread

log = structlog.get_logger("yamchi.leases")

Interruption = Literal["lost", "cancelled"]
Interrupt = Callable[[Sequence[str], Interruption], None]
HEARTBEAT: Millis = 5_000


@dataclass(slots=True)
class HeldClaims:
    """The claims a worker holds of one queue. Changed by the worker's thread, read by the keeper's."""

    name: str
    engine: Engine
    interrupt: Interrupt
    timeout: Millis | None = None
    """Of jobs that have none of their own."""
    claims: dict[str, Claim] = field(default_factory=dict)

    def snapshot(self) -> list[Claim]:
        return list(self.claims.copy().values())


class LeaseKeeper:
    """Renews every claim in `held` three times a lease."""

    def __init__(
        self, held: Sequence[HeldClaims], lease: Millis, clock: Clock, describe: Callable[[], WorkerInfo]
    ) -> None:
        self._held = held
        self._lease = lease
        self._clock = clock
        self._describe = describe
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, name="lease-keeper", daemon=True)

    def start(self, service: Service) -> None:
        """Begin; `service` is told when this fails."""
        self._service = service
        self._worker_loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        self._stop.set()
        await in_own_thread(self._thread.join)

    def _main(self) -> None:
        """Renew until stopped, whatever fails: without renewals every running job would also run elsewhere."""
        while not self._stop.is_set():
            try:
                asyncio.run(self._run())
            except BaseException as error:
                self._stop.wait(min(self._service.fail(error), self._lease // 3) / 1000)

    async def _run(self) -> None:
        """Each engine has a loop of its own here: one that is slow or away costs the others nothing."""
        self._service.begin()
        tasks = [asyncio.create_task(self._renew_on(*pair)) for pair in by_engine(self._held)]
        try:
            while not self._stop.is_set() and not any(task.done() for task in tasks):
                await asyncio.to_thread(self._stop.wait, self._tick)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        if not self._stop.is_set():
            raise next(one for one in outcomes if isinstance(one, BaseException))
        opened = [engine for engine, _ in by_engine(self._held) if _is_open(engine)]
        worker = self._describe().id
        await asyncio.gather(*(self._guard(engine, engine.heartbeat(worker)) for engine in opened))

    @property
    def _tick(self) -> float:
        """Seconds between two looks at the claims."""
        return min(1_000, self._lease // 3) / 1000

    async def _renew_on(self, engine: Engine, queues: Sequence[HeldClaims]) -> None:
        renewed_at = heartbeat_at = 0
        while True:
            if not _is_open(engine):
                await asyncio.sleep(self._tick)
                continue
            now = self._clock.now()
            is_due = _has_passed(renewed_at, self._lease // 3, now)
            renewed_at = now if is_due else renewed_at
            for queue in queues:
                if queue.claims:
                    await self._guard(engine, self._renew(queue, is_due))
            if _has_passed(heartbeat_at, HEARTBEAT, now):
                heartbeat_at = now
                await self._guard(engine, engine.heartbeat(self._describe()))
            await asyncio.sleep(self._tick)

    async def _guard(self, engine: Engine, work: Coroutine[Any, Any, None]) -> None:
        """Give up a call that takes longer than a lease: it would come too late, and the next one may be answered."""
        try:
            async with asyncio.timeout(self._lease / 1000):
                await work
        except TimeoutError:
            log.warning(f"leases on {engine.type} could not be renewed: no answer in time; trying again")
        except YamchiError as error:
            log.warning(f"leases on {engine.type} could not be renewed; trying again", error=str(error))
        except Exception:
            log.exception(f"leases on {engine.type} could not be renewed; trying again")

    async def _renew(self, queue: HeldClaims, is_due: bool) -> None:
        claims = queue.snapshot()
        if is_due:
            renewable = [claim for claim in claims if not self._is_overdue(queue, claim)]
            kept = set(await queue.engine.renew(queue.name, renewable, self._lease)) if renewable else set()
            lost = [claim.job.id for claim in renewable if claim.job.id not in kept]
            self._interrupt(queue, claims, lost, "lost")
        stopping = await queue.engine.cancelled(queue.name, claims)
        self._interrupt(queue, claims, stopping, "cancelled")

    def _is_overdue(self, queue: HeldClaims, claim: Claim) -> bool:
        own = claim.job.options.timeout
        timeout = queue.timeout if own is None else own
        if timeout is None or claim.is_waiting:
            return False
        began = (claim.job.started_at or 0) + claim.waited * 1000
        return self._clock.now() > began + timeout + self._lease

    def _interrupt(
        self, queue: HeldClaims, claims: Sequence[Claim], job_ids: Sequence[str], why: Interruption
    ) -> None:
        # A job settled while we were asking is neither lost nor to be interrupted.
        held = {claim.job.id: claim for claim in claims}
        still = [job_id for job_id in job_ids if queue.claims.get(job_id) is held[job_id]]
        if still:
            self._worker_loop.call_soon_threadsafe(queue.interrupt, still, why)


def _has_passed(since: Millis, span: Millis, now: Millis) -> bool:
    """True also after the clock was set back: the broker's clock goes on, and it would give the jobs to others."""
    return not 0 <= now - since < span


def _is_open(engine: Engine) -> bool:
    """A lazy engine opens on the worker's event loop, which may take a while; it holds no claims before that."""
    return bool(getattr(engine, "is_open", True))
