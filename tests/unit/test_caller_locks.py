"""One at a time for each caller."""

import asyncio

import pytest
from starlette.exceptions import HTTPException

from yamchi.http.callerlocks import MOST_WAITING, CallerLocks


async def test_a_caller_waits_for_themselves_alone() -> None:
    locks, most, now = CallerLocks(), 0, 0

    async def work(caller: str) -> None:
        nonlocal most, now
        async with locks.hold(caller):
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.001)
            now -= 1

    await asyncio.gather(*(work("one") for _ in range(10)))
    assert most == 1
    await asyncio.gather(*(work(f"number {number}") for number in range(10)))
    assert most == 10
    assert locks._waiters == {}


async def test_only_so_many_wait() -> None:
    locks, answers = CallerLocks(), []

    async def work() -> None:
        try:
            async with locks.hold("one"):
                await asyncio.sleep(0.001)
            answers.append(200)
        except HTTPException as error:
            answers.append(error.status_code)

    await asyncio.gather(*(work() for _ in range(MOST_WAITING + 5)))
    assert sorted(answers) == [200] * MOST_WAITING + [429] * 5


async def test_who_gives_up_waits_no_longer() -> None:
    locks = CallerLocks()
    async with locks.hold("one"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), locks.hold("one"):
                pass
    assert locks._waiters == {}
