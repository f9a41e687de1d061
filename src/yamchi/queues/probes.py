"""Whether engines answer, and how fast: for `/readyz`, `doctor` and `bench`."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from yamchi.clock import Clock, Millis, SystemClock
from yamchi.errors import EngineUnavailable, YamchiError
from yamchi.queues.engines.base import Engine, broker_of, by_engine
from yamchi.queues.options import JobOptions
from yamchi.queues.queue import Queue
from yamchi.queues.records import Claim, Completed, NewJob, new_id

ANSWER_SECONDS = 5.0
"""Seconds an engine has to answer before it counts as away."""

SCRATCH = "_doctor"
LEASE: Millis = 10_000
PROBE_TIMEOUT: Millis = 15_000
"""How long a job may take through an engine."""

BENCH_LEASE: Millis = 60_000
BATCH = 500


@dataclass(frozen=True, slots=True)
class EngineState:
    """The state of an engine: its queues, what is wrong with it, and how long a job took through it."""

    type: str
    queues: list[str]
    error: str | None = None
    took: Millis | None = None


async def ping_engines(queues: Sequence[Queue]) -> list[EngineState]:
    """Whether each engine of these queues answers."""
    return list(await asyncio.gather(*(_ping(*pair) for pair in by_engine(queues))))


async def _ping(engine: Engine, queues: Sequence[Queue]) -> EngineState:
    names, type = [queue.name for queue in queues], broker_of(engine).type
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await engine.ping()
    except TimeoutError:
        return EngineState(type, names, "It does not answer.")
    except YamchiError as error:
        return EngineState(type, names, str(error))
    return EngineState(type, names)


def broker_type(queue: Queue) -> str:
    """The type of a queue's broker, also while the spool is in use."""
    return broker_of(queue.engine).type


async def probe_engines(queues: Sequence[Queue]) -> list[EngineState]:
    """Send a job of our own through each engine of these queues, one engine after the other."""
    return [await _probe(engine, [one.name for one in some]) for engine, some in by_engine(queues)]


@runtime_checkable
class QueuesMadeByHand(Protocol):
    """An engine that can't make its queues itself."""

    async def how_to_make(self, queues: Sequence[str]) -> str | None:
        """What somebody must run to make those of these queues that are missing; None if none is."""


async def _probe(engine: Engine, names: list[str]) -> EngineState:
    broker = broker_of(engine)
    try:
        await engine.ping()
        if isinstance(broker, QueuesMadeByHand):  # there is no queue of our own to send a job through
            return EngineState(broker.type, names, await broker.how_to_make(names))
        return EngineState(broker.type, names, took=await _through(engine, SystemClock()))
    except YamchiError as error:
        return EngineState(broker.type, names, str(error))


async def _through(engine: Engine, clock: Clock) -> Millis:
    """Add a job, claim it, complete it; how long that took."""
    began = clock.now()
    job = NewJob(new_id(began), "check", b"null", JobOptions(keep_completed=0))
    await engine.add(SCRATCH, [job])
    while clock.now() < began + PROBE_TIMEOUT:
        got = await engine.exchange(SCRATCH, [], 10, LEASE, "doctor")
        if got.claims:
            await engine.exchange(SCRATCH, _completed(got.claims), 0, LEASE, "doctor")
        if any(claim.job.id == job.id for claim in got.claims):
            return clock.now() - began
        await engine.wake(SCRATCH, 200)
    raise EngineUnavailable(
        f"A job put into {engine.type} did not come out within {PROBE_TIMEOUT // 1000} s."
    )


async def drain_by_exchange(queue: Queue, jobs: int, clock: Clock, advance: Callable[[int], None]) -> None:
    """The engine's share of the work: claim and settle so many jobs, with handlers that take no time."""
    engine, began, done = queue.engine, clock.now(), 0
    verdicts: list[Completed] = []
    while done < jobs:
        got = await engine.exchange(queue.name, verdicts, BATCH, BENCH_LEASE, "bench")
        done += len(got.settled)
        advance(len(got.settled))
        if not got.claims and not verdicts and done < jobs:
            if clock.now() - began > BENCH_LEASE:
                raise EngineUnavailable(f"Only {done:,} of {jobs:,} jobs came back out of {engine.type}.")
            await engine.wake(queue.name, 1_000)
        verdicts = _completed(got.claims)


def _completed(claims: Sequence[Claim]) -> list[Completed]:
    return [Completed(claim) for claim in claims]
