"""One at a time for each caller, with others beside it: who asks for a hundred things at once waits for themselves alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

from starlette.exceptions import HTTPException

MOST_IN_LINE = 50


@dataclass(slots=True)
class _Line:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    length: int = 0


class Turns:
    """The lines of callers that want something now."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    @asynccontextmanager
    async def of(self, caller: str) -> AsyncIterator[None]:
        """When it is this caller's turn; 429 for one with too many in line."""
        line = self._lines.setdefault(caller, _Line())
        if line.length >= MOST_IN_LINE:
            raise HTTPException(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{MOST_IN_LINE} changes of this caller are waiting already: wait for their answers.",
                {"retry-after": "1"},
            )
        line.length += 1
        try:
            async with line.lock:
                yield
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[caller]
