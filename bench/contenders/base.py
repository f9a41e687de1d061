"""What a contender's module provides: a class `Contender` of one of these two kinds.

A module may make its application at import, from `bench.target`; it is imported in the contender's own processes only.
"""

from collections.abc import Sequence
from typing import Any

Payload = dict[str, Any]


class AsyncContender:
    """Adds by coroutines."""

    has_bulk = True
    times_adds = True
    """Whether its adds are its own, and not only there to have something to drain."""

    async def open(self) -> None:
        """Connect, and make what must exist."""

    async def close(self) -> None:
        """Let go."""

    async def add(self, payload: Payload) -> None:
        raise NotImplementedError

    async def add_many(self, payloads: Sequence[Payload]) -> None:
        """The library's own way to add many."""
        raise NotImplementedError

    def work(self) -> None:
        """Run the worker until the process is ended."""
        raise NotImplementedError


class SyncContender:
    """Adds by plain calls."""

    has_bulk = True
    times_adds = True
    """Whether its adds are its own, and not only there to have something to drain."""

    def open(self) -> None:
        """Connect, and make what must exist."""

    def close(self) -> None:
        """Let go."""

    def add(self, payload: Payload) -> None:
        raise NotImplementedError

    def add_many(self, payloads: Sequence[Payload]) -> None:
        """The library's own way to add many."""
        raise NotImplementedError

    def work(self) -> None:
        """Run the worker until the process is ended."""
        raise NotImplementedError
