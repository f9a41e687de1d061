"""How much one person may upload in a day, so that nobody fills the disk with a page's token.

It is counted before the body is read: many uploads at once are no way around it. What was not kept is given back.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

from starlette.exceptions import HTTPException

from yamchi.clock import Clock, Millis
from yamchi.storage.keys import Keys

DAY: Millis = 86_400_000
LEAST_BYTES = 256 * 1024
"""An upload counts as at least so much: it also costs rows, files and work."""


class DailyAllowance:
    """MEDIA_PERSON_BYTES of each person, by days of UTC."""

    def __init__(self, keys: Keys, clock: Clock, most: int) -> None:
        self._keys = keys
        self._clock = clock
        self._most = most

    async def take(self, user_id: str, size: int) -> str:
        """Count an upload of so many bytes; where it is counted, for `give_back`."""
        day, into_day = divmod(self._clock.now(), DAY)
        name = f"media-bytes:{user_id}:{day}"
        if await self._keys.incr(name, DAY / 1000, by=_counted(size)) <= self._most:
            return name
        await self.give_back(name, size)
        wait = -((into_day - DAY) // 1000)
        raise HTTPException(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"That is more than the {self._most:,} bytes that one person may upload in a day: come back in {wait} s.",
            headers={"retry-after": str(wait)},
        )

    async def give_back(self, name: str, size: int) -> None:
        await self._keys.incr(name, DAY / 1000, by=-_counted(size))

    @asynccontextmanager
    async def taken(self, user_id: str, size: int) -> AsyncIterator[None]:
        """Around an upload that is kept, unless it raises."""
        name = await self.take(user_id, size)
        try:
            yield
        except BaseException:
            await self.give_back(name, size)
            raise


def _counted(size: int) -> int:
    return max(size, LEAST_BYTES)
