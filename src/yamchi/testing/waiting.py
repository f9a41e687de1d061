"""Waiting in tests: for a condition, never for a length of time."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, TypeVar, overload

T = TypeVar("T")


@overload
async def eventually(condition: Callable[[], Awaitable[T | None]], within: float = ...) -> T: ...
@overload
async def eventually(condition: Callable[[], T | None], within: float = ...) -> T: ...
async def eventually(condition: Callable[[], Any], within: float = 20.0) -> Any:
    """The first true value of the condition; fails with the last value seen when the time is up."""
    deadline = monotonic() + within
    while True:
        outcome = condition()
        value = await outcome if inspect.isawaitable(outcome) else outcome
        if value:
            return value
        if monotonic() > deadline:
            raise AssertionError(f"not within {within:g} s; the last value was {value!r}")
        await asyncio.sleep(0.005)
