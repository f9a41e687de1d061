"""Blocking calls in a thread of their own.

`asyncio.to_thread` shares a few threads with the user's own calls. Those may all wait for us, as `app.sync` does, and then nobody
would be left to open what they wait for.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_own_thread(work: Callable[P, T], *given: P.args, **options: P.kwargs) -> T:
    """For rare calls: each makes a thread."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="yamchi")
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, lambda: work(*given, **options))
    finally:
        thread.shutdown(wait=False)
