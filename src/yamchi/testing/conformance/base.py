"""What the suites share: engines on one store, jobs to put in them, and the words to speak of them."""

from collections.abc import Awaitable, Callable, Sequence

import pytest

from yamchi.clock import Millis
from yamchi.queues.engines.base import Capabilities, Engine
from yamchi.queues.options import JobOptions
from yamchi.queues.records import Claim, Completed, DeadLetter, Failed, NewJob, Verdict, new_id
from yamchi.testing.waiting import eventually

Connect = Callable[[], Awaitable[Engine]]
LEASE: Millis = 20_000
SHORT: Millis = 400


class Suite:
    """Base of the suites: give a `connect` fixture, get an `engine` and a `queue` of its own for each test."""

    @pytest.fixture
    async def connect(self) -> Connect:
        raise RuntimeError("A suite needs a fixture `connect` that opens engines on one store.")

    @pytest.fixture
    async def engine(self, connect: Connect) -> Engine:
        return await connect()

    @pytest.fixture
    def queue(self) -> str:
        return f"q-{new_id(0)[-16:]}"


def needs(engine: Engine, capability: str) -> None:
    """Skip a test that asks for what this engine says it can't do."""
    assert capability in Capabilities.__slots__
    if not getattr(engine.can, capability):
        pytest.skip(f"{engine.type} has no {capability}")


def new_job(
    job_id: str | None = None, payload: bytes = b'{"n":1}', name: str = "work", **fields: object
) -> NewJob:
    return NewJob(job_id or new_id(0), name, payload, **fields)  # type: ignore[arg-type]


async def claim(
    engine: Engine, queue: str, want: int = 1, lease: Millis = LEASE, worker: str = "tester"
) -> list[Claim]:
    """Claim what is there now; brokers that need a moment to show a job get one through `claim_all`."""
    return (await engine.exchange(queue, [], want, lease, worker)).claims


async def claim_all(
    engine: Engine, queue: str, count: int, lease: Millis = LEASE, worker: str = "tester"
) -> list[Claim]:
    """Claim until so many jobs are held."""
    held: list[Claim] = []

    async def enough() -> bool:
        held.extend(await claim(engine, queue, count - len(held), lease, worker))
        return len(held) >= count

    await eventually(enough)
    return held


async def settle(engine: Engine, queue: str, verdicts: Sequence[Verdict]) -> list[str]:
    return (await engine.exchange(queue, verdicts, 0, LEASE, "tester")).settled


async def complete(
    engine: Engine, queue: str, claims: Sequence[Claim], result: bytes | None = None
) -> list[str]:
    return await settle(engine, queue, [Completed(held, result) for held in claims])


def failure(held: Claim, error: str = "it broke") -> Failed:
    return Failed(held, error, DeadLetter.of_job(held.job, error, 1_763_728_496_000))


async def state_of(engine: Engine, queue: str, job_id: str) -> str | None:
    job = await engine.get(queue, job_id)
    return job.state if job else None


def once() -> JobOptions:
    return JobOptions(attempts=1)
