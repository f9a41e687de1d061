"""Circuits, line by line: how fresh what a process knows is, what tells nothing new, and since when a provider is down."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from yamchi import Outage
from yamchi.notifications.channels.circuits import (
    LONGEST_WAIT,
    MAX_AGE,
    PROBE_TIMEOUT,
    SHORTEST_WAIT,
    Circuits,
)
from yamchi.testing import TestApp

NAME = "email:smtp"


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[TestApp]:
    async with TestApp(home=tmp_path) as app:
        yield app


@pytest.fixture
def circuits(app: TestApp) -> Circuits:
    return Circuits(app.database, app.clock)


@pytest.fixture
def others(app: TestApp) -> Circuits:
    """Another process."""
    return Circuits(app.database, app.clock)


async def _is_closed(circuits: Circuits) -> bool:
    try:
        await circuits.enter(NAME)
    except Outage:
        return False
    return True


async def test_what_another_process_found_out_is_known_within_half_a_second(
    app: TestApp, circuits: Circuits, others: Circuits
) -> None:
    assert await _is_closed(circuits)
    await others.failed(NAME, Outage("refused"), app.clock.now())
    await app.clock.advance((MAX_AGE - 1) / 1000)
    assert await _is_closed(circuits), "the database is not asked for every message"
    await app.clock.advance(0.001)
    assert not await _is_closed(circuits)


async def test_a_clock_that_is_set_back_makes_nothing_known_for_longer(
    app: TestApp, circuits: Circuits, others: Circuits
) -> None:
    assert await _is_closed(circuits)
    app.clock._now -= 3_600_000
    await others.failed(NAME, Outage("refused"), app.clock.now())
    assert not await _is_closed(circuits)


async def test_a_clock_that_is_set_back_keeps_no_circuit_open_for_longer(
    app: TestApp, circuits: Circuits, others: Circuits
) -> None:
    await circuits.failed(NAME, Outage("refused"), app.clock.now())
    app.clock._now -= 3_600_000
    assert [await _is_closed(one) for one in (circuits, others, circuits)] == [True, False, False], "a probe"
    await app.clock.advance(PROBE_TIMEOUT / 1000)
    assert await _is_closed(others), "the first never came back"
    told = await others.failed(NAME, Outage("refused"), app.clock.now())
    assert told.retry_after is not None
    assert told.retry_after <= timedelta(milliseconds=2 * LONGEST_WAIT)


async def test_a_clock_that_is_set_back_makes_no_source_wait_for_longer(
    app: TestApp, circuits: Circuits
) -> None:
    refused = Outage("refused", source="a browser")
    await circuits.failed(NAME, refused, app.clock.now())
    with pytest.raises(Outage):
        await circuits.enter(NAME, "a browser")
    app.clock._now -= 3_600_000
    await circuits.enter(NAME, "a browser")
    told = await circuits.failed(NAME, refused, app.clock.now())
    assert told.retry_after is not None
    assert told.retry_after <= timedelta(seconds=10)


async def test_the_database_is_asked_no_more_than_twice_a_second(
    app: TestApp, circuits: Circuits, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    read = app.database.read

    async def count(op: object) -> object:
        nonlocal asked
        asked += 1
        return await read(op)  # type: ignore[arg-type]

    monkeypatch.setattr(app.database, "read", count)
    for _ in range(20):
        await circuits.enter(NAME)
        await app.clock.advance(0.1)
    assert asked == 4


async def test_what_began_before_the_circuit_opened_tells_nothing_new(
    app: TestApp, circuits: Circuits
) -> None:
    began = app.clock.now()
    await app.clock.advance("1s")
    for _ in range(5):  # five that were on their way when the provider went down
        await circuits.failed(NAME, Outage("refused"), began)
    (known,) = await circuits.all()
    assert (known.failures, known.retry_at) == (1, app.clock.now() + SHORTEST_WAIT)
    await circuits.failed(NAME, Outage("refused"), known.opened_at or 0)
    (known,) = await circuits.all()
    assert known.failures == 1, "at the same moment is not after it"


async def test_an_outage_is_said_once_and_its_end_too(app: TestApp, circuits: Circuits) -> None:
    """Ten letters break at once, and wait; nobody reads a line for each."""
    with capture_logs() as lines:
        refused = (circuits.failed(NAME, Outage("refused"), app.clock.now()) for _ in range(10))
        waits = await asyncio.gather(*refused)
        await app.clock.advance("5s")
        assert await _is_closed(circuits), "the probe"
        await circuits.failed(NAME, Outage("refused"), app.clock.now())
        await app.clock.advance("30s")
        await circuits.succeeded(NAME)
        await app.clock.advance("1s")
        await circuits.failed(NAME, Outage("busy"), app.clock.now())
    assert [line["event"] for line in lines] == [
        "email:smtp is down, and its messages wait until it is back: refused",
        "email:smtp is back after 35 s",
        "email:smtp is down, and its messages wait until it is back: busy",
    ]
    assert all(wait.is_said for wait in waits)


async def test_what_began_after_it_opened_keeps_it_open_for_longer(app: TestApp, circuits: Circuits) -> None:
    opened, waits = app.clock.now(), []
    await circuits.failed(NAME, Outage("refused"), opened)
    for _ in range(6):
        (known,) = await circuits.all()
        waits.append((known.retry_at or 0) - app.clock.now())
        await app.clock.advance(waits[-1] / 1000)
        await circuits.failed(NAME, Outage(f"refused {len(waits)}"), app.clock.now())
    assert waits == [1_000, 2_000, 4_000, 8_000, LONGEST_WAIT, LONGEST_WAIT]
    (known,) = await circuits.all()
    assert (known.failures, known.opened_at, known.reason) == (7, opened, "refused 6"), "down since the first"
    assert known.describe(app.clock.now()).startswith("down for 45 s (7 failures)")


async def test_since_when_it_is_down_is_the_same_in_every_process(
    app: TestApp, circuits: Circuits, others: Circuits
) -> None:
    opened = app.clock.now()
    await circuits.failed(NAME, Outage("refused"), opened)
    await app.clock.advance("10s")
    await others.failed(NAME, Outage("refused"), app.clock.now())
    assert [one.opened_at for one in await circuits.all()] == [opened]
    await others.succeeded(NAME)
    await app.clock.advance("10s")
    await circuits.failed(NAME, Outage("refused"), app.clock.now())
    assert [(one.opened_at, one.failures) for one in await circuits.all()] == [(app.clock.now(), 1)]


async def test_one_probe_at_a_time(app: TestApp, circuits: Circuits, others: Circuits) -> None:
    await circuits.failed(NAME, Outage("refused"), app.clock.now())
    await app.clock.advance(SHORTEST_WAIT / 1000)
    assert [await _is_closed(one) for one in (circuits, others, circuits)] == [True, False, False]
    await app.clock.advance(PROBE_TIMEOUT / 1000)
    assert [await _is_closed(one) for one in (others, circuits)] == [True, False], "the first never came back"
    await others.succeeded(NAME)
    await app.clock.advance(MAX_AGE / 1000)
    assert await _is_closed(circuits)


async def test_a_providers_own_wish_is_obeyed(app: TestApp, circuits: Circuits) -> None:
    told = await circuits.failed(NAME, Outage("busy", retry_after=timedelta(minutes=2)), app.clock.now())
    assert told.retry_after is not None
    assert timedelta(minutes=2) <= told.retry_after <= timedelta(minutes=2, milliseconds=LONGEST_WAIT)
