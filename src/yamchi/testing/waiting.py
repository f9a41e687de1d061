"""Waiting in tests: for a condition, never for a length of time."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

T = TypeVar("T")


async def eventually(condition: Callable[[], T | Awaitable[T]], within: float = 20.0) -> T:
    """The first true value of the condition; fails with the last value seen when the time is up."""
    deadline = monotonic() + within
    while True:
        outcome = condition()
        value: T = await outcome if inspect.isawaitable(outcome) else outcome  # type: ignore[assignment]
        if value:
            return value
        if monotonic() > deadline:
            raise AssertionError(f"not within {within:g} s; the last value was {value!r}")
        await asyncio.sleep(0.005)
