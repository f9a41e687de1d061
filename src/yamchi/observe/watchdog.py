"""The watchdog of the event loop: how long it stood still, whether that was our own work, and where.

A timer that should fire every twentieth of a second fires late when the loop is held up. The processor time that this
process used meanwhile tells the two causes apart: a callback that computed for 300 ms used 300 ms of it, and so did
another thread that kept Python's lock for as long (an expression that goes wild, wherever it runs, stops everybody); a
machine that is busy with other things gave us none. A thread beside it looks where the loop is when it is late. If it finds
the loop at the same place each time, and was itself on time, then a call that waits (`time.sleep`, a driver without asyncio)
holds the loop up, and not the machine.
"""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType

import structlog

log = structlog.get_logger("yamchi.watchdog")

TICK_SECONDS = 0.05
THRESHOLD_SECONDS = 0.25
"""Seconds: how often the loop is looked at, and from when on a pause is worth a line in the log."""

FEWEST_LOOKS = 3
"""How often the loop is found at one place before a call there is said to hold it up."""

DEEPEST_TRACE = 12
"""How many calls of the stack are shown."""

Observe = Callable[[float, float], None]
"""Called at every look with the seconds by which the loop was late, and those of them that this process worked."""


class LoopWatchdog:
    """Watches the event loop that runs it."""

    def __init__(
        self, observe: Observe, *, tick: float = TICK_SECONDS, threshold: float = THRESHOLD_SECONDS
    ) -> None:
        self._observe = observe
        self._tick, self._threshold = tick, threshold
        self._ticked_at = 0.0
        self._looks: list[tuple[CodeType, int]] = []
        self._place: str | None = None
        self._loops_own: set[CodeType] = set()
        self._stop = threading.Event()

    async def run(self) -> None:
        """Watch until cancelled."""
        self._stop.clear()
        self._loops_own = {frame.f_code for frame, _ in traceback.walk_stack(sys._getframe().f_back)}
        self._ticked_at = time.monotonic()
        thread = threading.Thread(
            target=self._look, args=[threading.get_ident()], name="loop-watchdog", daemon=True
        )
        thread.start()
        try:
            worked = time.process_time()
            while True:
                await asyncio.sleep(self._tick)
                # From tick to tick, without a gap: what holds the loop up while a pause is told of is part of the next one.
                began, self._ticked_at = self._ticked_at, time.monotonic()
                before, worked = worked, time.process_time()
                pause = max(self._ticked_at - began - self._tick, 0.0)
                self._tell(pause, min(worked - before, pause))
        finally:
            self._stop.set()

    def _tell(self, pause: float, busy: float) -> None:
        self._observe(pause, busy)
        looks, self._looks = self._looks, []
        place, self._place = self._place, None
        if pause < self._threshold:
            return
        passed, worked = f"{pause * 1000:,.0f} ms", f"{busy * 1000:,.0f} ms"
        said = f"the event loop stood still for {passed}, {worked} of them working"
        where = {"where": place} if place else {}
        if busy >= self._threshold:
            log.warning(said, **where)
        elif self._is_one_call(looks, pause):
            log.warning(f"{said}: a call that waits held it up", **where)
        else:
            log.info(said)  # it was the machine: worth knowing, but nothing of ours to mend

    def _is_one_call(self, looks: list[tuple[CodeType, int]], pause: float) -> bool:
        """Whether every look found the same call of ours, and there were about as many looks as there should be."""
        wanted = max((pause - self._threshold / 2) / self._tick / 2, FEWEST_LOOKS)
        return len(looks) >= wanted and len(set(looks)) == 1 and not self._is_idle(looks[0][0])

    def _is_idle(self, code: CodeType) -> bool:
        """Whether this is where a loop waits for something to do: asyncio's in `selectors`, uvloop's in whatever runs it."""
        return code in self._loops_own or Path(code.co_filename).name == "selectors.py"

    def _look(self, loop_thread: int) -> None:
        """In a thread of its own: note where the loop is while it is late."""
        while not self._stop.wait(self._tick):
            late = time.monotonic() - self._ticked_at - self._tick
            frame = sys._current_frames().get(loop_thread) if late >= self._threshold / 2 else None
            if frame is None:
                continue
            self._looks.append((frame.f_code, frame.f_lasti))
            if self._place is None:
                stack = traceback.extract_stack(frame, DEEPEST_TRACE)
                self._place = " < ".join(
                    f"{one.name} ({_short(one.filename)}:{one.lineno})" for one in reversed(stack)
                )


def _short(path: str) -> str:
    """The last parts of a file's path: enough to find it, and nothing of where the program is installed."""
    return "/".join(path.replace("\\", "/").split("/")[-2:])
