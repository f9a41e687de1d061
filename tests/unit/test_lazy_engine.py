"""An engine that opens itself when first used, and values that belong to one event loop."""

import asyncio
import inspect

import pytest

from yamchi.clock import SystemClock
from yamchi.errors import EngineUnavailable
from yamchi.perloop import PerLoop
from yamchi.queues.engines.base import Engine
from yamchi.queues.engines.memory import MemoryEngine
from yamchi.queues.lazy import LazyEngine
from yamchi.queues.records import NewJob
from yamchi.testing import eventually


class Counted(MemoryEngine):
    """Counts how often it is opened and closed, and is away for the first so many tries."""

    def __init__(self, away: int = 0) -> None:
        super().__init__(SystemClock())
        self.opened = self.closed = 0
        self.away = away

    async def open(self) -> None:
        self.opened += 1
        await asyncio.sleep(0)
        if self.opened <= self.away:
            raise EngineUnavailable("It is away.")

    async def close(self) -> None:
        self.closed += 1


def test_every_method_of_the_contract_is_written_out() -> None:
    contract = {name for name, _ in inspect.getmembers(Engine) if not name.startswith("_")}
    assert contract <= LazyEngine.__dict__.keys()


async def test_it_is_made_and_opened_once_however_many_begin() -> None:
    made: list[Counted] = []

    def make() -> Counted:
        made.append(Counted())
        return made[-1]

    engine = LazyEngine(make)
    assert made == []
    jobs = [NewJob(f"{number}", "work", b"null") for number in range(50)]
    added = await asyncio.gather(*(engine.add("mail", [job]) for job in jobs))
    assert added == [[True]] * 50
    assert [one.opened for one in made] == [1]
    assert (await engine.counts("mail"))["waiting"] == 50
    await engine.close()
    await engine.close()
    assert made[0].closed == 1


class Slow(Counted):
    """Opens for as long as nobody stops it."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = False

    async def open(self) -> None:
        try:
            await super().open()
            await asyncio.Event().wait()
        finally:
            self.ended = True


@pytest.mark.timeout(60)
async def test_one_that_is_closed_while_it_opens_is_closed_and_whoever_waits_is_told() -> None:
    slow = Slow()
    engine = LazyEngine(lambda: slow)
    adding = asyncio.create_task(engine.add("mail", [NewJob("a", "work", b"null")]))
    await eventually(lambda: slow.opened)
    await engine.close()
    assert (slow.closed, slow.ended, engine.is_open) == (1, True, False)
    with pytest.raises(EngineUnavailable, match="was closed while it was being opened"):
        await adding


class SlowToClose(Counted):
    """As one that closes in a thread; whether it is open is what it says itself."""

    def __init__(self) -> None:
        super().__init__()
        self.is_there = False
        self.may_close = asyncio.Event()

    async def open(self) -> None:
        await super().open()
        self.is_there = True

    async def close(self) -> None:
        await super().close()
        await self.may_close.wait()
        self.is_there = False


async def test_one_that_is_used_while_it_closes_is_opened_after_that() -> None:
    slow = SlowToClose()
    engine = LazyEngine(lambda: slow)
    await engine.ping()
    closing = asyncio.create_task(engine.close())
    await eventually(lambda: slow.closed)
    pinging = asyncio.create_task(engine.ping())
    await asyncio.wait([pinging], timeout=0.1)
    slow.may_close.set()
    await asyncio.gather(closing, pinging)
    assert (slow.opened, slow.closed) == (2, 1)
    assert slow.is_there
    assert engine.is_open
    await engine.close()


async def test_one_that_was_away_is_opened_by_a_later_call() -> None:
    engine = LazyEngine(lambda: counted)
    counted = Counted(away=1)
    answers = await asyncio.gather(*(engine.queues() for _ in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [EngineUnavailable] * 3
    assert counted.opened == 1, "all of them waited for the one try"
    assert await engine.queues() == []
    assert counted.opened == 2


async def test_another_event_loop_does_not_open_it() -> None:
    engine = LazyEngine(Counted)
    home = asyncio.get_running_loop()
    await engine.open()
    await engine.close()
    with pytest.raises(EngineUnavailable, match="not open yet"):
        await asyncio.to_thread(lambda: asyncio.run(_ask(engine)))
    assert asyncio.get_running_loop() is home
    assert await engine.queues() == []


async def _ask(engine: LazyEngine) -> list[str]:
    return await engine.queues()


async def test_each_event_loop_has_a_value_of_its_own_and_a_closed_one_is_discarded() -> None:
    discarded: list[list[int]] = []
    values: PerLoop[list[int]] = PerLoop(list, discarded.append)
    mine = values.get()
    mine.append(1)

    async def other() -> list[int]:
        values.get().append(2)
        return values.get()

    theirs = await asyncio.to_thread(lambda: asyncio.run(other()))
    assert values.get() is mine
    assert (mine, theirs) == ([1], [2])
    await asyncio.to_thread(lambda: asyncio.run(other()))
    assert discarded == [[2]], "of the loop that was closed when the next one asked"
    here, others = values.take_all()
    assert here is mine
    assert others == [[2]]
    assert values.get() is not mine
