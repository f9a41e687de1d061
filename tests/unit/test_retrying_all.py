"""Everything is put back once, though a worker runs meanwhile and every job fails again at once."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from yamchi.queues.deadletters import DeadLetters
from yamchi.queues.engines.memory import MemoryEngine
from yamchi.queues.handlers import QueueDefinition
from yamchi.queues.options import JobOptions
from yamchi.queues.queue import Queue
from yamchi.queues.records import NewJob
from yamchi.testing import MovableClock
from yamchi.testing.conformance.base import failure

MANY = 2_500
OPTIONS = JobOptions(keep_failed=10_000)


class FailingAtOnce(MemoryEngine):
    """Whatever is put back is run there and then, and fails."""

    def __init__(self) -> None:
        super().__init__(MovableClock())
        self.put_back: Counter[str] = Counter()

    async def retry(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        return await self._fail(queue, await super().retry(queue, job_ids))

    async def replay(self, queue: str, jobs: Mapping[str, NewJob]) -> list[str]:
        return await self._fail(queue, await super().replay(queue, jobs))

    async def _fail(self, queue: str, back: list[str]) -> list[str]:
        self.put_back.update(back)
        assert max(self.put_back.values(), default=0) <= 1, "put back twice"
        await self.fail_all(queue)
        return back

    async def fail_all(self, queue: str) -> None:
        held = (await self.exchange(queue, [], MANY, 30_000, "worker")).claims
        await self.exchange(queue, [failure(one) for one in held], 0, 30_000, "worker")


@pytest.fixture
async def engine() -> FailingAtOnce:
    engine = FailingAtOnce()
    await engine.add("q", [NewJob(f"j{n}", "work", b"1", OPTIONS) for n in range(MANY)])
    await engine.fail_all("q")
    return engine


async def test_every_job_is_retried_once(engine: FailingAtOnce) -> None:
    queue = Queue(QueueDefinition("q", options=OPTIONS), engine, MovableClock())
    told: list[int] = []
    assert await queue.retry_all(on_done=told.append) == sum(told) == len(engine.put_back) == MANY
    assert await queue.retry_all("waiting") == 0, "what waits needs no retry"


async def test_every_letter_is_replayed_once(engine: FailingAtOnce) -> None:
    letters = DeadLetters(QueueDefinition("q", options=OPTIONS), engine)
    told: list[int] = []
    assert await letters.replay_all(on_done=told.append) == sum(told) == len(engine.put_back) == MANY
