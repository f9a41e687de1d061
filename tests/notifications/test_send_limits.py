"""The limits of providers: no more than so many in any period, by all processes together, and who waits comes in turn."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import select

from yamchi import Snooze
from yamchi.clock import to_moment
from yamchi.notifications.channels.send_limits import LEASE, LINE_FACTOR, PERMIT_RETENTION, Limit, SendLimits
from yamchi.notifications.tables import send_turns
from yamchi.testing import TestApp, eventually

TWO = Limit("bot", 2, 60_000)
ONE = Limit("chat", 1, 60_000)
QUICK = Limit("quick", 1, 200)


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[TestApp]:
    async with TestApp(home=tmp_path) as app:
        yield app


@pytest.fixture
def limits(app: TestApp) -> SendLimits:
    return SendLimits(app.database, app.clock)


@pytest.fixture
def others(app: TestApp) -> SendLimits:
    """Another process."""
    return SendLimits(app.database, app.clock)


async def _come_back(limits: SendLimits, *needed: Limit, is_urgent: bool = False) -> int | None:
    """None if it may send now, else when to come back."""
    try:
        async with limits.hold(needed, is_urgent=is_urgent):
            return None
    except Snooze as snooze:
        return to_moment(snooze.until)


async def _tried(app: TestApp, limits: SendLimits, *needed: Limit) -> int | None:
    """The same, with the time that it waits for."""
    trying = asyncio.create_task(_come_back(limits, *needed))
    while not trying.done():
        await eventually(lambda: trying.done() or app.clock.sleepers)
        if app.clock.sleepers:
            await app.clock.advance(0.001)
    return await trying


async def test_so_many_in_any_period_by_all_processes(
    app: TestApp, limits: SendLimits, others: SendLimits
) -> None:
    began = app.clock.now()
    assert await _come_back(limits, TWO) is None
    await app.clock.advance(10)
    assert await _come_back(others, TWO) is None
    assert await _come_back(others, TWO) == began + TWO.period
    await app.clock.advance(50)
    assert await _come_back(limits, TWO) is None, "the first permit is free again"
    assert await _come_back(limits, TWO) is not None, "the second is not"


async def test_who_waits_comes_back_one_after_another_and_the_urgent_in_a_line_of_their_own(
    app: TestApp, limits: SendLimits, others: SendLimits
) -> None:
    began = app.clock.now()
    assert await _come_back(limits, ONE) is None
    spacing = round(ONE.period * LINE_FACTOR)
    waiting = [await _come_back(which, ONE) for which in (limits, others, limits)]
    assert waiting == [began + ONE.period + place * spacing for place in range(3)]
    assert await _come_back(others, ONE, is_urgent=True) == began + ONE.period


async def test_a_permit_that_is_in_use_is_nobody_elses_until_its_process_must_be_dead(
    app: TestApp, limits: SendLimits, others: SendLimits
) -> None:
    async with limits.hold([QUICK]):
        await app.clock.advance(LEASE / 1000 - 1)
        assert await _tried(app, others, QUICK) is not None
        await app.clock.advance(1)
        assert await _tried(app, others, QUICK) is None


async def test_what_a_dead_process_may_have_sent_counts_for_its_whole_period(
    app: TestApp, limits: SendLimits, others: SendLimits
) -> None:
    daily, began = Limit("daily", 1, 86_400_000), app.clock.now()
    async with limits.hold([daily]):
        await app.clock.advance(LEASE / 1000 + 1)
        assert await _come_back(others, daily) == began + daily.period


async def test_where_one_of_two_limits_has_no_permit_that_of_the_other_is_not_used(
    limits: SendLimits, others: SendLimits
) -> None:
    full = Limit("full", 1, 60_000)
    assert await _come_back(limits, full) is None
    assert await _come_back(limits, ONE, full) is not None
    assert await _come_back(others, ONE) is None


async def test_who_need_not_wait_for_long_waits_here(app: TestApp, limits: SendLimits) -> None:
    assert await _come_back(limits, QUICK) is None
    waiting = asyncio.create_task(_come_back(limits, QUICK))
    await eventually(lambda: app.clock.sleepers)
    assert not waiting.done()
    await app.clock.advance(QUICK.period / 1000)
    assert await waiting is None


async def test_a_pause_that_the_provider_asked_for_holds_for_all(
    app: TestApp, limits: SendLimits, others: SendLimits
) -> None:
    until = app.clock.now() + 300_000
    async with limits.hold([TWO]):
        await others.pause(TWO, until)
    assert await _come_back(limits, TWO) == until


async def test_permits_that_nobody_needed_for_an_hour_are_forgotten(app: TestApp, limits: SendLimits) -> None:
    async def keys() -> list[str]:
        query = select(send_turns.c.key).order_by(send_turns.c.key)
        return list(await app.database.read(lambda c: c.execute(query).scalars().all()))

    assert await _come_back(limits, ONE) is None
    await app.clock.advance((PERMIT_RETENTION + ONE.period) / 1000)
    assert await _come_back(limits, TWO) is None
    assert await keys() == ["bot", "chat"], "not yet"
    await app.clock.advance((PERMIT_RETENTION) / 1000)
    assert await _come_back(limits, QUICK) is None
    assert await keys() == ["bot", "quick"]
