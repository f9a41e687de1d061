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
from yamchi.queues.engines.bull.base import Context
from yamchi.queues.engines.bull.connection import pack
from yamchi.queues.engines.bull.connections import Refused
from yamchi.queues.engines.bull.eventstreams import EventStreams
from yamchi.queues.engines.bull.letters import Letters
from yamchi.queues.engines.bull.management import Management
from yamchi.queues.engines.bull.producing import Producing
from yamchi.queues.engines.bull.working import Working
from yamchi.queues.forking import MadeAnew
from yamchi.queues.records import Claim, JobRecord, Verdict

log = structlog.get_logger("yamchi.bull")

OLDEST_REDIS = (6, 2)


class BullEngine(MadeAnew):
    """Jobs in Redis, as BullMQ keeps them: five parts on common context, whose methods are the engine's as they are.

    Only where a call concerns two parts does the engine have a method of its own.
    """

    type = "bull"
    can = Capabilities()

    def __init__(self, url: str, clock: Clock) -> None:
        self._address = read_address(url)
        self._context = context = Context(self._address, clock)
        self._connections = context.connections
        self._working = working = Working(context)
        self._management = management = Management(context)
        self._streams = EventStreams(context, management.queues)
        adding, letters = Producing(context), Letters(context)

        self.add, self.fire = adding.add, adding.fire
        self.begin_schedule, self.last_fired = adding.begin_schedule, adding.last_fired
        self.renew, self.cancelled, self.wake = working.renew, working.cancelled, working.wake
        self.reserve, self.refund = working.reserve, working.refund
        self.get, self.page, self.counts, self.history = (
            management.get,
            management.page,
            management.counts,
            management.history,
        )
        self.queues, self.workers = management.queues, management.workers
        self.remove, self.cancel, self.promote = management.remove, management.cancel, management.promote
        self.retry, self.update, self.log = management.retry, management.update, management.log
        self.pause, self.resume, self.paused, self.clean = (
            management.pause,
            management.resume,
            management.paused,
            management.clean,
        )
        self.letters, self.letter = letters.letters, letters.letter
        self.replay, self.purge = letters.replay, letters.purge
        self.events = self._streams.events

    async def open(self) -> None:
        try:
            (info,) = await self._connections.ask(pack("INFO"))
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
        await asyncio.gather(*self._context.begun, return_exceptions=True)
        self._working.close()
        await self._connections.close()

    async def ping(self) -> None:
        await self._connections.ask(pack("PING"))

    # ── Where the parts meet ──────────────────────────────────────────────────────────────────────────────────────

    async def exchange(
        self, queue: str, verdicts: Sequence[Verdict], want: int, lease: Millis, worker: str
    ) -> Exchange:
        if not self._streams.is_on:
            return await self._working.exchange(queue, verdicts, want, lease, worker)
        self._streams.note_verdicts(verdicts)
        got = await self._working.exchange(queue, verdicts, want, lease, worker)
        answered = {*got.settled, *(verdict.claim.job.id for verdict in got.unsettled)}
        self._streams.forget_verdicts(
            [verdict for verdict in verdicts if verdict.claim.job.id not in answered]
        )
        return got

    async def progress(self, claim: Claim, value: bytes) -> None:
        self._streams.note(b"progress", claim.job.id)
        await self._management.progress(claim, value)

    async def recover(self, queue: str) -> list[tuple[JobRecord, bool]]:
        stalled = await self._working.recover(queue)
        for job, has_failed in stalled:
            self._streams.note(b"stalled", job.id)
            if has_failed:
                self._streams.note(b"failed", job.id)
        return stalled

    async def heartbeat(self, worker: WorkerInfo | str) -> None:
        await self._management.heartbeat(worker)
        if isinstance(worker, str):
            self._working.hide(worker)
            # The last word of a lease keeper: its event loop ends with it, and the connections must not outlive that.
            await self._connections.close()


__all__ = ["BullEngine"]
