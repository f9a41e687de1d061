"""Keeps the leases of running jobs alive, from a thread with an event loop of its own.

A handler that blocks the worker's event loop blocks nothing here, so it does not lose its job to another worker.
The thread also says which jobs were lost or are to be cancelled, and shows the worker among the living.
A job past its own timeout is no longer renewed: if even cancelling could not stop it, another worker may have it.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import structlog

from yamchi.clock import Clock, Millis
from yamchi.errors import YamchiError
from yamchi.queues.engines.base import Engine, WorkerInfo
from yamchi.queues.job import Claim
from yamchi.queues.services import Service

log = structlog.get_logger("yamchi.leases")

Interruption = Literal["lost", "cancelled"]
Interrupt = Callable[[Sequence[str], Interruption], None]
HEARTBEAT: Millis = 5_000


@dataclass(slots=True)
class HeldQueue:
    """The claims a worker holds of one queue. Changed by the worker's thread, read by the keeper's."""

    name: str
    engine: Engine
    interrupt: Interrupt
    claims: dict[str, Claim] = field(default_factory=dict)

    def snapshot(self) -> list[Claim]:
        return list(self.claims.copy().values())


class LeaseKeeper:
    """Renews every claim in `held` three times a lease."""

    def __init__(
        self, held: Sequence[HeldQueue], lease: Millis, clock: Clock, describe: Callable[[], WorkerInfo]
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
        await asyncio.to_thread(self._thread.join)

    def _main(self) -> None:
        """Keep until stopped, whatever happens: without renewals, every running job would also run elsewhere."""
        while not self._stop.is_set():
            try:
                asyncio.run(self._keep())
            except BaseException as error:
                self._stop.wait(min(self._service.fail(error), self._lease // 3) / 1000)

    async def _keep(self) -> None:
        self._service.begin()
        tick = min(1_000, self._lease // 3)
        renewed_at = beaten_at = 0
        while not self._stop.is_set():
            now = self._clock.now()
            if now - beaten_at >= HEARTBEAT:
                beaten_at = now
                await self._guard(self._beat())
            is_due = now - renewed_at >= self._lease // 3
            renewed_at = now if is_due else renewed_at
            for queue in self._held:
                if queue.claims:
                    await self._guard(self._tend(queue, is_due))
            await asyncio.to_thread(self._stop.wait, tick / 1000)
        for engine in {id(queue.engine): queue.engine for queue in self._held}.values():
            await self._guard(engine.heartbeat(self._describe().id))

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except YamchiError as error:
            log.warning("leases could not be tended; trying again", error=str(error))
        except Exception:
            log.exception("leases could not be tended; trying again")

    async def _beat(self) -> None:
        info = self._describe()
        for engine in {id(queue.engine): queue.engine for queue in self._held}.values():
            await engine.heartbeat(info)

    async def _tend(self, queue: HeldQueue, is_due: bool) -> None:
        claims = queue.snapshot()
        if is_due:
            renewable = [claim for claim in claims if not self._is_overdue(claim)]
            kept = set(await queue.engine.renew(queue.name, renewable, self._lease)) if renewable else set()
            lost = [claim.job.id for claim in renewable if claim.job.id not in kept]
            self._tell(queue, claims, lost, "lost")
        stopping = await queue.engine.cancelled(queue.name, claims)
        self._tell(queue, claims, stopping, "cancelled")

    def _is_overdue(self, claim: Claim) -> bool:
        timeout = claim.job.options.timeout
        return timeout is not None and self._clock.now() > (claim.job.started_at or 0) + timeout + self._lease

    def _tell(
        self, queue: HeldQueue, claims: Sequence[Claim], job_ids: Sequence[str], why: Interruption
    ) -> None:
        # A job settled while we were asking is neither lost nor to be interrupted.
        held = {claim.job.id: claim for claim in claims}
        still = [job_id for job_id in job_ids if queue.claims.get(job_id) is held[job_id]]
        if still:
            self._worker_loop.call_soon_threadsafe(queue.interrupt, still, why)
