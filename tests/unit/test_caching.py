"""A view of a table: read once for all who ask, and anew after a change, even one that comes while it is being read."""

import asyncio

from yamchi.storage.caching import CachedRead
from yamchi.testing import MovableClock


class Table:
    """Something to read that changes."""

    def __init__(self) -> None:
        self.value, self.reads = 1, 0
        self.seen: int | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def read(self) -> None:
        self.reads += 1
        value = self.value
        await self.gate.wait()
        self.seen = value


async def test_one_reads_for_all_and_again_when_it_is_old() -> None:
    clock, table = MovableClock(), Table()
    view = CachedRead(table.read, clock, 1_000)
    await asyncio.gather(*(view.refresh() for _ in range(50)))
    assert (table.reads, table.seen) == (1, 1)
    await clock.advance("999ms")
    await view.refresh()
    assert table.reads == 1
    await clock.advance("1ms")
    await view.refresh()
    assert table.reads == 2


async def test_a_clock_that_is_set_back_makes_nothing_last() -> None:
    clock, table = MovableClock(), Table()
    view = CachedRead(table.read, clock, 1_000)
    await view.refresh()
    clock._now -= 3_600_000
    await view.refresh()
    await view.refresh()
    assert table.reads == 2


async def test_a_change_while_it_is_read_is_not_missed() -> None:
    table = Table()
    view = CachedRead(table.read, MovableClock(), 1_000)
    table.gate.clear()
    reading = asyncio.create_task(view.refresh())
    await asyncio.sleep(0)
    table.value = 2
    view.invalidate()
    table.gate.set()
    await reading
    assert table.seen == 1
    await view.refresh()
    assert table.seen == 2


async def test_a_look_that_failed_is_repeated() -> None:
    fails = [ValueError("away")]

    async def read() -> None:
        if fails:
            raise fails.pop()

    view = CachedRead(read, MovableClock(), 1_000)
    outcomes = await asyncio.gather(view.refresh(), view.refresh(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ValueError, type(None)]
