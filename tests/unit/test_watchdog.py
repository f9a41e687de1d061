"""The watchdog tells a loop that computes from one that was merely kept waiting, and says where it stood."""

import asyncio
import re
import time
from io import StringIO

import pytest

from yamchi.observe.logging import configure
from yamchi.observe.metrics import Metrics
from yamchi.observe.watchdog import LoopWatchdog
from yamchi.testing import eventually


@pytest.fixture
def log() -> StringIO:
    lines = StringIO()
    configure("console", "info", lines)
    return lines


def compute_for(seconds: float) -> None:
    """Use this much of the processor, however little of it the machine gives us at a time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def watched(metrics: Metrics) -> "asyncio.Task[None]":
    watching = asyncio.create_task(LoopWatchdog(metrics.observe_loop, tick=0.02, threshold=0.2).run())
    await eventually(lambda: sum(metrics.loop_pauses.counts) >= 2)
    return watching


async def test_a_callback_that_computes_is_our_own_pause(log: StringIO) -> None:
    metrics = Metrics()
    watching = await watched(metrics)
    compute_for(0.5)
    await eventually(lambda: metrics.longest_busy >= 0.3)
    watching.cancel()
    said = await eventually(lambda: [one for one in log.getvalue().splitlines() if "stood still" in one])
    assert any("compute_for" in line for line in said)
    page = metrics.render({}, {}).decode()
    assert "yamchi_event_loop_pause_seconds_bucket" in page
    assert 'yamchi_event_loop_longest_pause_seconds{cause="busy"}' in page


async def test_a_loop_that_waits_for_something_else_is_not_blamed(log: StringIO) -> None:
    metrics = Metrics()
    watching = await watched(metrics)
    time.sleep(0.5)  # noqa: ASYNC251
    await eventually(lambda: metrics.longest_pause >= 0.3)
    watching.cancel()
    assert metrics.longest_busy < metrics.longest_pause / 2
    assert "compute_for" not in log.getvalue()


async def test_a_call_that_waits_in_the_loop_is_named(log: StringIO) -> None:
    """Such as a driver without asyncio: it works for no millisecond, and everybody waits for it all the same."""
    watching = asyncio.create_task(LoopWatchdog(lambda *_: None, tick=0.02, threshold=0.2).run())
    said = await eventually(lambda: wait_without_asyncio() or told_as_ours(log))
    watching.cancel()
    assert "a call that waits held it up" in said
    assert "wait_without_asyncio" in said


def wait_without_asyncio() -> None:
    time.sleep(0.5)


def told_as_ours(log: StringIO) -> str:
    """The warning of it. On a busy machine the watchdog's thread may be late itself, and then blames nobody."""
    return next((line for line in log.getvalue().splitlines() if line.startswith("[WARN]")), "")


async def test_what_holds_the_loop_up_while_a_pause_is_told_of_is_seen_too() -> None:
    """A line of the log lets go of Python's lock, which another thread may then keep for as long as it likes."""
    told: list[float] = []

    def observe(pause: float, busy: float) -> None:
        told.append(busy)
        if len(told) == 1:
            compute_for(0.3)

    watching = asyncio.create_task(LoopWatchdog(observe, tick=0.02, threshold=0.2).run())
    await eventually(lambda: len(told) >= 2)
    watching.cancel()
    assert told[1] >= 0.2


async def test_a_thread_that_keeps_the_lock_of_python_is_our_own_pause_too() -> None:
    """An expression that takes the cube of its text does not let go while it matches."""
    metrics = Metrics()
    watching = await watched(metrics)
    began, length, taken = time.thread_time(), 1_000, 0.0
    while taken < 0.4:  # however fast the machine is
        length = length * 3 // 2
        taken = await asyncio.to_thread(match_for_long, length)
    assert time.thread_time() - began < taken / 2, "the loop's own thread did nothing"
    await eventually(lambda: metrics.longest_busy >= taken / 2)
    watching.cancel()


def match_for_long(length: int) -> float:
    """Seconds of the processor that it took."""
    began = time.thread_time()
    re.search(r"x*x*y", "x" * length)
    return time.thread_time() - began
