"""A rate limit holds across a switch: turns that this process took on one side count on the other.

Each side keeps the turns that it gave out, and knows nothing of the other's. So the last turn of each key is remembered
here, and after a switch no turn comes sooner than the limit allows after that one.
"""

from collections.abc import Sequence

from yamchi.clock import Millis
from yamchi.queues.engines.base import RateLimit
from yamchi.queues.failover.sides import Sides

REMEMBERED_KEYS = 10_000
"""Of how many keys the last turn is remembered: those used most recently."""

Key = tuple[str, str]


class Rates:
    """Turns under rate limits, on both sides."""

    def __init__(self, sides: Sides) -> None:
        self._sides = sides
        self._next: dict[Key, float] = {}
        """When each key may have its next turn, by what the side in use gave out. The latest used is last."""
        self._floors: dict[Key, float] = {}
        """The same, of the other side: what was true at the switch, until the side in use has caught up."""
        sides.on_switch(lambda before, after: self._carry_floors())

    async def reserve(self, queue: str, limit: RateLimit, keys: Sequence[str]) -> list[Millis]:
        turns = await self._sides.call(lambda engine: engine.reserve(queue, limit, keys))
        return [self._note((queue, key), limit, moment) for key, moment in zip(keys, turns, strict=True)]

    async def refund(self, queue: str, limit: RateLimit, key: str, turns: int) -> None:
        await self._sides.call(lambda engine: engine.refund(queue, limit, key, turns))
        for kept in (self._next, self._floors):
            if (queue, key) in kept:
                kept[queue, key] -= limit.spacing * turns

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

    def _carry_floors(self) -> None:
        for key, moment in self._next.items():
            self._floors[key] = max(moment, self._floors.get(key, 0.0))
        self._next.clear()
