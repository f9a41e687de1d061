"""Rendering that never holds up the event loop.

Nearly every message takes a fraction of a millisecond, and to hand it to a thread would cost more than that. So each is
tried at once under limits of a few milliseconds. What outgrows them is begun again in a thread, under the full limits,
and so is a template that has not been compiled yet.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from time import perf_counter
from typing import Any, TypeVar

from yamchi.notifications.templates.meter import FIRST_TRY, FULL, Limits, Outgrown
from yamchi.notifications.templates.model import Rendered, Template
from yamchi.notifications.templates.rendering import render
from yamchi.perloop import PerLoop

THREADS = 2
"""Of their own: a look-up of a host's name in asyncio's must not wait for a template."""

LONG_SECONDS = 0.005

Result = TypeVar("Result")

_trying = PerLoop(asyncio.Lock)


async def run_metered(work: Callable[[Limits], Result]) -> Result:
    """What `work` gives under these limits; it may be called twice and must raise `Outgrown` when it goes over the first.

    After a try that took long the loop goes on with everything else before the next one: many may come at the same time.
    """
    async with _trying.get():
        began = perf_counter()
        try:
            return work(FIRST_TRY)
        except Outgrown:
            pass
        finally:
            if perf_counter() - began > LONG_SECONDS:
                await asyncio.sleep(0)
    return await in_thread(work, FULL)


async def in_thread(work: Callable[..., Result], *args: Any) -> Result:
    """What `work` gives, beside the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_threads(), work, *args)


async def render_message(template: Template, data: Mapping[str, Any], **options: Any) -> Rendered:
    """`render`, without a pause for anybody else."""
    return await run_metered(lambda limits: render(template, data, limits=limits, **options))


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="yamchi-render")
