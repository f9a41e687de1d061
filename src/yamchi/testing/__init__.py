"""Tools for tests: an app in memory with a clock that can be moved, and the suite that every engine must pass.

async with TestApp() as app:
    @app.job("chain")
    async def letter(job: Job): ...

    await app.queue("chain").add({"to": "a@b.c"}, delay="48h")
    await app.clock.advance("48h")        # runs everything that comes due, in order, in milliseconds
"""

from yamchi.testing.app import TestApp
from yamchi.testing.clock import MovableClock
from yamchi.testing.waiting import eventually

__all__ = ["MovableClock", "TestApp", "eventually"]
