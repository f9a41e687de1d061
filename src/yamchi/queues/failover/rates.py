"""A rate limit holds across a switch: permits that this process took on one side count on the other.

Each side keeps the permits that it gave out, and knows nothing of the other's. So the last permit of each key is remembered
here, and after a switch no permit comes sooner than the limit allows after that one.
"""

from collections.abc import Sequence

from yamchi.clock import Millis
from yamchi.queues.engines.base import RateLimit
from yamchi.queues.failover.sides import Sides

REMEMBERED_KEYS = 10_000
"""Of how many keys the last permit is remembered: those used most recently."""

Key = tuple[str, str]


class Rates:
    """Permits under rate limits, on both sides."""

    def __init__(self, sides: Sides) -> None:
        self._sides = sides
        self._next: dict[Key, float] = {}
        """When each key may have its next permit, by what the side in use gave out. The latest used is last."""
        self._floors: dict[Key, float] = {}
        """The same, of the other side: what was true at the switch, until the side in use has caught up."""
        sides.on_switch(lambda before, after: self._set_floors())

    async def reserve(self, queue: str, limit: RateLimit, keys: Sequence[str]) -> list[Millis]:
        permits = await self._sides.call(lambda engine: engine.reserve(queue, limit, keys))
        return [self._note((queue, key), limit, moment) for key, moment in zip(keys, permits, strict=True)]

    async def refund(self, queue: str, limit: RateLimit, key: str, permits: int) -> None:
        await self._sides.call(lambda engine: engine.refund(queue, limit, key, permits))
        for kept in (self._next, self._floors):
            if (queue, key) in kept:
                kept[queue, key] -= limit.spacing * permits

    def _note(self, key: Key, limit: RateLimit, moment: Millis) -> Millis:
        floor = self._floors.get(key)
        if floor is not None:
            if moment >= floor:
                del self._floors[key]
            else:
                moment = round(floor)
                self._floors[key] = floor + limit.spacing
        self._next.pop(key, None)
        self._next[key] = moment + limit.spacing
        if len(self._next) > REMEMBERED_KEYS:
            del self._next[next(iter(self._next))]
        return moment

    def _set_floors(self) -> None:
        for key, moment in self._next.items():
            self._floors[key] = max(moment, self._floors.get(key, 0.0))
        self._next.clear()
