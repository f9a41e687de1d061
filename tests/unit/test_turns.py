"""One at a time for each caller."""

import asyncio

import pytest
from starlette.exceptions import HTTPException

from yamchi.http.turns import MOST_IN_LINE, Turns


async def test_a_caller_waits_for_themselves_alone() -> None:
    turns, most, now = Turns(), 0, 0

    async def work(caller: str) -> None:
        nonlocal most, now
        async with turns.of(caller):
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.001)
            now -= 1

    await asyncio.gather(*(work("one") for _ in range(10)))
    assert most == 1
    await asyncio.gather(*(work(f"number {number}") for number in range(10)))
    assert most == 10
    assert turns._lines == {}


async def test_a_line_has_an_end() -> None:
    turns, answers = Turns(), []

    async def work() -> None:
        try:
            async with turns.of("one"):
                await asyncio.sleep(0.001)
            answers.append(200)
        except HTTPException as error:
            answers.append(error.status_code)

    await asyncio.gather(*(work() for _ in range(MOST_IN_LINE + 5)))
    assert sorted(answers) == [200] * MOST_IN_LINE + [429] * 5


async def test_who_goes_leaves_the_line() -> None:
    turns = Turns()
    async with turns.of("one"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), turns.of("one"):
                pass
    assert turns._lines == {}
