"""The engine on Redis: BullMQ's own data model, so that Node's workers and Bull Board share the same queues.

Every move of a job is made by the Lua scripts that BullMQ itself runs (PyPI `bullmq` ships them), called in batches.
What BullMQ has no notion of lies beside: under `<prefix>:<queue>:ym:…`, where no BullMQ key is.
"""

import asyncio
from collections.abc import Sequence

import structlog

from yamchi.clock import Clock, Millis
from yamchi.errors import ConfigurationError
from yamchi.queues.engines.base import Capabilities, Exchange, WorkerInfo
from yamchi.queues.engines.bull.address import read_address
from yamchi.queues.engines.bull.connection import pack
from yamchi.queues.engines.bull.hearing import Hearing
from yamchi.queues.engines.bull.letters import Letters
from yamchi.queues.engines.bull.links import Refused
from yamchi.queues.engines.bull.producing import Producing
from yamchi.queues.engines.bull.working import Working
from yamchi.queues.job import Claim, JobRecord, Verdict

log = structlog.get_logger("yamchi.bull")

OLDEST_REDIS = (6, 2)


class BullEngine(Producing, Working, Hearing, Letters):
    """Jobs in Redis, as BullMQ keeps them."""

    type = "bull"
    can = Capabilities()

    def __init__(self, url: str, clock: Clock) -> None:
        self._address = read_address(url)
        super().__init__(self._address, clock)

    async def open(self) -> None:
        try:
            (info,) = await self._links.ask(pack("INFO"))
        except Refused as error:
            # At the start this is a mistake in the settings; later on it may be a password that is being changed.
            raise ConfigurationError(str(error)) from error
        said = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
        self._check_version(said.get("redis_version", "0"))
        if said.get("redis_mode") == "cluster" and "{" not in self._address.prefix:
            raise ConfigurationError(
                f"Redis at {self._address} is a cluster: add ?prefix={{bull}} to its URL, so that a queue's keys stay together."
            )
        if (policy := said.get("maxmemory_policy", "noeviction")) != "noeviction":
            log.warning(
                f"Redis at {self._address} may throw jobs away when it is full (maxmemory-policy {policy}): set it to noeviction."
            )

    def _check_version(self, version: str) -> None:
        parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        if parts < OLDEST_REDIS:
            raise ConfigurationError(
                f"Redis at {self._address} is version {version}, which is too old: BullMQ needs 6.2 or newer."
            )

    async def close(self) -> None:
        await asyncio.gather(*self._begun, return_exceptions=True)
        for waker in self._wakers.values():
            waker.cancel()
        await self._links.close()

    async def ping(self) -> None:
        await self._links.ask(pack("PING"))

    # ── Where the parts meet ──────────────────────────────────────────────────────────────────────────────────────

    async def exchange(
        self, queue: str, verdicts: Sequence[Verdict], want: int, lease: Millis, worker: str
    ) -> Exchange:
        if self._is_listening:
            self._note_verdicts(verdicts)
        return await super().exchange(queue, verdicts, want, lease, worker)

    async def progress(self, claim: Claim, value: bytes) -> None:
        self._note(b"progress", claim.job.id)
        await super().progress(claim, value)

    async def recover(self, queue: str) -> list[tuple[JobRecord, bool]]:
        stalled = await super().recover(queue)
        for job, has_failed in stalled:
            self._note(b"stalled", job.id)
            if has_failed:
                self._note(b"failed", job.id)
        return stalled

    async def heartbeat(self, worker: WorkerInfo | str) -> None:
        await super().heartbeat(worker)
        if isinstance(worker, str):
            self._hide(worker)
            # The last word of a lease keeper: its event loop ends with it, and the connections must not outlive that.
            await self._links.close()


__all__ = ["BullEngine"]
