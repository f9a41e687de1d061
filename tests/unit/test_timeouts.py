"""One timer for many calls: what takes too long is given up, what was cancelled stays cancelled."""

import asyncio

import pytest

from yamchi.queues.timeouts import CallTimeout

SHORT = 0.05


async def forever() -> None:
    await asyncio.Event().wait()


async def test_a_call_that_takes_too_long_is_given_up_and_the_task_goes_on() -> None:
    timeout = CallTimeout(SHORT)
    with pytest.raises(TimeoutError):
        await timeout.wait_for(forever())
    assert await timeout.wait_for(asyncio.sleep(0, "next")) == "next"


async def test_each_call_has_its_own_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    timeout, loop, answer = CallTimeout(SHORT), asyncio.get_running_loop(), asyncio.Event()
    now = began = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)  # so that only one of the two deadlines has passed
    slow = asyncio.create_task(timeout.wait_for(forever()))
    await asyncio.sleep(0)
    now = began + SHORT / 2
    fine = asyncio.create_task(timeout.wait_for(answer.wait()))
    await asyncio.sleep(0)
    now = began + SHORT
    with pytest.raises(TimeoutError):
        await slow
    answer.set()
    assert await fine
    timeout.close()


async def test_a_call_that_began_later_is_given_up_later() -> None:
    timeout = CallTimeout(SHORT)

    async def late() -> None:
        await asyncio.sleep(SHORT / 2)
        await timeout.wait_for(forever())

    first, second = (asyncio.create_task(work) for work in (timeout.wait_for(forever()), late()))
    done, _ = await asyncio.wait([first, second], timeout=20)
    assert {type(task.exception()) for task in done} == {TimeoutError}
    assert len(done) == 2


async def test_what_the_work_raises_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await CallTimeout(SHORT).wait_for(fail())


async def test_a_cancelled_caller_is_cancelled_not_late() -> None:
    timeout = CallTimeout(60)
    task = asyncio.create_task(timeout.wait_for(forever()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    timeout.close()


async def test_cancelled_and_late_at_once_is_cancelled() -> None:
    timeout = CallTimeout(SHORT)

    async def stubborn() -> None:
        try:
            await forever()
        finally:
            task.cancel()  # somebody else's wish arrives while the call is being given up

    task = asyncio.create_task(timeout.wait_for(stubborn()))
    with pytest.raises(asyncio.CancelledError):
        await task
