"""Concurrent calls become one batch; one caller's bad item is nobody else's error."""

import asyncio
from collections.abc import Sequence

import pytest

from yamchi.errors import EngineUnavailable
from yamchi.storage.batching import Batcher


class Doubled:
    """Doubles numbers in batches, and remembers them; refuses a batch with a negative one."""

    def __init__(self, error: type[Exception] = ValueError) -> None:
        self.batches: list[list[int]] = []
        self.error = error
        self.under_way = self.most_under_way = 0

    async def work(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        if any(item < 0 for item in items):
            raise self.error(f"{items} has a negative one")
        return [2 * item for item in items]


async def test_what_is_asked_for_at_once_is_one_batch() -> None:
    doubled = Doubled()
    batcher = Batcher(doubled.work, most=4)
    assert await asyncio.gather(*map(batcher.do, range(6))) == [0, 2, 4, 6, 8, 10]
    assert doubled.batches == [[0, 1, 2, 3], [4, 5]]
    await batcher.empty()


async def test_no_more_batches_than_allowed_are_under_way() -> None:
    doubled = Doubled()
    batcher = Batcher(doubled.work, in_flight=2, most=1)
    assert await asyncio.gather(*map(batcher.do, range(5))) == [0, 2, 4, 6, 8]
    assert doubled.batches == [[0], [1], [2], [3], [4]]
    assert doubled.most_under_way == 2


async def test_a_bad_item_fails_its_own_caller() -> None:
    doubled = Doubled()
    batcher = Batcher(doubled.work)
    one, bad, other = await asyncio.gather(*map(batcher.do, (1, -1, 3)), return_exceptions=True)
    assert (one, other) == (2, 6)
    assert isinstance(bad, ValueError)


async def test_while_the_engine_is_away_nobody_is_tried_one_by_one() -> None:
    doubled = Doubled(EngineUnavailable)
    batcher = Batcher(doubled.work)
    answers = await asyncio.gather(*map(batcher.do, (1, -1, 3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [EngineUnavailable] * 3
    assert doubled.batches == [[1, -1, 3]]


async def test_a_caller_who_gives_up_takes_nobody_along() -> None:
    doubled = Doubled()
    batcher = Batcher(doubled.work)
    calls = [asyncio.create_task(batcher.do(number)) for number in (1, 2)]
    await asyncio.sleep(0)
    calls[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await calls[0]
    assert await calls[1] == 4


async def test_a_batch_that_is_cancelled_leaves_nobody_waiting() -> None:
    """As when the event loop ends: all of its tasks are cancelled, and none may be begun."""
    batches: list[Sequence[int]] = []

    async def work(items: Sequence[int]) -> list[int]:
        batches.append(items)
        raise asyncio.CancelledError

    batcher = Batcher(work, in_flight=1, most=1)
    async with asyncio.timeout(20):
        answers = await asyncio.gather(*map(batcher.do, (1, 2)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [asyncio.CancelledError] * 2
    assert batches == [[1]]
