"""Token buckets, many of them, in bounded memory: so much at once, and so much over time.

They are this process's own: behind several processes a caller has as much from each.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass

from yamchi.clock import Clock
from yamchi.settingtypes import Quota

MOST_BUCKETS = 10_000
"""Buckets kept; the one not used for the longest time is forgotten, and so is full again."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Whether there was something left, how much is left now, and in how many seconds the bucket is full again."""

    is_allowed: bool
    remaining: int
    seconds: int
    wait: int
    """Seconds until there is one more; 0 if there is one."""


class Buckets:
    """A bucket a key, each of `quota.count`, filled evenly over `quota.period`."""

    def __init__(self, quota: Quota, clock: Clock, most: int = MOST_BUCKETS) -> None:
        self.quota = quota
        self._clock = clock
        self._most = most
        self._pace = quota.count / quota.period
        self._kept: OrderedDict[str, tuple[float, int]] = OrderedDict()

    @property
    def is_untouched(self) -> bool:
        """Nothing was ever taken."""
        return not self._kept

    def take(self, key: str) -> Taken:
        """One from this bucket."""
        level = self._level(key)
        is_allowed = level >= 1
        level -= is_allowed
        self._kept[key] = level, self._clock.now()
        self._kept.move_to_end(key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return self._taken(level, is_allowed=is_allowed)

    def look(self, key: str) -> Taken:
        """What `take` would find."""
        level = self._level(key)
        return self._taken(level, is_allowed=level >= 1)

    def _level(self, key: str) -> float:
        if key not in self._kept:
            return self.quota.count
        level, moment = self._kept[key]
        return min(self.quota.count, level + max(0, self._clock.now() - moment) * self._pace)

    def _taken(self, level: float, *, is_allowed: bool) -> Taken:
        full = math.ceil((self.quota.count - level) / self._pace / 1000)
        wait = 0 if level >= 1 else max(1, math.ceil((1 - level) / self._pace / 1000))
        return Taken(is_allowed, int(level), full, wait)
